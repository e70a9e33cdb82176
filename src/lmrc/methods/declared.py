"""The parameters of LMRC, of LMRC+, and those of training, which all methods share.

They are declared here and nowhere else: constructors, checks, the options of ``lmrc learn``, the
settings that pages show and the docstrings are made from them. Baselines declare their own beside
their losses, which works alike. Takes no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lmrc.methods.parameters import (
    Parameters,
    class_weights,
    defaults,
    integer,
    milestones,
    parameter,
    path,
    real,
)

if TYPE_CHECKING:
    import os

    import numpy as np
    import torch
    from torch import nn

    from lmrc.nets.backbones import Factory

BACKBONES = ("auto", "mlp", "cnn", "resnet18", "resnet34", "resnet18-wide")


class TrainingParameters(Parameters):
    """What every method takes: network, exemplars, optimisation, computation."""

    backbone: str | nn.Module | Factory = parameter(
        default="auto",
        help='The network. "mlp", "cnn", "resnet18", "resnet34", "resnet18-wide" (twice the '
        'channels), or "auto", by the input\'s shape. A module is copied and trained; a factory '
        "that has a parameter `input_shape` is given it.",
        option="--backbone",
        fixed=True,
        choices=BACKBONES,
    )
    weights: str | os.PathLike[str] | None = parameter(
        default=None,
        constraint=path(),
        help="Safetensors file to start the backbone from at the first task, such as that of a "
        "torchvision ResNet. Sets how inputs are normalised: colour images as ImageNet's.",
        option="--weights",
    )
    freeze: Literal[False, True, "later"] = parameter(
        default=False,
        help="Train the heads alone and leave the backbone as it is: with good `weights`, the "
        'way to learn from few images. "later": from the second task on, for many classes at '
        "first and then a few at a time.",
        option="--freeze",
    )
    memory_per_class: int = parameter(
        default=0,
        constraint=integer(0),
        help="Exemplars of each class to store. 0 stores none. Where it is lowered, the others "
        "are dropped before the next task.",
        option="--memory-per-class",
    )
    memory_total: int = parameter(
        default=0,
        constraint=integer(0),
        help="Instead of `memory_per_class`: exemplars of all classes together, the same number "
        "of each, fewer as classes arrive.",
    )
    exemplars: Literal["random", "herding"] = parameter(
        default="random",
        help='How exemplars are chosen. "herding": so that the mean of their features is near '
        "the class's (iCaRL, Rebuffi et al., CVPR 2017). Another choice is a method of your own: "
        "`choose_exemplars`.",
    )
    class_weight: Mapping[Any, float] | str | None = parameter(
        default=None,
        constraint=class_weights(),
        help='Weight of each class in the loss. "balanced": each counts alike, however few '
        "samples it has. A dict gives the weights of labels, 1 for those that are not in it; "
        "only their ratios matter. Some may be of classes yet to come, but not all. Class "
        "statistics take all classes alike.",
        option="--class-weight",
        choices=("none", "balanced"),
    )
    epochs: int = parameter(
        default=70,
        constraint=integer(1),
        help="Passes over the samples of each task.",
        option="--epochs",
    )
    first_epochs: int | None = parameter(
        default=None,
        constraint=integer(1, or_none=True),
        help="Epochs of the first task, if it is to have others.",
    )
    batch_size: int = parameter(
        default=128, constraint=integer(2), help="Samples in a mini-batch.", option="--batch-size"
    )
    learning_rate: float = parameter(
        default=0.05,
        constraint=real(0, closed=False),
        help="Learning rate of the first epochs.",
        option="--learning-rate",
    )
    first_learning_rate: float | None = parameter(
        default=None,
        constraint=real(0, closed=False, or_none=True),
        help="Learning rate of the first task, if it is to have another: nothing is forgotten "
        "there.",
    )
    schedule: Literal["halving", "cosine"] = parameter(
        default="halving",
        help='How the learning rate falls. "cosine": up within one epoch, then down to 0 along a '
        "cosine.",
    )
    halve_at: Sequence[float] = parameter(
        default=(50 / 70, 60 / 70),
        constraint=milestones(),
        help='When "halving" halves the learning rate: epochs (ints) or fractions of all epochs '
        "(floats).",
    )
    momentum: float = parameter(default=0.9, constraint=real(0, 1), help="Momentum of SGD.")
    weight_decay: float = parameter(
        default=5e-4, constraint=real(0), help="Weight decay.", option="--weight-decay"
    )
    swa_epochs: int = parameter(
        default=0,
        constraint=integer(0),
        help="Epochs at the end over which weights are averaged (stochastic weight averaging). 0 "
        "takes them as they end.",
    )
    augment: Literal[
        "auto", "none", "crop", "crop+flip", "resized-crop+flip", "jitter+cutout", "cutmix"
    ] = parameter(
        default="auto",
        help='Augmentation of images. "jitter+cutout" is crop, flip, colour jitter and Cutout; '
        '"cutmix" adds CutMix in half of the mini-batches. Both are for long training: with 30 '
        'epochs, CIFAR-100 was learnt worse with "jitter+cutout". "auto": nothing for vectors '
        "and grey images under 28 pixels, crop for other grey images, crop and flip for colour.",
        option="--augment",
    )
    device: str | torch.device = parameter(
        default="auto", help='"auto" takes cuda, mps or cpu, the first that is there.'
    )
    precision: Literal["auto", "fp32", "bf16"] = parameter(
        default="auto", help='"auto" is bf16 on GPUs that compute in it, fp32 elsewhere.'
    )
    compile: Literal["auto", True, False] = parameter(
        default="auto",
        help="On a GPU the training step is captured as one CUDA graph, unless this is False. "
        'True also compiles the network, on any device; "auto" does so on a GPU where training '
        "is long.",
    )
    deterministic: bool = parameter(
        default=False,
        help="Whether a GPU, too, computes by algorithms that give the same bits each time. "
        "Where torch has no such algorithm, it warns.",
    )
    random_state: int | np.random.RandomState | None = parameter(
        default=None,
        help="Seed of all random numbers. An int makes results reproducible: bit by bit on a CPU "
        "with the same number of threads; a GPU needs `deterministic`, too.",
        option="--seed",
    )
    verbose: int = parameter(
        default=0, constraint=integer(0), help="1 shows progress on a terminal."
    )


class LMRCParameters(TrainingParameters):
    """The paper's: Label Mapping (Algorithm 1) and the Response Loss."""

    label_dim: int = parameter(
        default=100,
        constraint=integer(2),
        help="Dimension d of the label vectors.",
        option="--label-dim",
        fixed=True,
    )
    threshold: float = parameter(
        default=0.15,
        constraint=real(-1, 1, closed=False),
        help="Highest cosine T between two label vectors.",
        option="--threshold",
    )
    max_tries: int = parameter(
        default=10_000,
        constraint=integer(1),
        help="Failed candidates in a row, γ, after which Label Mapping gives up.",
    )
    on_full: Literal["relax", "raise"] = parameter(
        default="relax",
        help="When no more label vectors fit: raise the threshold in steps of 0.005, with a "
        "warning; or raise `lmrc.CapacityError`, as the paper's algorithm.",
    )
    response_weight: float = parameter(
        default=1.0,
        constraint=real(0),
        help="Weight λ of the Response Loss. 0 is LM: Label Mapping alone.",
        option="--response-weight",
    )


