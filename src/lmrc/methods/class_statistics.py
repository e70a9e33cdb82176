"""LMRC+: class statistics of the features, and prediction from them."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from lmrc.methods.resolved import Resolved
from lmrc.methods.rng import FORGET, SNAPSHOTS, STATISTICS
from lmrc.nets.multihead import MultiHead
from lmrc.nets.network import Encoder, Network, on_device
from lmrc.statistics import classifiers
from lmrc.statistics.classes import ClassStatistics, by_rotation
from lmrc.statistics.classifiers import Exact
from lmrc.statistics.covariances import Full, LowRank, LowRankShared
from lmrc.statistics.earlier import Earlier, Source
from lmrc.statistics.prediction_rules import EXACT, FINETUNED, PredictionRules, check_classifiers
from lmrc.statistics.scatter import Scatter
from lmrc.statistics.snapshots import Snapshots
from lmrc.statistics.update import OLD, Updated, add_task, update_statistics
from lmrc.training.device import default_dtype_guard
from lmrc.training.features import features_of, for_inference, on_features
from lmrc.training.loop import EpochRecord
from lmrc.training.memory import Memory
from lmrc.training.rotations import all_rotations

#: Encoders of a model's snapshots, by the tensor of their tasks, which lives as long as the model:
#: building them takes longer than scoring an image.
_built = WeakTensorKeyDictionary()


class WithClassStatistics(Resolved):
    """LMRC that keeps drift-compensated class statistics and predicts from them.

    Attributes
    ----------
    statistics_ : dict of Tensor
        Class statistics of the features; empty where ``statistics`` is "none", or where they are
        exact.
    scatter_ : dict of Tensor
        Exact class statistics, of the features of a backbone that was frozen from the first task
        on, and of their random projections; else empty.
    classifiers_ : dict of Tensor
        Weights of the prediction rules.
    earlier_ : dict of Tensor
        Networks of earlier tasks, for drift compensation and for "snapshots"; else empty.
    snapshots_ : dict of Tensor
        With ``predict_with="snapshots"``, class statistics in the features of these networks, and
        classifiers; else empty.
    """

    predict_is_argmax = True
    earlier_: Mapping[str, Tensor] = MappingProxyType({})  # until a task is learnt
    snapshots_: Mapping[str, Tensor] = MappingProxyType({})
    saved_tensors: ClassVar[tuple[str, ...]] = (
        *("labels_", "statistics_", "scatter_", "classifiers_", "earlier_", "snapshots_"),
    )

    # --- Learning ---------------------------------------------------------------------------------

    @property
    def _trains_heads(self) -> bool:
        """Whether the next task trains heads. With exact statistics, least squares fits them."""
        if not hasattr(self, "input_shape_"):  # which may decide
            return True
        exact = self._on_features and self.statistics != "none"
        if self.n_tasks_:
            exact = exact and bool(self.scatter_)
        return not exact or self.predict_with not in ("auto", *EXACT)

    @property
    def _epochs(self) -> int:
        return super()._epochs if self._trains_heads else 0

    def _train(self, *task: Any) -> Iterator[EpochRecord]:
        return super()._train(*task) if self._trains_heads else iter(())

    def after_task(self, network: Network, samples: Memory) -> None:
        """Add the statistics of the new classes; compensate those of old ones for feature drift."""
        self._update(network, samples)

    def _update(self, network: Network, samples: Memory) -> Exact | None:
        """Update statistics and classifiers; return those fitted to exact statistics, if any."""
        if self.statistics == "none":
            self.statistics_: dict[str, Tensor] = {}
            self.scatter_: dict[str, Tensor] = {}
            self.classifiers_: dict[str, Tensor] = {}
            return None
        task, exemplars = samples.split(len(samples) - len(self.memory_ or ()))
        empty = Scatter.empty(2 * self._width(network) + self.projections).tensors()
        earlier = self.scatter_ if self.n_tasks_ else empty
        self.scatter_ = {}
        if earlier and self._on_features:  # features do not drift: statistics are exact
            device = network.encoder.mean.device
            scatter = add_task(Scatter.from_tensors(earlier), task, self.projections, device)
            self.scatter_ = scatter.tensors()
        if not self.scatter_ or self.prediction_rule_ in FINETUNED:
            self._update_compensated(network, task, exemplars, earlier)
        else:
            self.statistics_, self.classifiers_ = {}, {}
            if not self._trains_heads and len(scatter.counts) > len(earlier["counts"]):
                self._fit_new_head(network, scatter)
        return self._fit_exact(network) if self.scatter_ else None

    def _update_compensated(
        self, network: Network, task: Memory, exemplars: Memory, earlier: dict[str, Tensor]
    ) -> None:
        """Compensate the statistics for feature drift, add a task's, and fit the classifiers.

        `earlier` are the exact statistics before the task, empty if it has none.
        """
        before, old, kept = self._statistics_before(network, earlier), None, None
        learns = not network.encoder.is_frozen
        if self.n_tasks_ and learns:
            old = on_device(network.encoder.mean.device, self.network_).encoder
        sources, by_earlier = [], {}
        if self.keep_encoders and learns:
            kept = Earlier.begun(before.means, self.n_tasks_)
            if self.earlier_:
                kept = Earlier.from_tensors(self.earlier_)
            sources = kept.sources(network.encoder)
            if self.predict_with == "snapshots" and old is not None:
                by_earlier = {OLD: before, **self._snapshots.statistics}
        now = self._fit_classifiers(
            before,
            old,
            network,
            task,
            exemplars,
            purpose=STATISTICS,
            finetune=self.prediction_rule_ in FINETUNED,
            sources=sources,
            by_earlier=by_earlier,
        )
        self.earlier_, self.snapshots_ = {}, {}
        if kept:
            means, rows = self.statistics_["means"], torch.unique(task.y)
            self.earlier_ = kept.learnt(old, means, rows, self.n_tasks_).tensors()
            if self.predict_with == "snapshots":
                last = self.n_tasks_ - 1
                found = {last if t == OLD else t: s for t, s in now.by_earlier.items()}
                self._fit_snapshots(found, now.non_negative, network, STATISTICS)

    def _statistics_before(self, network: Network, earlier: dict[str, Tensor]) -> ClassStatistics:
        """Return the class statistics before a task; at the first, those of no class."""
        if self.n_tasks_:
            return self._class_statistics(earlier)
        return ClassStatistics.empty(self._covariance_kind, *self._statistics_shape(network))

    def _fit_new_head(self, network: Network, scatter: Scatter) -> None:
        """Fit the newest head to exact statistics, by least squares."""
        n, last, width = self._head_sizes[-1], network.head.weight.shape[-1], self._width(network)
        vectors = self.labels_["vectors"][-n:]
        classifiers.fit_head(network.head, vectors, scatter.of(width - last, width))

    def _fit_exact(self, network: Network) -> Exact:
        """Set the classifiers that follow from exact statistics."""
        scatter, device = Scatter.from_tensors(self.scatter_), network.encoder.mean.device
        fit = classifiers.exact(scatter, self._width(network), device)
        self.classifiers_ = self.classifiers_ | fit.classifiers
        return fit

    def _fit_classifiers(
        self,
        before: ClassStatistics,
        old: Encoder | None,
        network: Network,
        task: Memory,
        exemplars: Memory,
        *,
        purpose: int,
        finetune: bool,
        sources: Sequence[Source] = (),
        by_earlier: Mapping[int, ClassStatistics] = MappingProxyType({}),
    ) -> Updated:
        """Set statistics and classifiers; parameters as in `update_statistics`."""
        rng = torch.Generator().manual_seed(self._seed(purpose))
        updated = update_statistics(
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
            earlier=sources,
            by_earlier=by_earlier,
        )
        if not len(task):  # and maybe no exemplars: no image tells
            updated = updated._replace(non_negative=self._rectified(self.network_, rng))
        statistics = updated.statistics
        self.statistics_ = {} if self.scatter_ else statistics.tensors()
        if finetune:
            self.classifiers_ = classifiers.finetune(
                network.head,
                self._vectors_by_rotation(network.head.weight.device),
                statistics,
                self._head_sizes,
                scale=self.scale,
                non_negative=updated.non_negative,
                real=updated.real,
                generator=rng,
            )
        else:
            self.classifiers_ = classifiers.discriminant(statistics)
        return updated

    # --- Forgetting -------------------------------------------------------------------------------

    def _forget_class(self, row: int) -> None:
        self._update_without(row)

    def _update_without(self, row: int) -> Exact | None:
        """Remove a class's statistics, and fit the classifiers anew to the others.

        It is not enough to delete the class's rows: other rows were fitted to separate it, and so
        reveal it.
        """
        if not self.classifiers_:
            return None
        network, earlier = self.network_, self.scatter_
        finetune = "head_weight" in self.classifiers_
        if earlier:
            self.scatter_ = Scatter.from_tensors(earlier).without(row).tensors()
        if earlier and not finetune:
            return self._fit_exact(network)
        rest = self._class_statistics(earlier).without(row)
        exemplars = self.memory_ or Memory.empty(torch.zeros(0, *self.input_shape_))
        if self._on_features and len(exemplars):
            exemplars = self._as_features(network.encoder, exemplars)
            network = on_features(network, self.feature_layers)
        task = Memory.empty(exemplars.x)
        now = self._fit_classifiers(
            rest, None, network, task, exemplars, purpose=FORGET, finetune=finetune
        )
        if self.earlier_:
            self.earlier_ = Earlier.from_tensors(self.earlier_).without(row).tensors()
        if self.snapshots_:
            others = {t: s.without(row) for t, s in self._snapshots.statistics.items()}
            self._fit_snapshots(others, now.non_negative, network, FORGET)
        return self._fit_exact(network) if self.scatter_ else None

    # --- Snapshots --------------------------------------------------------------------------------

    @property
    def _snapshots(self) -> Snapshots:
        return Snapshots.from_tensors(self._covariance_kind, self.snapshots_)

    def _fit_snapshots(
        self,
        statistics: Mapping[int, ClassStatistics],
        non_negative: bool,
        network: Network,
        purpose: int,
    ) -> None:
        """Fit classifiers on the features of the kept networks of earlier tasks."""
        tasks = Earlier.from_tensors(self.earlier_).encoders
        self.snapshots_ = Snapshots.fitted(
            {task: of_one for task, of_one in sorted(statistics.items()) if task in tasks},
            non_negative=non_negative,
            generator=torch.Generator().manual_seed(self._seed(purpose, SNAPSHOTS)),
            device=network.encoder.mean.device,
        ).tensors()

    def _snapshot_encoders(self, like: Encoder) -> list[Encoder]:
        """Return the encoders of earlier tasks that also predict, on the device of another one."""
        if self.prediction_rule_ != "snapshots" or not self.snapshots_:
            return []
        tasks = self.snapshots_["tasks"]
        built: list[Encoder] = []
        if tasks in _built:
            built = _built[tasks]
        if not built or built[0].mean.device != like.mean.device:
            earlier = Earlier.from_tensors(self.earlier_)
            built = _built[tasks] = [*earlier.encoders_like(like, tasks.tolist()).values()]
        return built

    def _network_for(self, n: int) -> Network:
        network, snapshots = super()._network_for(n), self._snapshot_encoders(self.network_.encoder)
        if network is not self.network_:
            snapshots = [for_inference(encoder) for encoder in snapshots]
        return Network(network.encoder, network.head, snapshots) if snapshots else network

    # --- Prediction -------------------------------------------------------------------------------

    def scores(self, network: Network, x: Tensor) -> Tensor:
        """Return the scores of the prediction rule ``predict_with``; "wta" is Eq. 2."""
        rule = self.prediction_rule_
        return self._scores_by((rule,), network, x)[rule]

    def _scores_by(self, rules: Sequence[str], network: Network, x: Tensor) -> dict[str, Tensor]:
        """Return the scores of some prediction rules: (n, n_classes) each."""
        return self._rules(network.head).scores(rules, *self._views(network, x))

    def _views(self, network: Network, x: Tensor) -> tuple[Tensor, int]:
        """Return features, (rotations, views · n, width), and how many views there are."""
        encoders, layers = [network.encoder, *network.snapshots], self.feature_layers
        if self._on_features:  # one vector of each image, of one or two views
            views = 1
            each = [features_of(encoder, x, layers, flip=self._flips) for encoder in encoders]
        else:
            views = 1 + self._flips
            inputs = torch.cat([x, x.flip(-1)]) if self._flips else x
            inputs = all_rotations(inputs) if self._n_rotations > 1 else inputs
            each = [encoder.features(inputs, layers) for encoder in encoders]
        features = torch.cat(each, dim=1)
        return features.view(self._n_rotations, -1, features.shape[-1]), views

    def _rules(self, head: MultiHead, kept: Mapping[str, Tensor] | None = None) -> PredictionRules:
        """Return the prediction rules, from the model's own tensors or from others."""
        vectors = self._vectors_by_rotation(head.weight.device)
        kept = self._rule_tensors if kept is None else kept
        return PredictionRules(head, vectors, self._head_sizes, kept)

    @property
    def _rule_tensors(self) -> dict[str, Tensor]:
        """The tensors that prediction rules need; Winner-Take-All needs none."""
        if not getattr(self, "classifiers_", {}):
            return {}
        means = self.statistics_.get("means")
        if means is None:
            return self._exact_rule_tensors(self.classifiers_, self.scatter_["means"])
        kept = {**self.classifiers_, "class_means": means.transpose(0, 1)}
        if self.snapshots_:  # after the first task, there is none yet
            kept |= {"snapshot_weight": torch.empty(0), "snapshot_bias": torch.empty(0)}
        return kept | self._snapshots.stacked()

    def _mean_features(self) -> Tensor:
        """Return the class means as features of one image each: (rotations, classes, width).

        Features of the snapshots follow, as in `_views`.
        """
        each = [self._class_statistics({}), *self._snapshots.statistics.values()]
        by_network = [by_rotation(s.means.transpose(0, 1), self._n_rotations) for s in each]
        return torch.cat(by_network, dim=-1)

    def _exact_rule_tensors(
        self, classifiers: dict[str, Tensor], means: Tensor
    ) -> dict[str, Tensor]:
        """Return classifiers of exact statistics with the class means, of normalised features."""
        width = classifiers["lda_weight"].shape[-1]
        return {**classifiers, "class_means": means[None, :, width : 2 * width]}

    def _vectors_by_rotation(self, device: torch.device) -> Tensor:
        """Return the label vectors as (classes, rotations, dim)."""
        vectors = self.labels_["vectors"].to(device)
        return vectors if vectors.ndim == 3 else vectors[:, None]

    @property
    def prediction_rule_(self) -> str:
        """``predict_with``; "auto" is resolved by the statistics that there are."""
        if self.predict_with != "auto":
            return str(self.predict_with)
        if self.statistics == "none":
            return "wta"
        return "ridge" if self.scatter_ else "ensemble"

    @property
    def prediction_rules_(self) -> tuple[str, ...]:
        """Values of ``predict_with`` that the model can apply.

        Without ``statistics`` that is "wta" alone. "finetuned", "linear" and "ensemble" are there
        where the last task was learnt with one of them, "snapshots" where it was with that, "ridge"
        where all were with a frozen backbone.
        """
        check_is_fitted(self)
        return self._rules(self.network_.head).possible

    def _check_prediction_rule(self) -> None:
        """Raise a ValueError for a ``predict_with`` that is not in ``prediction_rules_``."""
        self._rules(self.network_.head).check(self.prediction_rule_)

    @default_dtype_guard()
    def similarities_by_rule(self, X: Any) -> dict[str, NDArray[np.float32]]:
        """Return the similarities by each of ``prediction_rules_``, from one forward pass."""
        now = self._as_it_is()
        rules = now.prediction_rules_
        if "snapshots" in rules:
            now.predict_with = "snapshots"  # which loads their networks

        def scores(network: Network, x: Tensor) -> Tensor:
            return torch.stack([*now._scores_by(rules, network, x).values()], dim=1)

        by_rule = np.concatenate(list(now._score_parts(X, scores)))  # (n, rules, n_classes)
        return {rule: by_rule[:, i] for i, rule in enumerate(rules)}

    # --- What the statistics describe -------------------------------------------------------------

    def _rectified(self, network: Network, generator: torch.Generator) -> bool:
        """Tell from noise, in place of images, whether features end in a ReLU."""
        encoder = network.encoder
        noise = torch.randn(64, *self.input_shape_, generator=generator).to(encoder.mean.device)
        with torch.no_grad():
            features = encoder.features(encoder.mean + noise * encoder.std, self.feature_layers)
        return bool(features.min() >= 0)

    def _width(self, network: Network) -> int:
        """Return the number of features that the statistics describe."""
        last: int = network.head.weight.shape[-1]
        return network.encoder.width_before(self.feature_layers) + last

    @property
    def _joins_rotations(self) -> bool:
        """Whether rotations are joined: the first task's statistics decide, where there are any."""
        if self._n_rotations == 1:
            return False
        if self.n_tasks_ and self.statistics_:
            return self.statistics_["means"].shape[1] == 1
        return bool(self.join_rotations) and self.statistics != Full.name

    @property
    def _covariance_kind(self) -> str:
        """The kind of the statistics' covariances: one of `COVARIANCES`."""
        joined = self._joins_rotations and self.statistics == LowRank.name
        return LowRankShared.name if joined else str(self.statistics)

    def _statistics_shape(self, network: Network) -> tuple[int, int]:
        """Return the number of vectors per image in the statistics, and their width."""
        rotations, width = self._n_rotations, self._width(network)
        return (1, rotations * width) if self._joins_rotations else (rotations, width)

    def _class_statistics(self, scatter: dict[str, Tensor]) -> ClassStatistics:
        """Return the class statistics, computed from exact ones where there are any."""
        if scatter:
            features = Scatter.from_tensors(scatter).of(0, self._width(self.network_))
            return features.class_statistics(self.statistics)
        return ClassStatistics.from_tensors(self._covariance_kind, self.statistics_)

    # --- On disk ----------------------------------------------------------------------------------

    def check_saved(self) -> None:
        """Refuse label vectors and statistics that are not of these classes and features."""
        super().check_saved()
        if self.statistics == "none":
            names = set(WithClassStatistics.saved_tensors) - {"labels_"}
            if any(getattr(self, name) for name in names):
                raise ValueError("it holds statistics, but its settings say statistics='none'")
            return
        shape = len(self.classes_), self._n_rotations, self._width(self.network_)
        n_ridge = None
        if self.scatter_:
            n_ridge = shape[-1] + self.projections
            Scatter.from_tensors(self.scatter_).check(shape[0], shape[-1] + n_ridge)
            if self.statistics_ or self.earlier_ or self.snapshots_ or self._n_rotations > 1:
                raise ValueError("it holds exact statistics and others")
        else:
            shape = shape[0], *self._statistics_shape(self.network_)
            self._class_statistics({}).check(*shape)
            kept = Earlier.from_tensors(self.earlier_) if self.earlier_ else None
            if kept:
                kept.check(shape, self.n_tasks_, self.network_.encoder)
            self._snapshots.check(shape, kept.encoders if kept else ())
        check_classifiers(self.classifiers_, shape, self.network_.head, n_ridge)
