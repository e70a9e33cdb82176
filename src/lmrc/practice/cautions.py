"""What a user had better know before a task is learnt."""

from __future__ import annotations

import numpy as np

from lmrc.data.folders import class_name
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.nets.auto import pick
from lmrc.practice.batch import Batch
from lmrc.practice.usage import count, warn
from lmrc.training.device import pick_device

FEW = 20  # images of a class; with fewer, a backbone from scratch has little to go by
LONG = 1000  # images, over all epochs: some minutes for a ResNet on a CPU
UNEVEN = 5  # times as many images of one class as of another
DARK = 32  # of 255: brighter pixels than that has any photograph, be it of the night
LOOKED_AT = 20  # images of a class, for their brightness


def warn_about(batch: Batch, model: LMRCClassifier) -> None:
    """Say before it is learnt what had better be otherwise."""
    _warn_of_names(batch, model)
    labels, counts = np.unique(batch.y, return_counts=True)
    fewest, most = labels[counts.argmin()], labels[counts.argmax()]
    if counts.max() >= UNEVEN * counts.min() and model.class_weight is None:
        warn(
            f"{most} has {counts.max() / counts.min():.0f} times as many images as {fewest}: with "
            "--class-weight balanced each class counts alike"
        )
    if counts.min() < FEW and not model.freeze:
        few = f"{fewest} has only {count(int(counts.min()), 'image')}"
        if others := int((counts < FEW).sum()) - 1:
            few += f", and {count(others, 'other class', 'other classes')} fewer than {FEW}"
        warn(
            f"{few}: more of them, or --weights FILE --freeze with a backbone that has seen many "
            "images, would help"
        )
    _warn_of_dark(batch)
    _warn_of_time(batch, model)
    if model.freeze and model.weights is None and not hasattr(model, "classes_"):
        warn("--freeze without --weights: the backbone stays as random as it begins")


def _warn_of_time(batch: Batch, model: LMRCClassifier) -> None:
    """Name what is quicker where a network for GPUs is to be trained on a CPU."""
    if hasattr(model, "classes_") or model.backbone != "auto" or batch.X.ndim < 3:
        return
    channels = batch.X.shape[3] if batch.X.ndim == 4 else 1
    on_cpu = pick_device(model.device).type == "cpu"
    long = model._epochs * len(batch.X) > LONG and not model.freeze
    if on_cpu and long and pick((channels, *batch.X.shape[1:3])).startswith("resnet"):
        warn(
            "a ResNet-18 may take very long on a CPU: --backbone cnn is a smaller network, much "
            "quicker and less exact"
        )


def _warn_of_dark(batch: Batch) -> None:
    """Name a class of black images: files of 16 bits a pixel may use few of them."""
    if batch.mode is None:
        return
    # Files are read class by class.
    found = np.unique(batch.y, return_index=True, return_counts=True)
    for label, start, n in zip(*found, strict=True):
        brightest = int(np.asarray(batch.X[start : start + min(n, LOOKED_AT)]).max())
        if brightest < DARK:
            warn(
                f"the images of {label} are nearly black, no pixel above {brightest} of 255: where "
                "a file has 16 bits or more a pixel, 65535 is white, so rescale what is not"
            )
            return


def _warn_of_names(batch: Batch, model: LMRCClassifier) -> None:
    """Name new classes that are called as another is, but for capitals and white space."""
    known = getattr(model, "classes_", batch.y[:0]).tolist()
    alike, found = {_key(label): label for label in known}, []
    for label in np.unique(batch.y).tolist():
        other = alike.setdefault(_key(label), label)
        if label != other and label not in known:
            both = f"but the model knows {other!r}" if other in known else f"and so is {other!r}"
            found.append(f"{label!r} is new, {both}")
    if found:  # one line, since there may be many: all letters, small and capital
        more = f" (and {len(found) - 1} more like that)" if len(found) > 1 else ""
        undo = " (lmrc rollback undoes this learn)" if known else ""
        warn(f"{found[0]}{more}: if they are one, give them one name{undo}")


def _key(label: object) -> str:
    return " ".join(class_name(str(label)).casefold().split())
