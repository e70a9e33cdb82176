"""The parameters of LMRC, of LMRC+, and those of training, which all methods share.

They are declared here and nowhere else: constructors, checks, the options of ``lmrc learn``, the
settings that pages show and the docstrings are made from them. Baselines declare theirs in the same
way, beside their losses. Needs neither torch nor NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lmrc.methods.parameters import (
    UNSET,
    Parameters,
    class_weights,
    defaults,
    integer,
    milestones,
    parameter,
    path,
    real,
    seed,
)

if TYPE_CHECKING:
    import os

    import numpy as np
    import torch
    from torch import nn

    from lmrc.nets.backbones import Factory


class TrainingParameters(Parameters):
    """What every method takes: network, exemplars, optimisation, computation."""

    epochs: int = parameter(
        default=70, constraint=integer(1), help="Epochs per task.", option="--epochs", trains=True
    )
    first_epochs: int | None = parameter(
        default=None,
        constraint=integer(1, or_none=True),
        help="Epochs of the first task; None: as `epochs`.",
        trains=True,
    )
    batch_size: int = parameter(
        default=128,
        constraint=integer(2),
        help="Samples per mini-batch.",
        option="--batch-size",
        trains=True,
    )
    learning_rate: float = parameter(
        default=0.05,
        constraint=real(0, closed=False),
        help="Initial learning rate.",
        option="--learning-rate",
        trains=True,
    )
    first_learning_rate: float | None = parameter(
        default=None,
        constraint=real(0, closed=False, or_none=True),
        help="Initial learning rate of the first task, which has nothing to forget; None: as "
        "`learning_rate`.",
        trains=True,
    )
    backbone: str | nn.Module | Factory = parameter(
        default="auto",
        help="Backbone network: auto (by the input's shape), identity, homogeneous (identity and a "
        "constant), mlp, cnn, resnet18, resnet34, resnet18-wide (twice the channels), or one that "
        "brings weights trained on ImageNet: efficientnet-lite0, efficientnet-lite1, "
        "efficientnet-lite2. Those have images resized to their own size, or to another: "
        "`efficientnet-lite0@160`. `hf:NAME_OR_FOLDER`, `timm:NAME` and `torchvision:NAME` load "
        "from these libraries. A module is copied and trained; a factory that has a parameter "
        "`input_shape` is given it. In LMRC+, auto is efficientnet-lite0 for colour images of 64 "
        "pixels a side or more, and homogeneous for vectors of nine features or more, which are "
        "features themselves, unless `freeze=False`, `weights` or `rotations` are given.",
        option="--backbone",
        fixed=True,
    )
    weights: str | os.PathLike[str] | None = parameter(
        default=None,
        constraint=path(),
        help="Safetensors file with initial weights of the backbone, such as a torchvision ResNet. "
        "Sets how inputs are normalised: colour images as ImageNet's.",
        option="--weights",
    )
    freeze: Literal[False, True, "later"] = parameter(
        default=False,
        help="Keep the backbone fixed. With pre-trained weights, the way to learn from few images: "
        "each passes through the backbone once, and the rest is learnt on its features, without "
        'augmentation. "later": fixed from the second task on, for a large first task and small '
        "later ones.",
        option="--freeze",
    )
    augment: Literal[
        "auto", "none", "crop", "crop+flip", "resized-crop+flip", "jitter+cutout", "cutmix"
    ] = parameter(
        default="auto",
        help='Augmentation of images. "jitter+cutout" is crop, flip, colour jitter and Cutout; '
        '"cutmix" adds CutMix in half of the mini-batches. Both are for long training: with 30 '
        'epochs, "jitter+cutout" lowered accuracy on CIFAR-100. "auto": none for vectors and grey '
        "images under 28 pixels, crop for other grey images, crop and flip for colour.",
        option="--augment",
        trains=True,
    )
    memory_per_class: int = parameter(
        default=0,
        constraint=integer(0),
        help="Exemplars to store per class. 0 is exemplar-free. If it is lowered, surplus "
        "exemplars are deleted before the next task.",
        option="--memory-per-class",
    )
    memory_total: int = parameter(
        default=0,
        constraint=integer(0),
        help="Exemplars to store in total, instead of `memory_per_class`. The same number per "
        "class, fewer as classes arrive.",
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
        help='Weight of each class in the loss. "balanced": all classes have the same total '
        "weight, whatever their number of samples. A dict gives weights by label, 1 for others; "
        "only their ratios matter. Some may be for future classes, but not all. Class statistics "
        "are not weighted.",
        option="--class-weight",
        choices=(None, "balanced"),
        trains=True,
    )
    schedule: Literal["halving", "cosine"] = parameter(
        default="halving",
        help='Learning-rate schedule. "cosine": linear warm-up over one epoch, then cosine '
        "decay to 0.",
        trains=True,
    )
    halve_at: Sequence[float] = parameter(
        default=(50 / 70, 60 / 70),
        constraint=milestones(),
        help='When "halving" halves the learning rate: epochs (ints) or fractions of all epochs '
        "(floats).",
        trains=True,
    )
    momentum: float = parameter(
        default=0.9, constraint=real(0, 1), help="Momentum of SGD.", trains=True
    )
    weight_decay: float = parameter(
        default=5e-4,
        constraint=real(0),
        help="Weight decay of SGD.",
        option="--weight-decay",
        trains=True,
    )
    random_state: int | np.random.RandomState | None = parameter(
        default=None,
        constraint=seed(),
        help="Seed of all random numbers. An int makes results reproducible: bit for bit on a CPU "
        "with the same number of threads; a GPU needs `deterministic`, too.",
        option="--seed",
    )
    device: str | torch.device = parameter(
        default="auto",
        help='Device to compute on. "auto" is the first available of cuda, mps, cpu.',
    )
    precision: Literal["auto", "fp32", "bf16"] = parameter(
        default="auto",
        help='Precision of training. "auto" is bf16 on GPUs that support it, fp32 elsewhere.',
    )
    compile: Literal["auto", True, False] = parameter(
        default="auto",
        help="Whether to compile the network. On a GPU the training step is captured as one CUDA "
        'graph, unless this is False. True compiles on any device; "auto" on a GPU if training is '
        "long.",
    )
    deterministic: bool = parameter(
        default=False,
        help="Use deterministic algorithms on a GPU, too. torch warns if it has none for an "
        "operation.",
    )
    verbose: int = parameter(
        default=0, constraint=integer(0), help="1 shows a progress bar on a terminal."
    )


class LMRCParameters(TrainingParameters):
    """The paper's: Label Mapping (Algorithm 1) and the Response Loss."""

    response_weight: float = parameter(
        default=1.0,
        constraint=real(0),
        help="Weight λ of the Response Loss. 0 is LM: Label Mapping alone.",
        option="--response-weight",
        trains=True,
    )
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
        help="Maximum cosine T between two label vectors.",
        option="--threshold",
    )
    on_full: Literal["relax", "raise"] = parameter(
        default="relax",
        help="When no more label vectors fit: raise the threshold in steps of 0.005, with a "
        "warning; or raise `lmrc.CapacityError`, as the paper's algorithm.",
    )
    max_tries: int = parameter(
        default=10_000,
        constraint=integer(1),
        help="Failed candidates in a row, γ, after which Label Mapping gives up.",
    )


