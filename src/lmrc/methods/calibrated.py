"""Calibrated probabilities, and a score for images of no known class (LMRC+)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmrc.methods.class_statistics import WithClassStatistics
from lmrc.methods.rng import CALIBRATION
from lmrc.nets.erasing import without_row
from lmrc.nets.network import Network
from lmrc.statistics import calibration, classifiers, leave_one_out, residual
from lmrc.statistics.calibration import Basis, Sums, Weights, unknown_scores
from lmrc.statistics.classifiers import Exact
from lmrc.statistics.held_out import HeldOut
from lmrc.statistics.prediction_rules import FINETUNED, PredictionRules
from lmrc.statistics.scatter import Scatter
from lmrc.statistics.update import AT_A_TIME, without_some
from lmrc.training.device import default_dtype_guard
from lmrc.training.memory import Memory

UNKNOWN_SHARE = 0.05  # of known images that may be taken for unknown ones, by default
MIN_IMAGES = 5  # of a class, for some of them to be held out of training
AT_ONCE = 128  # images in a forward pass
EPS = 1e-6


class Outputs(NamedTuple):
    """A model's outputs for n samples."""

    similarities: NDArray[np.float32]  # (n, n_classes)
    probabilities: NDArray[np.float32]  # (n, n_classes)
    unknown: NDArray[np.float32]  # (n,); high for images unlike any known class


def _may_be_calibrated(model: Calibrated) -> bool:
    """Tell whether a model has probabilities, or will have once it is fitted."""
    if "network_" in vars(model):
        return model.is_calibrated_
    return model.statistics != "none" and (model.calibration_share > 0 or model._freezes)


