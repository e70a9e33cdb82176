"""Calibrated probabilities, and a score for images of no known class (LMRC+)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from lmrc.nets.multihead import MultiHead
from lmrc.nets.network import Network
from lmrc.statistics import leave_one_out, prediction_rules, residual
from lmrc.statistics.held_out import USUAL_SCALE, HeldOut
from lmrc.statistics.prediction_rules import Exact
from lmrc.statistics.ridge import normalised
from lmrc.statistics.scatter import Scatter
from lmrc.statistics.update import AT_A_TIME, without_some
from lmrc.training.device import default_dtype_guard
from lmrc.training.memory import Memory

UNKNOWN_SHARE = 0.05  # of known images that may be taken for unknown ones, by default
# Chosen on held-out images, of photographs and of vectors:
WEIGHT = 2.0  # of the residual in the unknown score
RELATIVE = 0.5  # share of the mean residual by all classes that is subtracted from it
OFFSET = 0.6  # share of a class's offset that is subtracted from its unknown scores
#: Usual logit scales where they are not the default: cosines to class means differ by little.
USUAL_SCALES = {"ncm": 50.0}
MIN_IMAGES = 5  # of a class, for some of them to be held out of training
AT_ONCE = 128  # images in a forward pass
EPS = 1e-6


class Outputs(NamedTuple):
    """What a model says of n samples."""

    similarities: NDArray[np.float32]  # (n, n_classes)
    probabilities: NDArray[np.float32]  # (n, n_classes)
    unknown: NDArray[np.float32]  # (n,), the higher, the less like any known class


class Basis(NamedTuple):
    """What scores and residuals go by."""

    kept: Mapping[str, Tensor]  # what prediction rules need
    #: By rule, the score of an image that is as its class's mean: divided by it, those of all tasks
    #: compare.
    units: dict[str, float]
    factors: Tensor  # (classes, rank, width), directions of each class: see `statistics.residual`
    sizes: Tensor  # (classes,), what class means are divided by


def _may_be_calibrated(model: Calibrated) -> bool:
    """Tell whether a model has probabilities, or will have once it is fitted."""
    if "network_" in vars(model):
        return model.is_calibrated_
    return model.statistics != "none" and (model.calibration_share > 0 or model._freeze is True)


class Calibrated(WithClassStatistics):
    """Predictions with calibrated probabilities, and with a score for none of the classes.

    Attributes
    ----------
    calibration_ : dict of Tensor
        Sums over held-out images, by prediction rule and class, and logit scales and offsets,
        which follow from them; directions of each class. Empty where none were held out.
    """

    predict_is_argmax = True
    saved_tensors: ClassVar[tuple[str, ...]] = (*WithClassStatistics.saved_tensors, "calibration_")

    # --- Learning --------------------------------------------------------------------------------

    def _hold_out(self, samples: Memory) -> tuple[Memory, Memory]:
        """Return the samples to learn, and images of the task that are held out.

        None with a frozen backbone, whose images are left out one by one: see `_leave_one_out`.
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
        samples, held_out = self._hold_out(samples)
        earlier = self.scatter_ if self.n_tasks_ else {}
        factors = self.calibration_.get("factors")
        fit, head = self._update(network, samples), network.head
        if earlier and fit is None:  # earlier images were scored by other features
            self.calibration_ = {}
        if fit is None and not len(held_out) and not self.calibration_:
            return
        if fit is not None:
            task, _ = samples.split(len(samples) - len(self.memory_ or ()))
            width = self._width(network)
            before = (
                Scatter.from_tensors(earlier)
                if earlier
                else Scatter.empty(2 * width + self.projections)
            )
            if factors is None:
                factors = residual.factors_of(before, width)
            now = residual.add_factors(factors, before, task)
            basis = self._basis(self._possible, head, fit, now)
            self._leave_one_out(task, network, fit, basis, factors, before)
            if self.prediction_rule_ in prediction_rules.FINETUNED:
                self._leave_some_out(before, factors, task, network)
        else:
            basis = self._basis(self._possible, head)
        if fit is None and len(held_out):
            device = network.encoder.mean.device
            parts = (self._views(network, x.to(device)) for x in held_out.x.split(AT_ONCE))
            self._add(self._summed(head, parts, held_out.y, basis))
        self._derive(basis)

    def _leave_one_out(
        self,
        task: Memory,
        network: Network,
        fit: Exact,
        basis: Basis,
        factors: Tensor,
        before: Scatter,
    ) -> None:
        """Score each image of a task by exact statistics without it.

        `factors` are those `before` the task.
        """
        rng = torch.Generator().manual_seed(self._seed(CALIBRATION))
        device, width = network.encoder.mean.device, self._width(network)
        scatter = Scatter.from_tensors(self.scatter_)
        left_out = leave_one_out.leave_out(scatter, task, self.projections, device, rng)
        if not len(left_out.y):
            return
        off = _off(left_out.x[None, :, :width], 1, basis)
        n = torch.arange(len(left_out.y))
        off[n, left_out.y] = residual.left_out_residuals(factors, before, task, left_out.rows)
        scores = leave_one_out.scores(left_out, fit, width)
        units = {rule: found / basis.units[rule] for rule, found in scores.items()}
        self._add(held_out_sums(units, off, left_out.y))

    def _leave_some_out(
        self, before: Scatter, factors: Tensor, task: Memory, network: Network
    ) -> None:
        """Score a share of a task's images by rules fine-tuned without them.

        `before` the task, the exact statistics and the classes' `factors`.
        """
        rng = torch.Generator().manual_seed(self._seed(CALIBRATION))
        device, width, head = network.encoder.mean.device, self._width(network), network.head
        without, rest, left_out = without_some(before, task, self.projections, device, rng)
        if not len(left_out):
            return
        fit = prediction_rules.exact(without, width, device)
        classifiers = prediction_rules.finetune(
            head,
            self._vectors_by_rotation(device),
            without.of(0, width).class_statistics(self.statistics),
            self._head_sizes,
            scale=self.scale,
            non_negative=bool(task.x[:].min() >= 0),
            generator=rng,
        )
        fit = fit._replace(classifiers=classifiers | fit.classifiers)
        factors = residual.add_factors(factors, before, rest)
        basis = self._exact_basis(prediction_rules.FINETUNED, head, fit, without, factors)
        parts = ((x.to(device)[None], 1) for x in left_out.x.split(AT_A_TIME))
        self._add(self._summed(head, parts, left_out.y, basis))

    @torch.no_grad()
    def _summed(
        self, head: MultiHead, parts: Iterable[tuple[Tensor, int]], y: Tensor, basis: Basis
    ) -> dict[str, HeldOut]:
        """Return the sums over held-out images, by prediction rule.

        Parameters
        ----------
        head : MultiHead
        parts : iterable
            Features of some of the images, and views of each, as `_views` returns them.
        y : Tensor
            Classes of all images.
        basis : Basis
        """
        scores: dict[str, list[Tensor]] = {rule: [] for rule in basis.units}
        residuals = []
        for features, views in parts:
            found = self._scores_of(list(scores), head, features, views, basis.kept)
            for rule, of_part in found.items():
                scores[rule].append(of_part.cpu() / basis.units[rule])
            residuals.append(_off(features, views, basis).cpu())
        joined = {rule: torch.cat(found) for rule, found in scores.items()}
        return held_out_sums(joined, torch.cat(residuals), y)

    def _add(self, found: Mapping[str, HeldOut]) -> None:
        """Add to the sums over held-out images."""
        held = self._held
        for rule, of_rule in found.items():
            held[rule] = held[rule].joined(of_rule) if rule in held else of_rule
        self._set_held(held)

    @property
    def _held(self) -> dict[str, HeldOut]:
        """The sums over held-out images, by prediction rule."""
        rules = {name.partition(".")[0] for name in self.calibration_ if name.endswith(".losses")}
        return {rule: HeldOut.from_tensors(self._of_rule(rule)) for rule in sorted(rules)}

    def _of_rule(self, rule: str) -> dict[str, Tensor]:
        start = f"{rule}."
        found = self.calibration_.items()
        return {n.removeprefix(start): t for n, t in found if n.startswith(start)}

    def _set_held(self, held: Mapping[str, HeldOut]) -> None:
        none = HeldOut.empty(len(self.classes_))
        self.calibration_ = {
            f"{rule}.{name}": tensor
            for rule, found in held.items()
            for name, tensor in found.joined(none).tensors().items()
        }

    def _derive(self, basis: Basis) -> None:
        """Set logit scales, offsets and directions, for the statistics as they are."""
        held = {rule: found for rule, found in self._held.items() if rule in basis.units}
        if not held:
            self.calibration_ = {}
            return
        self._set_held(held)
        self.calibration_ |= {"factors": basis.factors, "sizes": basis.sizes}
        for rule, found in held.items():
            scale = found.logit_scale(USUAL_SCALES.get(rule, USUAL_SCALE))
            self.calibration_ |= {
                f"{rule}.scale": torch.tensor([scale / basis.units[rule]]),
                f"{rule}.unit": torch.tensor([basis.units[rule]]),
                f"{rule}.offsets": OFFSET * found.offsets(),
            }

    @property
    def _possible(self) -> tuple[str, ...]:  # prediction rules there are classifiers for
        return prediction_rules.possible(self._kept)

    def _basis(
        self,
        rules: Sequence[str],
        head: MultiHead,
        fit: Exact | None = None,
        factors: Tensor | None = None,
    ) -> Basis:
        """Return the basis of the statistics as they are; exact ones have `factors` besides."""
        if fit is not None and factors is not None:
            fit, scatter = fit._replace(classifiers=self.classifiers_), self.scatter_
            return self._exact_basis(rules, head, fit, Scatter.from_tensors(scatter), factors)
        statistics = self._class_statistics({})
        factors, sizes = residual.of_statistics(statistics)
        return self._basis_of(rules, head, self._kept, statistics.means, factors, sizes)

    def _exact_basis(
        self, rules: Sequence[str], head: MultiHead, fit: Exact, scatter: Scatter, factors: Tensor
    ) -> Basis:
        kept = self._exactly_kept(fit.classifiers, scatter.means)
        means = scatter.means[:, None, : len(fit.covariance)]
        return self._basis_of(rules, head, kept, means, factors, torch.ones(len(means)))

    def _basis_of(
        self,
        rules: Sequence[str],
        head: MultiHead,
        kept: Mapping[str, Tensor],
        means: Tensor,
        factors: Tensor,
        sizes: Tensor,
    ) -> Basis:
        """Return a basis, of class means (classes, rotations, width) among others."""
        features = means.transpose(0, 1).to(head.weight.device)
        with torch.no_grad():
            found = self._scores_of(rules, head, features, 1, kept)
        units = {rule: max(EPS, float(s.diagonal().mean())) for rule, s in found.items()}
        return Basis(kept, units, factors, sizes)

    def _forget_class(self, row: int) -> None:
        """Take the class out of the sums over held-out images, too."""
        fit = self._update_without(row)
        if self.calibration_:
            factors = without_row(self.calibration_["factors"], row)
            self._set_held({rule: found.without(row) for rule, found in self._held.items()})
            self._derive(self._basis(self._possible, self.network_.head, fit, factors))

    # --- Prediction ------------------------------------------------------------------------------

    def _all_outputs(self, network: Network, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores and probabilities, (n, n_classes), and unknown scores, (n,)."""
        rule = self.prediction_rule_
        own = self._of_rule(rule)
        by_rule, off = self._scores_and_residuals((rule,), network, x)
        scores = by_rule[rule].float()
        scale, unit, offsets = (
            own[name].to(scores.device) for name in ("scale", "unit", "offsets")
        )
        unknown = _unknown(scores / unit, off) - offsets[scores.argmax(dim=1)]
        return scores, (scale * scores).softmax(dim=1), unknown

    def _scores_and_residuals(
        self, rules: Sequence[str], network: Network, x: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the scores of some prediction rules, and the residuals: (n, n_classes) each."""
        features, views = self._views(network, x)
        scores = self._scores_of(rules, network.head, features, views, self._kept)
        basis = Basis(self._kept, {}, self.calibration_["factors"], self.calibration_["sizes"])
        return scores, _off(features, views, basis)

    @property
    def is_calibrated_(self) -> bool:
        """Whether there are probabilities and unknown scores by the prediction rule in use."""
        return f"{self.prediction_rule_}.scale" in getattr(self, "calibration_", {})

    def _check_calibrated(self) -> bool:
        """Refuse, with a ValueError, probabilities where there is no calibration."""
        check_is_fitted(self)
        if self.is_calibrated_:
            return True
        others = [rule for rule in self._possible if f"{rule}.scale" in self.calibration_]
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

        They add up to 1 over the classes learnt so far: of an image of none of them, see
        `unknown_scores`. The most probable class is that of `predict`.

        Parameters
        ----------
        X : array, tensor or torch Dataset
            As in `partial_fit`.

        Returns
        -------
        array of shape (n, n_classes)
            Columns as ``classes_``.
        """
        return self.outputs(X).probabilities

    def unknown_scores(self, X: Any) -> NDArray[np.float32]:
        """Return how unlike the known classes samples are, (n,).

        Those above `unknown_threshold` are probably of no known class.
        """
        return self.outputs(X).unknown

    def unknown_threshold(self, share: float = UNKNOWN_SHARE) -> float:
        """Return the unknown score above which this share of images of known classes is."""
        self._check_calibrated()
        if not 0 < share < 1:
            raise ValueError(f"share={share!r} is not valid; it must be between 0 and 1")
        own = self._of_rule(self.prediction_rule_)
        return HeldOut.from_tensors(own).threshold(share, own["offsets"])

    def check_saved(self) -> None:
        """Refuse statistics, and a calibration, that are not of these classes and features."""
        super().check_saved()
        if not self.calibration_:
            return
        n, width = len(self.classes_), self._width(self.network_)
        held = self._held
        for found in held.values():
            found.check(n)
        rank = self.calibration_.get("factors", torch.zeros(0)).shape[1:2]
        wanted: dict[str, tuple[int, ...]] = {"factors": (n, *rank, width), "sizes": (n,)}
        for rule in held:
            wanted |= {f"{rule}.scale": (1,), f"{rule}.unit": (1,), f"{rule}.offsets": (n,)}
        rest = {
            name: tuple(tensor.shape)
            for name, tensor in self.calibration_.items()
            if name.rpartition(".")[2] not in vars(HeldOut.empty(0))
        }
        if (
            rest != wanted
            or not set(held) <= set(self._possible)
            or any(tensor.dtype != torch.float32 for tensor in self.calibration_.values())
            or not bool((self.calibration_["sizes"] > 0).all())
        ):
            raise ValueError("its calibration is not of these classes and features")


def held_out_sums(scores: Mapping[str, Tensor], off: Tensor, y: Tensor) -> dict[str, HeldOut]:
    """Return the sums over images, by prediction rule: of scores in units, and of residuals."""
    return {rule: HeldOut.of(s, _unknown(s, off), y) for rule, s in scores.items()}


def _unknown(scores: Tensor, off: Tensor) -> Tensor:
    """Return unknown scores, (n,), of scores in units and residuals, (n, classes) each."""
    best, winner = scores.max(dim=1, keepdim=True)
    off = off.gather(1, winner) - RELATIVE * off.mean(dim=1, keepdim=True)
    return (WEIGHT * off - best).squeeze(1)


def _off(features: Tensor, views: int, basis: Basis) -> Tensor:
    """Return the residuals of images by class, (n, classes): the mean over their views."""
    known = normalised(features) if "ridge_weight" in basis.kept else features
    centres = basis.kept["class_means"] / basis.sizes[:, None]
    found = residual.residuals(centres, basis.factors, known).mean(dim=0)
    return found.view(views, -1, found.shape[-1]).mean(dim=0)
