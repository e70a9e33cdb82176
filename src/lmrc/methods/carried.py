"""Statistics of the classes' features in a classifier: kept, carried along, predicted by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmrc.methods.base import IncrementalClassifier
from lmrc.methods.rng import FORGET, KEEP
from lmrc.nets.network import Encoder, Network, on_device
from lmrc.statistics import prediction_rules
from lmrc.statistics.classes import ClassStatistics
from lmrc.statistics.keep import update_statistics
from lmrc.training.augment import flips
from lmrc.training.device import default_dtype_guard
from lmrc.training.memory import Memory
from lmrc.training.rotations import N_ROTATIONS, all_rotations


class CarriedStatistics(IncrementalClassifier):
    """A classifier with one head per task that may keep statistics, and predict by them.

    Fitted attributes
    -----------------
    statistics_, classifiers_ : dict of Tensor
        What is kept of the classes' features, and what `predict` makes of it; empty where
        ``statistics`` is "none".
    """

    statistics: str
    feature_layers: int
    predict_with: str
    test_time_flip: bool
    scale: float
    label_dim: int
    labels_: dict[str, Tensor]  # "vectors": the label vectors, (classes[, rotations], dim)
    statistics_: dict[str, Tensor]
    classifiers_: dict[str, Tensor]

    saved_tensors: ClassVar[tuple[str, ...]] = ("labels_", "statistics_", "classifiers_")

    @property
    def turns(self) -> int | None:
        """Turns in which images are learnt and looked at; None where they are not turned."""
        return None if self.rotations == "none" else N_ROTATIONS

    @property
    def _mirrored(self) -> bool:  # whether mirror images are looked at: only where they were learnt
        return self.test_time_flip and flips(self.augmentation)

    @property
    def looks(self) -> int:  # type: ignore[override]  # others have a number
        """How often the network looks at each image: in all turns, and mirrored."""
        return (self.turns or 1) * (1 + self._mirrored)

    @property
    def answers(self) -> int:  # type: ignore[override]  # others have a number
        """How many values all heads answer with."""
        return len(self.heads_) * self.label_dim

    @property
    def _sizes(self) -> list[int]:  # classes that each head governs
        return [len(head) for head in getattr(self, "heads_", ())]

    @property
    def _pooled(self) -> list[bool]:  # of each head, whether the pool holds all of its classes
        stored = self.memory_.classes if self.memory_ else frozenset()  # asked at every step
        ends = np.cumsum(self._sizes).tolist()
        return [stored.issuperset(range(e - n, e)) for n, e in zip(self._sizes, ends, strict=True)]

    def after_task(self, network: Network, samples: Memory) -> None:
        """Carry the statistics to where the features are now, and add those of the new classes."""
        if self.statistics == "none":
            self.statistics_, self.classifiers_ = {}, {}
            return
        batch, pool = samples.split(len(samples) - len(self.memory_ or ()))
        width, old = self._width(network), None
        before = ClassStatistics.empty(self.statistics, self.turns or 1, width)
        if self.n_tasks_:
            before = self._class_statistics()
            old = on_device(network.encoder.mean.device, self.network_).encoder
        tuned = self.predict_with not in ("wta", "lda")
        self._predict_by(before, old, network, batch, pool, KEEP, tuned)

    def forget_statistics(self, row: int) -> None:
        """Take out a class's statistics, and make anew what `predict` makes of the others'.

        To leave out its rows would not do: those of the others tell of it, as they were fitted
        to tell it from them.
        """
        network = self.network_
        pool = self.memory_ or Memory.empty(torch.zeros(0, *self.input_shape_))
        rest = self._class_statistics().without(row)
        tuned = "head_weight" in self.classifiers_
        self._predict_by(rest, None, network, Memory.empty(pool.x), pool, FORGET, tuned)

    def _predict_by(
        self,
        before: ClassStatistics,
        old: Encoder | None,
        network: Network,
        batch: Memory,
        pool: Memory,
        purpose: int,
        tuned: bool,
    ) -> None:
        """Set statistics and what `predict` makes of them; parameters as `update_statistics`."""
        chance = torch.Generator().manual_seed(self._seed(purpose))
        statistics, non_negative, real = update_statistics(
            before,
            old,
            network.encoder,
            batch,
            pool,
            layers=self.feature_layers,
            augment=self.augmentation,
            rotated=self.turns is not None,
            generator=chance,
            tuned=tuned,
        )
        if not len(batch):  # and maybe no exemplars: no image tells
            non_negative = self._rectified(network, chance)
        self.statistics_ = statistics.tensors()
        if tuned:
            self.classifiers_ = prediction_rules.tune(
                network.head,
                self._vectors_of(network.head.weight.device),
                statistics,
                self._sizes,
                scale=self.scale,
                non_negative=non_negative,
                real=real,
                generator=chance,
            )
        else:
            self.classifiers_ = prediction_rules.discriminant(statistics)

    def scores_by(self, rules: Sequence[str], network: Network, x: Tensor) -> dict[str, Tensor]:
        """Return the scores of some prediction rules: (n, n_classes) each."""
        inputs = torch.cat([x, x.flip(-1)]) if self._mirrored else x
        inputs = inputs if self.turns is None else all_rotations(inputs)
        features = network.encoder.features(inputs, self.feature_layers)
        features = features.view(self.turns or 1, -1, features.shape[-1])
        kept = getattr(self, "classifiers_", {})  # Winner-Take-All needs nothing
        looks = 1 + self._mirrored
        vectors = self._vectors_of(features.device)
        return prediction_rules.scores_by(
            rules, network.head, vectors, features, self._sizes, kept, looks
        )

    def _vectors_of(self, device: torch.device) -> Tensor:
        """Return the label vectors as (classes, rotations, dim)."""
        vectors = self.labels_["vectors"].to(device)
        return vectors if vectors.ndim == 3 else vectors[:, None]

    @property
    def prediction_rules_(self) -> tuple[str, ...]:
        """Values of ``predict_with`` for which the model keeps what they need.

        Without ``statistics`` that is "wta" alone. All others are there where a task is
        learnt with one of "finetuned", "linear" and "ensemble".
        """
        check_is_fitted(self)
        return prediction_rules.possible(self.classifiers_)

    def check_prediction_rule(self) -> None:
        """Refuse, with a ValueError, a ``predict_with`` that is none of ``prediction_rules_``."""
        prediction_rules.check_possible((self.predict_with,), self.classifiers_)

    @default_dtype_guard()
    def similarities_by_rule(self, X: Any) -> dict[str, NDArray[np.float32]]:
        """Return the similarities by each of ``prediction_rules_``, from one forward pass."""
        now = self._as_it_is()
        rules = now.prediction_rules_

        def scores(network: Network, x: Tensor) -> Tensor:
            return torch.stack([*now.scores_by(rules, network, x).values()], dim=1)

        by_rule = np.concatenate(list(now._score_parts(X, scores)))  # (n, rules, n_classes)
        return {rule: by_rule[:, i] for i, rule in enumerate(rules)}

    def check_saved(self) -> None:
        """Refuse statistics that are not of these classes and features."""
        if self.statistics == "none":
            if self.statistics_ or self.classifiers_:
                raise ValueError("it holds statistics, which its settings say it has not")
            return
        statistics, head = self._class_statistics(), self.network_.head
        statistics.check(len(self.classes_), self.turns or 1, self._width(self.network_))
        prediction_rules.check(self.classifiers_, statistics, head)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.predict_with != "wta" and self.statistics == "none":
            raise ValueError(
                f"{type(self).__name__}: predict_with={self.predict_with!r} goes by statistics of "
                "the features, and statistics='none' keeps none: set it to 'low-rank', say"
            )

    def _rectified(self, network: Network, generator: torch.Generator) -> bool:
        """Tell whether features end in a ReLU, by noise in place of images."""
        encoder = network.encoder
        noise = torch.randn(64, *self.input_shape_, generator=generator).to(encoder.mean.device)
        with torch.no_grad():
            features = encoder.features(encoder.mean + noise * encoder.std, self.feature_layers)
        return bool(features.min() >= 0)

    def _width(self, network: Network) -> int:
        """Return the number of features that statistics are of."""
        last: int = network.head.weight.shape[-1]
        return network.encoder.width_before(self.feature_layers) + last

    def _class_statistics(self) -> ClassStatistics:
        return ClassStatistics.from_tensors(self.statistics, self.statistics_)