class Calibrated(WithClassStatistics):
    """LMRC+ with calibrated probabilities, and a score for images of unknown classes.

    Attributes
    ----------
    calibration_ : dict of Tensor
        Sums over held-out images, by prediction rule and class; logit scales and offsets computed
        from them; directions of each class. Empty if no image was held out.
    """

    predict_is_argmax = True
    saved_tensors: ClassVar[tuple[str, ...]] = (*WithClassStatistics.saved_tensors, "calibration_")

    # --- Learning --------------------------------------------------------------------------------

    def _hold_out(self, samples: Memory) -> tuple[Memory, Memory]:
        """Split the samples into those to learn and held-out images of the task.

        With a frozen backbone none are held out: see `_leave_one_out`.
        """
        if not self.calibration_share or self._on_features or self.statistics == "none":
            return samples, Memory.empty(samples.x)
        task, exemplars = samples.split(len(samples) - len(self.memory_ or ()))
        rng = torch.Generator().manual_seed(self._seed(CALIBRATION))
        held = torch.zeros(len(task), dtype=torch.bool)
        for row in torch.unique(task.y).tolist():
            rows = torch.nonzero(task.y == row).flatten()
            n = max(1, round(self.calibration_share * len(rows)))
            if len(rows) >= MIN_IMAGES:
                held[rows[torch.randperm(len(rows), generator=rng)[:n]]] = True
        kept, left_out = (task.at(torch.nonzero(part).flatten()) for part in (~held, held))
        return exemplars.joined(kept.x, kept.y), left_out

    def after_task(self, network: Network, samples: Memory) -> None:
        """Update the statistics, and calibrate by images that were held out."""
        if not self.n_tasks_ or self.statistics == "none":
            self.calibration_: dict[str, Tensor] = {}
        self.left_out_ = self.classes_[:0], self.classes_[:0]
        samples, held_out = self._hold_out(samples)
        earlier = self.scatter_ if self.n_tasks_ else {}
        fit = self._update(network, samples)
        if fit is not None:
            task, _ = samples.split(len(samples) - len(self.memory_ or ()))
            self._calibrate_exactly(network, task, fit, earlier)
            return
        if earlier:  # earlier images were scored with other features
            self.calibration_ = {}
        if len(held_out) or self.calibration_:
            basis, sums = self._basis(network), calibration.sums_of(self.calibration_)
            if len(held_out):
                snapshots = self._snapshot_encoders(network.encoder)
                network = Network(network.encoder, network.head, snapshots)
                device = network.encoder.mean.device
                parts = (self._views(network, x.to(device)) for x in held_out.x.split(AT_ONCE))
                rules = self._rules(network.head)
                sums = calibration.joined(sums, _summed(rules, parts, held_out.y, basis))
            self.calibration_ = calibration.calibrated(sums, basis)

    def _calibrate_exactly(
        self, network: Network, task: Memory, fit: Exact, earlier: dict[str, Tensor]
    ) -> None:
        """Calibrate by images of a task, each scored by exact statistics without it.

        `earlier` are the statistics before the task.
        """
        width, factors = self._width(network), self.calibration_.get("factors")
        before = Scatter.empty(2 * width + self.projections)
        before = Scatter.from_tensors(earlier) if earlier else before
        if factors is None:
            factors = residual.factors_of(before, width)
        basis = self._exact_basis(network, residual.add_factors(factors, before, task))
        found = self._leave_one_out(task, network, fit, basis, factors, before)
        sums = calibration.joined(calibration.sums_of(self.calibration_), found)
        if self.prediction_rule_ in FINETUNED:
            found = self._leave_some_out(before, factors, task, network)
            sums = calibration.joined(sums, found)
        self.calibration_ = calibration.calibrated(sums, basis)

    def _leave_one_out(
        self,
        task: Memory,
        network: Network,
        fit: Exact,
        basis: Basis,
        factors: Tensor,
        before: Scatter,
    ) -> Sums:
        """Score each image of a task by exact statistics without it.

        `factors` are those of the statistics `before` the task.
        """
        rng = torch.Generator().manual_seed(self._seed(CALIBRATION))
        device, width = network.encoder.mean.device, self._width(network)
        scatter = Scatter.from_tensors(self.scatter_)
        left_out = leave_one_out.leave_out(scatter, task, self.projections, device, rng)
        if not len(left_out.y):
            return {}
        off = basis.residuals(left_out.x[None, :, :width], 1)
        n = torch.arange(len(left_out.y))
        off[n, left_out.y] = residual.left_out_residuals(factors, before, task, left_out.rows)
        scores = leave_one_out.scores(left_out, fit, width)
        # A backbone that was adapted to these images knows each of them.
        if self.prediction_rule_ in scores and (self.n_tasks_ or self._freeze is True):
            predicted = scores[self.prediction_rule_].argmax(dim=1)
            self.left_out_ = self.classes_[left_out.y.numpy()], self.classes_[predicted.numpy()]
        units = {rule: found / basis.units[rule] for rule, found in scores.items()}
        return calibration.summed(units, off, left_out.y, basis.weights)

    def _leave_some_out(
        self, before: Scatter, factors: Tensor, task: Memory, network: Network
    ) -> Sums:
        """Score a share of a task's images by rules fine-tuned without them.

        `before` and `factors` are the exact statistics and their factors before the task.
        """
        rng = torch.Generator().manual_seed(self._seed(CALIBRATION))
        device, width, head = network.encoder.mean.device, self._width(network), network.head
        without, rest, left_out = without_some(before, task, self.projections, device, rng)
        if not len(left_out):
            return {}
        finetuned = classifiers.finetune(
            head,
            self._vectors_by_rotation(device),
            without.of(0, width).class_statistics(self.statistics),
            self._head_sizes,
            scale=self.scale,
            non_negative=bool(task.x[:].min() >= 0),
            generator=rng,
        )
        exact = classifiers.exact(without, width, device).classifiers
        rules = self._rules(head, self._exact_rule_tensors(finetuned | exact, without.means))
        factors = residual.add_factors(factors, before, rest)
        means = without.means[:, None, :width]
        used = [rule for rule in FINETUNED if rule in rules.possible]
        basis = _basis(rules, used, means.transpose(0, 1), factors, self._unknown_weights)
        parts = ((x.to(device)[None], 1) for x in left_out.x.split(AT_A_TIME))
        return _summed(rules, parts, left_out.y, basis)

    def _basis(self, network: Network) -> Basis:
        """Return the basis of the present statistics, where they are not exact."""
        statistics, rules = self._class_statistics({}), self._rules(network.head)
        factors, sizes = residual.of_statistics(statistics)
        means, weights = self._mean_features(), self._unknown_weights
        return _basis(rules, rules.possible, means, factors, weights, sizes)

    def _exact_basis(self, network: Network, factors: Tensor) -> Basis:
        """Return the basis of the present exact statistics."""
        rules, width = self._rules(network.head), self._width(network)
        means = self.scatter_["means"][None, :, :width]
        return _basis(rules, rules.possible, means, factors, self._unknown_weights)

    @property
    def _unknown_weights(self) -> Weights:
        """Weights of the unknown score: the same as for earlier images, if there were any."""
        if self.calibration_:
            return calibration.weights_of(self.calibration_)
        of_images = self._on_features and len(self.input_shape_) > 1
        return calibration.OF_FIXED_FEATURES if of_images else calibration.USUAL

    def _forget_class(self, row: int) -> None:
        """Remove the class from the statistics and from the sums over held-out images."""
        fit, network = self._update_without(row), self.network_
        if self.calibration_:
            sums = {r: s.without(row) for r, s in calibration.sums_of(self.calibration_).items()}
            factors = without_row(self.calibration_["factors"], row)
            basis = self._basis(network) if fit is None else self._exact_basis(network, factors)
            self.calibration_ = calibration.calibrated(sums, basis)

    # --- Prediction ------------------------------------------------------------------------------

    def _all_outputs(self, network: Network, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores and probabilities, (n, n_classes), and unknown scores, (n,)."""
        rule = self.prediction_rule_
        own = calibration.of_rule(self.calibration_, rule)
        by_rule, off = self._scores_and_residuals((rule,), network, x)
        scores = by_rule[rule].float()
        scale, unit, offsets = (
            own[name].to(scores.device) for name in ("scale", "unit", "offsets")
        )
        unknown = unknown_scores(rule, scores / unit, off, self._unknown_weights)
        unknown = unknown - offsets[scores.argmax(dim=1)]
        return scores, (scale * scores).softmax(dim=1), unknown

    def _scores_and_residuals(
        self, rules: Sequence[str], network: Network, x: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the scores of some prediction rules, and the residuals: (n, n_classes) each."""
        features, views = self._views(network, x)
        scores = self._rules(network.head).scores(rules, features, views)
        factors, sizes = self.calibration_["factors"], self.calibration_["sizes"]
        basis = Basis(self._rule_tensors, {}, factors, sizes, self._unknown_weights)
        return scores, basis.residuals(features, views)

    @property
    def is_calibrated_(self) -> bool:
        """Whether there are probabilities and unknown scores by the prediction rule in use."""
        return f"{self.prediction_rule_}.scale" in getattr(self, "calibration_", {})

    def _check_calibrated(self) -> bool:
        """Raise a ValueError where there is no calibration."""
        check_is_fitted(self)
        if self.is_calibrated_:
            return True
        others = [rule for rule in self.prediction_rules_ if f"{rule}.scale" in self.calibration_]
        if others:
            remedy = f"set predict_with to {' or '.join(map(repr, others))}"
        elif self.statistics == "none":
            remedy = "that needs class statistics, and statistics='none' keeps none"
        elif self._on_features:
            remedy = "it was saved by an earlier lmrc, or has one image of each class; learn more"
        else:
            remedy = (
                "no image was held out of training; set calibration_share=0.05 and learn a task"
            )
        raise ValueError(
            "the model has no probabilities and unknown scores for "
            f"predict_with={self.prediction_rule_!r}: {remedy}"
        )

    @default_dtype_guard()
    def outputs(self, X: Any) -> Outputs:
        """Return similarities, probabilities and unknown scores, from one forward pass."""
        now = self._as_it_is()
        now._check_calibrated()

        def all_of(network: Network, x: Tensor) -> Tensor:
            scores, probabilities, unknown = now._all_outputs(network, x)
            return torch.cat([scores, probabilities, unknown[:, None]], dim=1)

        found = np.concatenate(list(now._score_parts(X, all_of)))
        n = len(now.classes_)
        return Outputs(found[:, :n], found[:, n : 2 * n], found[:, 2 * n])

    @available_if(_may_be_calibrated)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Return the probability of each class, calibrated on images that were not learnt.

        They add up to 1 over the classes learnt so far; for images of other classes see
        `unknown_scores`. The most probable class is the one that `predict` returns.

        Parameters
        ----------
        X : array, tensor or torch Dataset
            As in `partial_fit`.

        Returns
        -------
        array of shape (n, n_classes)
            Columns in the order of ``classes_``, which is the order of arrival. scikit-learn's log
            loss and ROC AUC expect sorted classes: ``p[:, np.argsort(classes_)]``.
        """
        return self.outputs(X).probabilities

    def unknown_scores(self, X: Any) -> NDArray[np.float32]:
        """Return how unlike the known classes each sample is, (n,).

        Samples above `unknown_threshold` probably belong to no known class.
        """
        return self.outputs(X).unknown

    def unknown_threshold(self, share: float = UNKNOWN_SHARE) -> float:
        """Return the unknown score that this share of images of known classes exceeds."""
        self._check_calibrated()
        if not 0 < share < 1:
            raise ValueError(
                f"the share of known images that may be lost is {share!r}; it must be above 0 and "
                "below 1"
            )
        own = calibration.of_rule(self.calibration_, self.prediction_rule_)
        return HeldOut.from_tensors(own).threshold(share, own["offsets"])

    def check_saved(self) -> None:
        """Refuse statistics and a calibration that do not fit the classes and features."""
        super().check_saved()
        if self.calibration_:
            n, (_, width) = len(self.classes_), self._statistics_shape(self.network_)
            calibration.check(self.calibration_, n, width, self.prediction_rules_)


def _basis(
    rules: PredictionRules,
    used: Sequence[str],
    means: Tensor,
    factors: Tensor,
    weights: Weights,
    sizes: Tensor | None = None,
) -> Basis:
    """Return a basis; `means` are features, (rotations, classes, width), that are class means."""
    with torch.no_grad():
        found = rules.scores(used, means.to(rules.head.weight.device))
    units = {rule: max(EPS, float(s.diagonal().mean())) for rule, s in found.items()}
    sizes = torch.ones(means.shape[1]) if sizes is None else sizes
    return Basis(rules.kept, units, factors, sizes, weights)


@torch.no_grad()
def _summed(
    rules: PredictionRules, parts: Iterable[tuple[Tensor, int]], y: Tensor, basis: Basis
) -> Sums:
    """Return the sums over images: features of some at a time, views of each, and all classes."""
    scores: dict[str, list[Tensor]] = {rule: [] for rule in basis.units}
    residuals = []
    for features, views in parts:
        for rule, found in rules.scores(list(scores), features, views).items():
            scores[rule].append(found.cpu() / basis.units[rule])
        residuals.append(basis.residuals(features, views).cpu())
    joined = {rule: torch.cat(found) for rule, found in scores.items()}
    return calibration.summed(joined, torch.cat(residuals), y, basis.weights)
