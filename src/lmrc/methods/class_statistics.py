"""Class statistics of the features: updated after each task, and predicted by (LMRC+)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmrc.methods.declared import LMRCPlusParameters
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.methods.rng import FORGET, STATISTICS
from lmrc.nets.network import Encoder, Network, on_device
from lmrc.statistics import prediction_rules
from lmrc.statistics.classes import ClassStatistics
from lmrc.statistics.update import update_statistics
from lmrc.training.augment import flips
from lmrc.training.device import default_dtype_guard
from lmrc.training.features import features_of, on_features
from lmrc.training.memory import Memory
from lmrc.training.rotations import N_ROTATIONS, all_rotations, is_square


class WithClassStatistics(LMRCPlusParameters, LMRCClassifier):
    """LMRC that may keep class statistics, drift-compensated, and predict by them.

    Attributes
    ----------
    statistics_, classifiers_ : dict of Tensor
        Class statistics of the features, and what the prediction rules are made of; empty where
        ``statistics`` is "none".
    """

    predict_is_argmax = True
    saved_tensors: ClassVar[tuple[str, ...]] = ("labels_", "statistics_", "classifiers_")

    @property
    def _rotations(self) -> str:
        """What ``rotations`` comes to: as at the first task, which gave label vectors their shape.

        "auto" is "all" for square images, if the backbone learns.
        """
        if self.rotations != "auto":
            return str(self.rotations)
        if hasattr(self, "labels_"):
            return "all" if self.labels_["vectors"].ndim == 3 else "none"
        return "all" if is_square(self.input_shape_) and self.freeze is not True else "none"

    @property
    def _feature_layers(self) -> int:
        return int(self.feature_layers)

    @property
    def _n_rotations(self) -> int:
        return 1 if self._rotations == "none" else N_ROTATIONS

    @property
    def _flips(self) -> bool:  # only where mirror images are learnt, too
        return self.test_time_flip and flips(self.augmentation_)

    @property
    def _forward_passes(self) -> int:  # of each image
        return self._n_rotations * (1 + self._flips)

    def after_task(self, network: Network, samples: Memory) -> None:
        """Compensate the statistics for feature drift, and add those of the new classes."""
        if self.statistics == "none":
            self.statistics_: dict[str, Tensor] = {}
            self.classifiers_: dict[str, Tensor] = {}
            return
        task, exemplars = samples.split(len(samples) - len(self.memory_ or ()))
        width, old = self._width(network), None
        before = ClassStatistics.empty(self.statistics, self._n_rotations, width)
        if self.n_tasks_:
            before = self._class_statistics()
            if not network.encoder.is_frozen:
                old = on_device(network.encoder.mean.device, self.network_).encoder
        finetune = self.predict_with not in ("wta", "lda")
        self._fit_classifiers(before, old, network, task, exemplars, STATISTICS, finetune)

    def _forget_class(self, row: int) -> None:
        """Take out a class's statistics, and fit the classifiers anew to the others'.

        To leave out its rows would not do: those of the others tell of it, as they were fitted
        to tell it from them.
        """
        if not self.statistics_:
            return
        exemplars = self.memory_ or Memory.empty(torch.zeros(0, *self.input_shape_))
        rest, network = self._class_statistics().without(row), self.network_
        if self._on_features:
            exemplars = self._as_features(network.encoder, exemplars)
            network = on_features(network, self.feature_layers)
        finetune = "head_weight" in self.classifiers_
        none = Memory.empty(exemplars.x)
        self._fit_classifiers(rest, None, network, none, exemplars, FORGET, finetune)

    def _fit_classifiers(
        self,
        before: ClassStatistics,
        old: Encoder | None,
        network: Network,
        task: Memory,
        exemplars: Memory,
        purpose: int,
        finetune: bool,
    ) -> None:
        """Set statistics and classifiers; parameters as in `update_statistics`."""
        rng = torch.Generator().manual_seed(self._seed(purpose))
        statistics, non_negative, real = update_statistics(
            before,
            old,
            network.encoder,
            task,
            exemplars,
            layers=self.feature_layers,
            augment="none" if self._on_features else self.augmentation_,
            rotated=self._n_rotations > 1,
            generator=rng,
            finetune=finetune,
        )
        if not len(task):  # and maybe no exemplars: no image tells
            non_negative = self._rectified(self.network_, rng)
        self.statistics_ = statistics.tensors()
        if finetune:
            self.classifiers_ = prediction_rules.finetune(
                network.head,
                self._vectors_by_rotation(network.head.weight.device),
                statistics,
                self._head_sizes,
                scale=self.scale,
                non_negative=non_negative,
                real=real,
                generator=rng,
            )
        else:
            self.classifiers_ = prediction_rules.discriminant(statistics)

    def scores(self, network: Network, x: Tensor) -> Tensor:
        """Return the scores of the prediction rule ``predict_with``; "wta" is Eq. 2."""
        return self._scores_by((self.predict_with,), network, x)[self.predict_with]

    def _scores_by(self, rules: Sequence[str], network: Network, x: Tensor) -> dict[str, Tensor]:
        """Return the scores of some prediction rules: (n, n_classes) each."""
        if self._on_features:  # one vector of each image, of one or two views
            views = 1
            features = features_of(network.encoder, x, self.feature_layers, flip=self._flips)
        else:
            views = 1 + self._flips
            inputs = torch.cat([x, x.flip(-1)]) if self._flips else x
            inputs = all_rotations(inputs) if self._n_rotations > 1 else inputs
            features = network.encoder.features(inputs, self.feature_layers)
        features = features.view(self._n_rotations, -1, features.shape[-1])
        return prediction_rules.scores_by(
            rules,
            network.head,
            self._vectors_by_rotation(features.device),
            features,
            self._head_sizes,
            getattr(self, "classifiers_", {}),  # Winner-Take-All needs none
            views,
        )

    def _vectors_by_rotation(self, device: torch.device) -> Tensor:
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

    def _check_prediction_rule(self) -> None:
        """Refuse, with a ValueError, a ``predict_with`` that is none of ``prediction_rules_``."""
        prediction_rules.check_possible((self.predict_with,), self.classifiers_)

    @default_dtype_guard()
    def similarities_by_rule(self, X: Any) -> dict[str, NDArray[np.float32]]:
        """Return the similarities by each of ``prediction_rules_``, from one forward pass."""
        now = self._as_it_is()
        rules = now.prediction_rules_

        def scores(network: Network, x: Tensor) -> Tensor:
            return torch.stack([*now._scores_by(rules, network, x).values()], dim=1)

        by_rule = np.concatenate(list(now._score_parts(X, scores)))  # (n, rules, n_classes)
        return {rule: by_rule[:, i] for i, rule in enumerate(rules)}

    def check_saved(self) -> None:
        """Refuse label vectors and statistics that are not of these classes and features."""
        super().check_saved()
        if self.statistics == "none":
            if self.statistics_ or self.classifiers_:
                raise ValueError("it holds statistics, which its settings say it has not")
            return
        statistics, head = self._class_statistics(), self.network_.head
        statistics.check(len(self.classes_), self._n_rotations, self._width(self.network_))
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
