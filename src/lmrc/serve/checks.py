"""What may be wrong with the images of a task, before it is learnt."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from lmrc.serve.jobs import Image

FEW = 5  # images of a class


def findings(images: Iterable[Image]) -> list[dict[str, Any]]:
    """Return what the check finds: a code, a message, and the ids of the images it is about."""
    images = list(images)
    found = []
    same: dict[str, list[Image]] = defaultdict(list)
    for image in images:
        same[image.digest].append(image)
    for copies in same.values():
        labels = sorted({image.label for image in copies})
        ids = [image.id for image in copies]
        if len(labels) > 1:
            text = f"the same image is in {' and in '.join(labels)}"
            found.append({"code": "two_classes", "message": text, "images": ids})
        elif len(copies) > 1:
            text = f"the same image is {len(copies)} times in {labels[0]}"
            found.append({"code": "duplicate", "message": text, "images": ids[1:]})
    for label, n in Counter(image.label for image in images).items():
        if n < FEW:
            text = f"{label} has only {n} {'image' if n == 1 else 'images'}: add some"
            found.append({"code": "few", "message": text, "images": []})
    return found