class LMRCPlusParameters(LMRCParameters):
    """What LMRC+ adds, and the defaults that it changes."""

    response_weight = parameter(default=3.0)
    epochs = parameter(
        default=60,
        help="Epochs of each task but the first: to train for shorter, give `first_epochs`, too.",
    )
    first_epochs = parameter(default=100)
    learning_rate = parameter(default=0.02)
    first_learning_rate = parameter(default=0.05)
    schedule = parameter(default="cosine")
    augment = parameter(
        default="auto",
        help='Augmentation of images, as in LMRC; but "auto" is "jitter+cutout" for colour '
        'images, and "cutmix" where a task has 1,500 mini-batches or more: with fewer, CutMix '
        "does harm.",
    )
    rotations: Literal["none", "one", "all"] = parameter(
        default="all",
        off="none",
        help='Learn square images in four rotations, each with label vectors of its own: "one" '
        'rotates each at random, "all" takes all four, for four times the work. Prediction takes '
        "all four.",
        option="--rotations",
        fixed=True,
    )
    objective: Literal["cosine", "softmax", "both"] = parameter(
        default="both",
        off="cosine",
        help="What a head minimises: the negative cosine to the sample's label vector (Eqs. 1, "
        "9), the cross-entropy over the cosines to all label vectors of the head that the class "
        "belongs to, or their sum. With exemplars the last two add a logit-adjusted "
        "cross-entropy over all heads.",
    )
    scale: float = parameter(
        default=16.0,
        constraint=real(0, closed=False),
        help="Logit scale: cosines are multiplied by it before a softmax.",
    )
    statistics: Literal["none", "shared", "low-rank", "full"] = parameter(
        default="low-rank",
        off="none",
        help="Class statistics of the features, drift-compensated after each task: means, and "
        "one covariance for all classes, or one for each, of low rank plus diagonal or whole. No "
        "image.",
        fixed=True,
    )
    feature_layers: Literal[1, 2] = parameter(
        default=2,
        off=1,
        help="How many of the network's last layers the features of the statistics come from. "
        "ResNets have two; other networks give one.",
        fixed=True,
    )
    predict_with: Literal["wta", "lda", "finetuned", "linear", "ensemble"] = parameter(
        default="ensemble",
        off="wta",
        help="Prediction rule: Winner-Take-All (Eq. 2); the linear discriminant of the "
        "statistics; Winner-Take-All by heads fine-tuned on pseudo-features (and on features of "
        "exemplars); a linear classifier that begins as the discriminant and is trained "
        "likewise; or the sum of the last two, each standardised, from three classes on: for two "
        'it is "finetuned". All but the first need `statistics`.',
    )
    test_time_flip: bool = parameter(
        default=True,
        off=False,
        help="Test-time augmentation: average over the image and its mirror image, for twice the "
        "work, where `augment` flips, and not elsewhere.",
    )
    exemplar_repeats: int = parameter(
        default=3, off=1, constraint=integer(1), help="How often each exemplar comes in an epoch."
    )


def switched_off() -> dict[str, Any]:
    """Return the parameters of LMRC+ with which it is LMRC, but for ``augment="auto"``."""
    off = {name: p.off for name, p in LMRCPlusParameters.parameters.items() if p.off is not None}
    return defaults(LMRCParameters) | off
