"""LMRC: Label Mapping with Response Consolidation. LM is LMRC with λ = 0."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmrc.data.inputs import Inputs
from lmrc.methods import parameters as legal
from lmrc.methods.amending import AmendableClasses
from lmrc.methods.base import IncrementalClassifier
from lmrc.methods.label_vectors import LabelVectors
from lmrc.methods.objectives import OBJECTIVES, Setting
from lmrc.methods.parameters import Legal
from lmrc.methods.rng import LABELS
from lmrc.nets.backbones import Factory
from lmrc.nets.multihead import MultiHead
from lmrc.nets.network import Network
from lmrc.statistics import prediction_rules
from lmrc.statistics.covariances import COVARIANCES
from lmrc.training.batches import MiniBatch
from lmrc.training.loop import EpochRecord
from lmrc.training.memory import Memory
from lmrc.training.rotations import ROTATIONS
from lmrc.training.step import Losses


class LMRCClassifier(AmendableClasses):
    """Label Mapping with Response Consolidation.

    Every class has a random unit vector, its label vector. Every task gets a head of its
    own, trained to answer with the label vector of the sample's class (New Classes Loss), while
    the older heads are held to what they answered before (Response Loss). At prediction all heads
    answer, and the class whose label vector is nearest to its own head's response wins.

    There is no ``predict_proba``: a similarity says how near a response is to a label vector, one
    class at a time. Nothing in the training makes these numbers add up to one or agree with
    frequencies, and a softmax over them would bring back the very suppression of old classes that
    the method avoids. Rank with ``similarities``, or calibrate on data of all classes.

    Parameters
    ----------
    backbone : str, nn.Module or factory, default="auto"
        "mlp", "cnn", "resnet18", "resnet34", "resnet18-wide" (twice the channels), or "auto": by
        the input's shape. A module is copied and trained; a factory that has a parameter
        ``input_shape`` is given it.
    label_dim : int, default=100
        Dimension d of the label vectors.
    threshold : float, default=0.15
        Highest cosine T between two label vectors.
    max_tries : int, default=10_000
        Failed candidates in a row, γ, after which Label Mapping gives up.
    on_full : {"relax", "raise"}, default="relax"
        When no more vectors fit: raise the threshold in steps of 0.005, with a warning; or raise
        `lmrc.CapacityError`, as the paper's algorithm.
    response_weight : float, default=1.0
        Weight λ of the Response Loss. 0 is LM: Label Mapping alone.
    rotations : {"none", "one", "all"}, default="none"
        Learn square images in quarter turns, each class with a label vector for every turn: "one"
        turns each by chance, "all" takes all four, for four times the work. Prediction takes four.
    objective : {"cosine", "softmax", "both"}, default="cosine"
        What a head minimises: the negative cosine to the sample's label vector (Eqs. 1, 9), the
        cross-entropy over the cosines to all label vectors of the governing head, or their sum.
        With ``memory_per_class`` the last two add a cross-entropy over those of all heads.
    scale : float, default=16.0
        What cosines are multiplied with before a softmax.
    statistics : {"none", "shared", "low-rank", "full"}, default="none"
        What is kept of the classes' features, and carried along as they move: means, and one
        covariance for all classes, or one for each, of low rank plus diagonal or whole. No image.
    feature_layers : {1, 2}, default=1
        Of how many of the network's last layers the features are that statistics are of. Two are
        to be had of the ResNets; other networks give one.
    predict_with : {"wta", "lda", "finetuned", "linear", "ensemble"}, default="wta"
        Winner-Take-All (Eq. 2); the linear discriminant of the statistics; Winner-Take-All by
        copies of the heads tuned on features made up from the statistics (and on those of images
        kept by ``memory_per_class``); a linear classifier that begins as the discriminant and is
        tuned as the heads are; or the sum of the last two, each standardised, from three classes
        on: for two it is "finetuned". All but the first need ``statistics``.
    test_time_flip : bool, default=False
        Look at mirror images, too, when predicting, for twice the work: where ``augment`` has them
        learnt, and not elsewhere.
    memory_per_class : int, default=0
        Samples of each class kept for rehearsal. 0 keeps none. Where it is lowered, the others are
        dropped before the next task is learnt.
    memory_total : int, default=0
        Instead of ``memory_per_class``: samples of all classes together, the same number of each,
        fewer as classes arrive.
    exemplars : {"random", "herding"}, default="random"
        How these samples are chosen. "herding": so that the mean of their features is near the
        class's (iCaRL, Rebuffi et al., CVPR 2017). Another choice is a method of your own:
        ``choose_exemplars``.
    exemplar_repeats : int, default=1
        How often each of these samples comes in an epoch.
    class_weight : {"balanced", None} or dict, default=None
        "balanced": each class at hand counts alike, however few samples it has. A dict gives the
        weights of labels, 1 for those that are not in it; only their ratios matter. Some may be of
        classes yet to come, but not all. Statistics take all classes alike.
    weights : path or None, default=None
        A safetensors file to start the backbone from at the first task, such as that of a
        torchvision ResNet. Sets how inputs are normalised: colour images as ImageNet's.
    freeze : {False, True, "later"}, default=False
        Leave the backbone as it is and train the heads alone: with good `weights`, the way to
        learn from few images. "later": from the second task on, for many classes at first
        and then a few at a time.
    epochs : int, default=70
    first_epochs : int or None, default=None
        Epochs of the first task, if it is to have others: the later ones build on it.
    batch_size : int, default=128
    learning_rate : float, default=0.05
    first_learning_rate : float or None, default=None
        That of the first task, if it is to have another: nothing is lost there.
    schedule : {"halving", "cosine"}, default="halving"
        "cosine": up within one epoch, then down to 0 along a cosine.
    halve_at : tuple, default=(50/70, 60/70)
        When "halving" halves the learning rate: epochs (ints) or fractions of all epochs (floats).
    momentum : float, default=0.9
    weight_decay : float, default=5e-4
    swa_epochs : int, default=0
        Epochs at the end over which weights are averaged. 0 takes them as they end.
    augment : str, default="auto"
        "none", "crop", "crop+flip", "resized-crop+flip", "jitter+cutout" (crop, flip, colour
        jitter and Cutout) or "cutmix": that, and CutMix in about half of the mini-batches.
        Both are for long training: with 30 epochs, CIFAR-100 was learnt worse with "jitter+cutout".
        "auto": nothing for vectors and grey images under 28 pixels, crop for other grey images,
        crop and flip for colour.
    device : str or torch.device, default="auto"
        "auto" takes cuda, mps or cpu, the first that is there.
    precision : {"auto", "fp32", "bf16"}, default="auto"
        "auto" is bf16 on GPUs that compute in it, fp32 elsewhere.
    compile : {"auto", True, False}, default="auto"
        On a GPU the training step is captured as one CUDA graph, unless this is False. True also
        compiles the network, on any device; "auto" does so on a GPU where training is long.
    deterministic : bool, default=False
        Whether a GPU, too, computes by algorithms that give the same bits each time, and not by
        those that were fastest when tried. Where torch has no such algorithm, it warns.
    random_state : int, RandomState or None, default=None
        An int makes results repeatable: bit by bit on a CPU with the same number of threads; a GPU
        needs ``deterministic``, too.
    verbose : int, default=0
        1 shows progress on a terminal.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Class labels in order of arrival, sorted within a task.
    heads_ : list of arrays
        The classes that each head governs.
    label_vectors_ : array of shape (n_classes, label_dim) or (n_classes, 4, label_dim)
        Label vectors, rows as ``classes_``, with ``rotations`` one for each turn. They never move.
    threshold_ : float
        The threshold in force: higher than ``threshold`` once the mapping was relaxed. With
        ``rotations`` each head has a mapping of its own, and this is the highest.
    statistics_, classifiers_ : dict of Tensor
        What is kept of the classes' features, and what `predict` makes of it.
    input_shape_ : tuple of int
        (features,) or (channels, height, width).
    history_ : list of dict
        Per epoch: task, learning rate, and the loss terms as minimised; the share of
        mini-batches with pieces of other images, where there are any.
    network_ : nn.Module
        The network, in evaluation mode. Takes raw inputs, returns (batch, heads, label_dim).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from lmrc import LMRCClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = LMRCClassifier(random_state=0)
    >>> clf.partial_fit(X[y < 2], y[y < 2]).classes_
    array([0, 1])
    >>> clf.partial_fit(X[y == 2], y[y == 2]).classes_  # the other classes' data is gone
    array([0, 1, 2])
    """

    predict_is_argmax = True  # of `similarities`, too
    shaping_parameters: ClassVar[tuple[str, ...]] = (
        *IncrementalClassifier.shaping_parameters,
        *("label_dim", "rotations", "statistics", "feature_layers"),
    )
    saved_values: ClassVar[tuple[str, ...]] = (*IncrementalClassifier.saved_values, "threshold_")
    legal_values: ClassVar[dict[str, Legal]] = IncrementalClassifier.legal_values | {
        "label_dim": legal.integer(2),
        "threshold": legal.real(-1, 1, closed=False),
        "max_tries": legal.integer(1),
        "on_full": legal.one_of("relax", "raise"),
        "response_weight": legal.real(0),
        "rotations": legal.one_of(*ROTATIONS),
        "objective": legal.one_of(*OBJECTIVES),
        "scale": legal.real(0, closed=False),
        "statistics": legal.one_of("none", *COVARIANCES),
        "feature_layers": legal.one_of(1, 2),
        "predict_with": legal.one_of(*prediction_rules.RULES),
        "test_time_flip": legal.one_of(True, False),
        "exemplar_repeats": legal.integer(1),
    }

    def __init__(
        self,
        *,
        backbone: str | nn.Module | Factory = "auto",
        label_dim: int = 100,
        threshold: float = 0.15,
        max_tries: int = 10_000,
        on_full: Literal["relax", "raise"] = "relax",
        response_weight: float = 1.0,
        rotations: Literal["none", "one", "all"] = "none",
        objective: Literal["cosine", "softmax", "both"] = "cosine",
        scale: float = 16.0,
        statistics: Literal["none", "shared", "low-rank", "full"] = "none",
        feature_layers: Literal[1, 2] = 1,
        predict_with: Literal["wta", "lda", "finetuned", "linear", "ensemble"] = "wta",
        test_time_flip: bool = False,
        memory_per_class: int = 0,
        memory_total: int = 0,
        exemplars: Literal["random", "herding"] = "random",
        exemplar_repeats: int = 1,
        class_weight: Mapping[Any, float] | str | None = None,
        weights: str | os.PathLike[str] | None = None,
        freeze: bool | Literal["later"] = False,
        epochs: int = 70,
        first_epochs: int | None = None,
        batch_size: int = 128,
        learning_rate: float = 0.05,
        first_learning_rate: float | None = None,
        schedule: Literal["halving", "cosine"] = "halving",
        halve_at: Sequence[float] = (50 / 70, 60 / 70),
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        swa_epochs: int = 0,
        augment: str = "auto",
        device: str | torch.device = "auto",
        precision: str = "auto",
        compile: bool | str = "auto",  # noqa: A002  # torch's own name for it
        deterministic: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            backbone=backbone,
            memory_per_class=memory_per_class,
            memory_total=memory_total,
            exemplars=exemplars,
            class_weight=class_weight,
            weights=weights,
            freeze=freeze,
            epochs=epochs,
            first_epochs=first_epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            first_learning_rate=first_learning_rate,
            schedule=schedule,
            halve_at=halve_at,
            momentum=momentum,
            weight_decay=weight_decay,
            swa_epochs=swa_epochs,
            augment=augment,
            device=device,
            precision=precision,
            compile=compile,
            deterministic=deterministic,
            random_state=random_state,
            verbose=verbose,
        )
        self.label_dim = label_dim
        self.threshold = threshold
        self.max_tries = max_tries
        self.on_full = on_full
        self.response_weight = response_weight
        self.rotations = rotations
        self.objective = objective
        self.scale = scale
        self.statistics = statistics
        self.feature_layers = feature_layers
        self.predict_with = predict_with
        self.test_time_flip = test_time_flip
        self.exemplar_repeats = exemplar_repeats

    def make_head(self, width: int, n_heads: int = 0, n_classes: int = 0) -> MultiHead:
        """Return normalised linear heads."""
        return MultiHead(width, self.label_dim, n_heads)

    def expand(self, network: Network, n_new: int) -> None:
        """Open a head for the new classes and draw their label vectors (Algorithm 1)."""
        draw = LabelVectors(
            self.label_dim, self.threshold, self.max_tries, self.on_full, self._seed(LABELS)
        )
        in_force = getattr(self, "threshold_", self.threshold)
        known = self.labels_["vectors"] if hasattr(self, "labels_") else None
        if self.turns is None:
            vectors, self.threshold_ = draw.beside(known, n_new, in_force)
        else:
            vectors, self.threshold_ = draw.for_turns(n_new, self.turns, in_force)
        vectors = vectors.to(network.head.weight)
        if known is not None:  # earlier ones never move
            vectors = torch.cat([known.to(vectors), vectors])
        self.labels_ = {"vectors": vectors}
        network.head.add_head()

    def init_network(self, frozen: Network | None, x: Inputs) -> Network:
        """Return the network to train; bring the label vectors to where it is."""
        if frozen is not None:
            self.labels_ = {"vectors": self.labels_["vectors"].to(frozen.head.weight.device)}
        return super().init_network(frozen, x)

    @property
    def needs_old_outputs(self) -> bool:  # type: ignore[override]
        """Whether there is a Response Loss."""
        return self.response_weight > 0

    def losses(self, outputs: Tensor, old_outputs: Tensor | None, batch: MiniBatch) -> Losses:
        """Return the terms of Eq. 8, or of Eq. 10 where samples of known classes are at hand."""
        o = outputs  # (n, heads, dim), unit vectors
        k = sum(end <= batch.n_known for end in itertools.accumulate(self._sizes))  # old heads
        # Split once: backward that is one kernel, where slices would be filled up with zeros.
        old, new = torch.split(o, [k, o.shape[1] - k], dim=1)
        vectors = self._vectors_of(o.device).flatten(0, 1)
        setting = Setting(vectors, self._sizes, self._pooled[:k], self.scale)
        terms = dict(OBJECTIVES[self.objective](old, new, batch, setting))  # Eqs. 1, 9
        if old_outputs is not None:  # (n, k, dim): the response vectors, Eq. 6
            response = (old * old_outputs).sum(dim=(1, 2))
            terms["response"] = -self.response_weight * response  # Eq. 7
        return terms

    def _train(
        self, network: Network, before: Network | None, samples: Memory, n_known: int
    ) -> Iterator[EpochRecord]:
        if self.memory_:
            for _ in range(self.exemplar_repeats - 1):
                samples = self.memory_.joined(samples.x, samples.y)
        return super()._train(network, before, samples, n_known)

    def scores(self, network: Network, x: Tensor) -> Tensor:
        """Return the similarity of each class's label vector to its head's response (Eq. 2).

        Or what ``predict_with`` makes of the statistics; see `lmrc.statistics.prediction_rules`.
        """
        return self.scores_by((self.predict_with,), network, x)[self.predict_with]

    def similarities(self, X: Any) -> NDArray[np.float32]:
        """Return the cosine of each class's label vector to its head's response.

        Where ``predict_with`` is not "wta", the scores that it goes by: standardised for each
        sample with "lda", "linear" and "ensemble", from three classes on.

        Parameters
        ----------
        X : array, tensor or torch Dataset
            As in `partial_fit`.

        Returns
        -------
        array of shape (n, n_classes)
            Columns as ``classes_``; cosines are in −1 … 1. `predict` takes the highest (Eq. 3).
        """
        return self._all_scores(X)

    def check_saved(self) -> None:
        """Refuse a threshold that is no number, and statistics that are not of these classes."""
        super().check_saved()
        of_each = () if self.turns is None else (self.turns,)
        wanted = (len(self.classes_), *of_each, self.label_dim)
        vectors = self.labels_.get("vectors", torch.zeros(0))
        if tuple(vectors.shape) != wanted or vectors.dtype != torch.float32:
            raise ValueError(f"its label vectors are not of shape {wanted} in float32")
        if not self.legal_values["threshold"].test(self.threshold_):
            raise ValueError(f"its threshold is {self.threshold_!r}")

    @property
    def label_vectors_(self) -> NDArray[np.float32]:
        """Label vectors, rows as ``classes_``."""
        if "network_" not in vars(self):
            raise AttributeError("label_vectors_ is there once a task has been learnt")
        return np.array(self.labels_["vectors"].cpu().numpy())