class LMRCPlusParameters(LMRCParameters):
    """What LMRC+ adds, and the defaults that it changes."""

    freeze: Literal["auto", False, True, "later"] = parameter(  # type: ignore[assignment]
        default="auto",
        help="Keep the backbone fixed: each image passes through it once, and the rest is learnt "
        "on its features, without augmentation; class statistics are exact, and nothing is "
        'forgotten. "auto": if the backbone brings its weights. False: it learns, from scratch or '
        'from its weights. "later": fixed from the second task on; a pre-trained backbone is '
        "adapted before the first task is learnt.",
    )
    rotations: Literal["auto", "none", "one", "all"] = parameter(
        default="auto",
        off="none",
        help='Train on four rotations of square images, each with its own label vectors. "one" '
        'rotates each image at random; "all" uses all four, for four times the computation. '
        'Prediction uses all four. "auto": "all" for square images; "none" for others, for '
        'vectors, and with a frozen backbone. Use "none" where classes differ by orientation.',
        option="--rotations",
        fixed=True,
    )
    objective: Literal["cosine", "softmax", "both"] = parameter(
        default="both",
        off="cosine",
        help="Loss of a head: the negative cosine to the sample's label vector (Eqs. 1, "
        "9), the cross-entropy over the cosines to all label vectors of the head that the class "
        "belongs to, or their sum. With exemplars the last two add a logit-adjusted "
        "cross-entropy over all heads.",
        trains=True,
    )
    scale: float = parameter(
        default=16.0,
        constraint=real(0, closed=False),
        help="Logit scale: cosines are multiplied by it before a softmax.",
        trains=True,
    )
    statistics: Literal["none", "shared", "low-rank", "full"] = parameter(
        default="low-rank",
        off="none",
        help="Class statistics of the features, drift-compensated after each task. Means and one "
        "shared covariance, or one covariance per class: low rank plus diagonal, or full. No "
        "images are stored.",
        fixed=True,
    )
    feature_layers: Literal[1, 2] = parameter(
        default=2,
        off=1,
        help="Number of last layers whose features the class statistics use. ResNets have two; "
        "EfficientNet-Lite adds the features of its last two blocks; other networks have one.",
        fixed=True,
    )
    join_rotations: bool = parameter(
        default=True,
        off=False,
        help="Keep class statistics of all four rotations of an image as one vector, so that "
        "prediction knows how their features vary together. Low-rank statistics then share what "
        'is left beside each class\'s directions. Not for "full", which would take 16 times the '
        "space. Without rotations it changes nothing.",
        fixed=True,
    )
    keep_encoders: bool = parameter(
        default=True,
        off=False,
        help="Keep the networks of earlier tasks, in half precision, to compensate feature drift "
        "more accurately. With each task learning gets slower and the model's folder larger; "
        'prediction uses the newest network only, but with `predict_with="snapshots"`. No images '
        "are stored. For a backbone that learns.",
    )
    predict_with: Literal[
        "auto", "wta", "lda", "finetuned", "linear", "ensemble", "snapshots", "ncm", "ridge"
    ] = parameter(
        default="auto",
        off="wta",
        help='Prediction rule. "wta": Winner-Take-All (Eq. 2); "lda": the linear discriminant of '
        'the statistics; "finetuned": Winner-Take-All by heads fine-tuned on pseudo-features '
        '(and on features of exemplars); "linear": a linear classifier that begins as the '
        'discriminant and is trained likewise; "ensemble": the sum of the last two, each '
        'standardised, from three classes on (for two it is "finetuned"); "snapshots": the '
        "ensemble and, with half its weight each, linear classifiers on the features of "
        "earlier networks (`keep_encoders`), which takes as many times the computation as "
        'there are tasks; "ncm": the nearest class mean, by cosine; "ridge": a ridge '
        'regression on random projections of the features of a frozen backbone. "auto": '
        '"ridge" if the backbone is frozen from the first task on, else "ensemble". All but '
        '"wta" need `statistics`.',
    )
    projections: int = parameter(
        default=4000,
        constraint=integer(1),
        help='Random projections of the features for "ridge". Its statistics grow with the images, '
        "up to 2 · (2 · features + projections)² bytes.",
        fixed=True,
    )
    adaptation_epochs: int = parameter(
        default=8,
        constraint=integer(0),
        help="Epochs for which a pre-trained backbone is adapted to the first task with "
        '`freeze="later"`, before it is frozen. Its features are used beside those of the '
        "pre-trained one. 0: not adapted.",
        trains=True,
    )
    members: int = parameter(
        default=1,
        constraint=integer(1),
        help="Networks of an ensemble: they differ in their seeds, and their scores are averaged, "
        "standardised for each image. Time and size grow with their number. For a backbone that "
        "learns.",
        option="--members",
        fixed=True,
    )
    calibration_share: float = parameter(
        default=0.0,
        constraint=real(0, 0.5),
        help="Share of each class's images that training leaves out, to calibrate probabilities "
        "and the score for unknown images on them: 0.05, say. 0: a backbone that learns has "
        "neither. A frozen one has both without it: there each image is scored by statistics of "
        "the others.",
        option="--calibration-share",
    )
    test_time_flip: bool = parameter(
        default=True,
        off=False,
        help="Test-time augmentation: average over the image and its horizontal flip, for "
        "twice the computation. Only if `augment` includes flips.",
    )
    strong_augment: bool = parameter(
        default=True,
        off=False,
        help='Let `augment="auto"` be "jitter+cutout" for colour images, and "cutmix" for tasks '
        "with 2,000 mini-batches or more; with fewer, CutMix lowers accuracy.",
        trains=True,
    )
    exemplar_repeats: int = parameter(
        default=3,
        off=1,
        constraint=integer(1),
        help="How often each exemplar is used per epoch.",
        trains=True,
    )
    epochs = parameter(
        default=60,
        help="Epochs per task after the first. For shorter training, lower `first_epochs`, too.",
    )
    first_epochs = parameter(default=100)
    learning_rate = parameter(default=0.02)
    first_learning_rate = parameter(default=0.05)
    schedule = parameter(default="cosine")
    response_weight = parameter(default=3.0)


def switched_off() -> dict[str, Any]:
    """Return the parameters of LMRC+ with which it is LMRC."""
    return defaults(LMRCParameters) | extensions_off()


def extensions_off() -> dict[str, Any]:
    """Return the extensions of LMRC+, each with the value that switches it off."""
    return {n: p.off for n, p in LMRCPlusParameters.parameters.items() if p.off is not UNSET}
