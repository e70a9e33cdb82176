"""Checks of the images of a task before it is learnt."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lmrc.data.duplicates import copies, duplicates
from lmrc.data.folders import FEW_IMAGES
from lmrc.practice.usage import count
from lmrc.serve.jobs import Image

MAX_COMPARED = 1000  # images, each with each, whenever some are added


def findings(images: Sequence[Image]) -> list[dict[str, Any]]:
    """Return findings: a code, a message, and the ids of the images concerned.

    Similar images are reported only if their classes differ: frames of a webcam are always similar.
    """
    found = []
    prints = [image.thumbprint for image in images]
    for rows in copies(one.digest for one in prints):
        labels, ids = sorted({images[i].label for i in rows}), [images[i].id for i in rows]
        if len(labels) > 1:
            text = f"the same image is in {' and in '.join(labels)}: keep it in one of them only"
            found.append(_finding("two_classes", text, ids))
        else:
            text = f"{labels[0]} has the same image {len(rows)} times"
            found.append(_finding("duplicate", text, ids[1:]))
    for first, second, kind, _ in duplicates(prints) if len(images) <= MAX_COMPARED else ():
        one, other = images[first], images[second]
        if kind != "same pixels" and one.label != other.label:
            text = (
                f"{one.name} of {one.label} and {other.name} of {other.label} are nearly the same"
            )
            found.append(_finding("two_classes", text, [one.id, other.id]))
    for label, n in Counter(image.label for image in images).items():
        if n < FEW_IMAGES:
            found.append(_finding("few", f"{label} has only {count(n, 'image')}: add some", []))
    return found


def _finding(code: str, message: str, images: list[str]) -> dict[str, Any]:
    return {"code": code, "message": message, "images": images}
