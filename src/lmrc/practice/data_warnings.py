"""Warnings about the data of a task, before it is learnt."""

import shlex
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmrc.data import folders
from lmrc.data.class_names import similar_names
from lmrc.data.duplicates import copies, pixel_digest
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.nets.auto import OF_VECTORS, pick
from lmrc.nets.loading import is_pretrained
from lmrc.practice.source import LabelledSamples
from lmrc.practice.usage import count, noun_of, warn
from lmrc.training.device import pick_device

FEW_IMAGES = 20  # of a class, to train a backbone from scratch
LONG_ON_CPU = 1000  # images times epochs: some minutes for a ResNet
IMBALANCED = 5  # ratio of the largest class to the smallest
DARK = 32  # of 255; even photographs taken at night have brighter pixels
BRIGHTNESS_CHECKED = 20  # images of a class


def warn_about(samples: LabelledSamples, model: LMRCClassifier, source: str = "") -> None:
    """Warn of what may make the model inaccurate or training slow.

    The model knows its input shape. Commands are named if the samples come from a `source`.
    """
    _warn_about_names(samples, model, source)
    noun = noun_of(model.input_shape_)
    labels, counts = np.unique(samples.y, return_counts=True)
    fewest, most = labels[counts.argmin()], labels[counts.argmax()]
    # With exact statistics, all classes have the same weight anyway.
    exact = getattr(model, "statistics", "none") != "none" and model._on_features
    if counts.max() >= IMBALANCED * counts.min() and model.class_weight is None and not exact:
        warn(
            f"{most} has {counts.max() / counts.min():.0f} times as many {noun}s as {fewest}: with "
            "--class-weight balanced, all classes have the same weight in the loss"
        )
    _warn_about_few(labels, counts, model, noun)
    _warn_about_dark_images(samples)
    _warn_about_duplicates(samples, source)
    _warn_about_slow_training(samples, model)
    pretrained = model.weights is not None or is_pretrained(model._backbone)
    pretrained = pretrained or model._backbone in OF_VECTORS
    if model._freezes and not pretrained and not hasattr(model, "classes_"):
        warn("--freeze without --weights: the backbone keeps its random initial weights")


def _warn_about_few(
    labels: NDArray[Any], counts: NDArray[Any], model: LMRCClassifier, noun: str
) -> None:
    """Warn of classes with few samples; with a frozen backbone, of new ones only."""
    enough, advice = FEW_IMAGES, f"add {noun}s"
    if model._freezes:
        enough = folders.FEW_IMAGES
        new = ~np.isin(labels, getattr(model, "classes_", labels[:0]))
        labels, counts = labels[new], counts[new]
    elif noun == "image" and not hasattr(model, "classes_"):
        advice += ", or use a pre-trained backbone (--backbone efficientnet-lite0)"
    if not (n_few := int((counts < enough).sum())):
        return
    few = f"{labels[counts.argmin()]} has only {count(int(counts.min()), noun)}"
    if n_few > 1:
        few += f", and {count(n_few - 1, 'other class', 'other classes')} fewer than {enough}"
    warn(f"{few}: {advice}")


def _warn_about_duplicates(samples: LabelledSamples, source: str) -> None:
    """Warn of images with the same pixels, especially in two classes; `lmrc check` finds more."""
    if samples.mode is None or not isinstance(samples.X, np.ndarray):
        return
    found = copies(map(pixel_digest, samples.X))
    labels = [sorted({str(label) for label in samples.y[rows].tolist()}) for rows in found]
    two = min((names for names in labels if len(names) > 1), default=None)
    twice = sum(len(rows) - 1 for rows in found)
    if twice:
        verb = "is a duplicate" if twice == 1 else "are duplicates"
        text = f"{twice:,} of {len(samples.y):,} images {verb}"
        if two:
            text += f", once labelled {' and once '.join(two[:2])}"
        warn(text + (f": lmrc check {shlex.quote(source)} lists them" if source else ""))


def _warn_about_slow_training(samples: LabelledSamples, model: LMRCClassifier) -> None:
    """Suggest a smaller network if a ResNet is about to be trained on a CPU."""
    if hasattr(model, "classes_") or model._backbone != "auto":
        return
    on_cpu = pick_device(model.device).type == "cpu"
    long = model._epochs * len(samples.X) > LONG_ON_CPU and not model._freezes
    if on_cpu and long and pick(model.input_shape_).startswith("resnet"):
        warn(
            "training a ResNet-18 on a CPU may take very long: --backbone cnn is much faster, but "
            "less accurate"
        )


def _warn_about_dark_images(samples: LabelledSamples) -> None:
    """Warn of a class of black images: 16-bit files that use only the low values."""
    if samples.mode is None:
        return
    # Files are read class by class.
    found = np.unique(samples.y, return_index=True, return_counts=True)
    for label, start, n in zip(*found, strict=True):
        brightest = int(np.asarray(samples.X[start : start + min(n, BRIGHTNESS_CHECKED)]).max())
        if brightest < DARK:
            warn(
                f"the images of {label} are nearly black, no pixel above {brightest} of 255: in "
                "files with 16 bits or more per pixel, white must be 65535, so rescale them"
            )
            return


def _warn_about_names(samples: LabelledSamples, model: LMRCClassifier, source: str) -> None:
    """Warn of new classes with nearly the same name as another."""
    known = getattr(model, "classes_", samples.y[:0]).tolist()
    if found := similar_names(np.unique(samples.y).tolist(), known):
        # One line, since there may be many, such as all letters in both cases.
        (label, other), *others = found
        which = "known" if other in known else "new"
        more = f" (and {count(len(others), 'more such pair')})" if others else ""
        undo = " (lmrc rollback undoes this learn)" if known and source else ""
        warn(
            f"the new class {label!r} has nearly the same name as the {which} class {other!r}"
            f"{more}: if they are the same class, give them the same name{undo}"
        )
