"""What ``lmrc learn`` prints: expected time, images, known classes that differ, the result."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmrc.methods.lmrc import LMRCClassifier
from lmrc.nets.packaged import PACKAGED, packaged
from lmrc.practice.info import earlier_with_exemplars
from lmrc.practice.source import LabelledSamples
from lmrc.practice.usage import Say, count, format_bytes, noun_of, percent, warn
from lmrc.store import folder as store
from lmrc.training.device import pick_device

# Photographs per second, with two forward passes of the backbone each: benchmarks/features.py.
IMAGES_PER_CORE, IMAGES_ON_GPU, OTHER_SECONDS = 12.0, 1000.0, 3.0
ADAPTED_PER_CORE, ADAPTED_ON_GPU = 0.5, 400.0  # in an epoch of the backbone's adaptation
#: Multiply-adds of larger backbones for images of their own size, relative to the default.
TIMES_THE_WORK = {"efficientnet-lite1": 1.56, "efficientnet-lite2": 2.24}
ONLY_ONE = "with a single class, every image is predicted as that class: learn another one, too"
DRIFT_CHECKED, DRIFT_CHECKED_IN_ALL = 20, 240  # images of a known class; five at least
CONFUSED, FEWEST_CONFUSED = 0.2, 2  # images of a new class taken for another: share, number
DIFFERENT = 0.5  # share of them that are recognised, below which they differ


def seconds_for(model: Any, n_images: int) -> float:
    """Return about how long a new model with a pre-trained backbone takes for photographs."""
    speeds, cores = (IMAGES_ON_GPU, ADAPTED_ON_GPU), 1
    if pick_device(model.device).type == "cpu":
        speeds, cores = (IMAGES_PER_CORE, ADAPTED_PER_CORE), torch.get_num_threads()
    epochs = model.adaptation_epochs if model._adapts else 0
    found = packaged(model.backbone)
    assert found is not None
    variant, side = found
    work = TIMES_THE_WORK.get(variant, 1.0) * (side / PACKAGED[variant].size) ** 2
    each = (1 + (epochs > 0)) / speeds[0] + epochs / speeds[1]
    return OTHER_SECONDS + n_images * each * work / cores


def print_samples(samples: LabelledSamples, known: Any, say: Say) -> None:
    """Say how many images of which classes there are, and the size they are converted to."""
    labels, counts = np.unique(samples.y, return_counts=True)
    of_class = dict(zip(labels.tolist(), counts.tolist(), strict=True))
    old = {label: n for label, n in of_class.items() if label in known.tolist()}
    for title, part in (
        ("new", {label: n for label, n in of_class.items() if label not in old}),
        ("known", old),
    ):
        if part:
            listed = ", ".join(f"{label} ({n:,})" for label, n in list(part.items())[:10])
            more = ", …" if len(part) > 10 else ""
            say(f"{count(len(part), f'{title} class', f'{title} classes')}: {listed}{more}")
    held = f", {len(samples.y_val):,} held out for validation" if len(samples.y_val) else ""
    held += f" (from {samples.held_out_in})" if samples.held_out_in else ""
    say(f"{count(len(samples.y), noun_of(samples.X.shape[1:]))} for training{held}")
    if samples.mode and not len(known):
        kind, (height, width) = {"L": "grey", "RGB": "colour"}[samples.mode], samples.X.shape[1:3]
        say(f"input: {kind} images of {height}×{width} pixels; later images are converted to that")
    samples.warn_about_files()


def print_drift(samples: LabelledSamples, model: LMRCClassifier, say: Say, undo: str) -> None:
    """Say how many new images of known classes the model recognises already, from a sample."""
    found, noun = [], noun_of(model.input_shape_)
    known = [label for label in model.classes_ if label in samples.y]
    for label in known:
        rows = np.flatnonzero(samples.y == label)
        most = min(DRIFT_CHECKED, max(5, DRIFT_CHECKED_IN_ALL // len(known)))
        rows = rows[:: -(-len(rows) // most)]
        predicted = Counter(model.predict(samples.X[rows]).tolist())
        found.append((predicted[label] / len(rows), label, predicted))
    if not found:
        return
    found.sort(key=lambda item: item[0])
    shown = ", ".join(f"{label} {percent(share)}" for share, label, _ in found[:10])
    more = ", …" if len(found) > 10 else ""
    say(f"new {noun}s of known classes that are recognised already: {shown}{more}")
    for share, label, predicted in found:
        if share < DIFFERENT:
            other, n = next(item for item in predicted.most_common() if item[0] != label)
            warn(
                f"{label}: the model recognises only {percent(share)} of its new {noun}s, and "
                f"takes {percent(n / predicted.total())} for {other}: if the data is wrong, {undo}"
            )


def warn_of_confusion(model: LMRCClassifier, known: Any, undo: str) -> None:
    """Warn of new classes that are taken for another one, by their leave-one-out results."""
    labels, predicted = getattr(model, "left_out_", (known[:0], known[:0]))
    found = []
    for label in sorted({*labels.tolist()} - {*known.tolist()}):
        of = predicted[labels == label]
        wrong = Counter(of[of != label].tolist()).most_common(1)
        if wrong and wrong[0][1] >= max(FEWEST_CONFUSED, CONFUSED * len(of)):
            found.append((wrong[0][1] / len(of), label, wrong[0][0]))
    for share, label, other in sorted(found, reverse=True)[:3]:
        warn(
            f"{percent(share)} of the {noun_of(model.input_shape_)}s of {label} are taken for "
            f"{other}: if they are the same class, {undo} and use one name for both"
        )


def print_result(place: Path, model: LMRCClassifier, note: dict[str, Any], say: Say) -> None:
    """Say how accurate the new version is, how long it took, and what it stores."""
    for name in ("new", "old"):
        if f"{name}_accuracy" in note:
            tested = count(note[f"{name}_tested"], noun_of(model.input_shape_))
            accuracy = percent(note[f"{name}_accuracy"])
            kind = "leave-one-out" if note.get("left_out") else "validation"
            say(f"{kind} accuracy on {name} classes: {accuracy} ({tested})")
    n_exemplars, versions = len(model.memory_) if model.memory_ else 0, store.versions(place)
    exemplars = count(n_exemplars, "exemplar") if n_exemplars else "no exemplars"
    if not n_exemplars and (earlier := earlier_with_exemplars(versions)):
        where = count(earlier, "earlier version")
        exemplars += f", but some in {where} (lmrc prune deletes earlier versions)"
    say(
        f"{place} now knows {count(len(model.classes_), 'class', 'classes')}: "
        f"{note['seconds']:.0f} s, {format_bytes(store.size_of(versions[-1:]))}, {exemplars}"
    )
    if len(model.classes_) == 1:
        say(ONLY_ONE)
