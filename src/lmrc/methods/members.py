"""Ensembles: several networks that differ in their seeds, as one classifier (LMRC+).

Lakshminarayanan et al., "Simple and Scalable Predictive Uncertainty Estimation using Deep
Ensembles", NeurIPS 2017. The classifier's own attributes are those of its first member; of the
others, `others_` holds what they do not share with it.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from lmrc.data.validation import read_dataset
from lmrc.methods.calibrated import AT_ONCE, EPS, Calibrated
from lmrc.methods.rng import CALIBRATION, MEMBER, derived_seed
from lmrc.methods.state import pack, refuse_diverged, unpack
from lmrc.nets.network import Network
from lmrc.statistics import calibration
from lmrc.statistics.calibration import Basis, Sums
from lmrc.statistics.prediction_rules import comparable
from lmrc.training.device import default_dtype_guard
from lmrc.training.memory import Memory

#: What a member has of its own; classes, exemplars and parameters are the same for all.
OWN = ("network_", "threshold_", "seed_", "history_", *Calibrated.saved_tensors)


class Networks(Network):
    """The networks of all members; encoder and head are the first's."""

    def __init__(self, networks: Sequence[Network]) -> None:
        super().__init__(networks[0].encoder, networks[0].head)
        self.networks = nn.ModuleList(networks)


class WithMembers(Calibrated):
    """A classifier of ``members`` networks; with one, it adds nothing.

    Scores are standardised for each image and averaged. Images that are held out of training are
    the same for all members, so that probabilities are calibrated on the averages.

    Attributes
    ----------
    others_ : list of dict
        The attributes `OWN` of each member but the first; empty for one network.
    own_calibration_ : dict of Tensor
        The first member's calibration; ``calibration_`` is that of the ensemble.
    """

    predict_is_argmax = True
    #: While a member learns: the seed that selects held-out images, and these images.
    _held_out_seed: int | None = None
    _held_out: Memory | None = None
    #: Whether this is a member of an ensemble.
    _is_member = False

    @property
    def members_(self) -> list[Self]:
        """The members, each a classifier by itself; a single one for ``members=1``."""
        return [self._member(i) for i in range(self.members)]

    def _member(self, i: int) -> Self:
        """Return a member as a classifier by itself."""
        member = copy.copy(self)
        member._is_member, member.members = self.members > 1, 1
        if hasattr(self, "shape_settings_"):
            member.shape_settings_ = self.shape_settings_ | {"members": 1}
        if others := member.__dict__.pop("others_", ()):
            own = others[i - 1] if i else {"calibration_": self.own_calibration_}
            member.__dict__ |= own
            member.random_state = member.seed_ if i else self.random_state
            del member.own_calibration_
        return member

    def _become(self, members: Sequence[Self]) -> None:
        """Take over the members' attributes; the ensemble's calibration stays the same."""
        calibration, n = getattr(self, "calibration_", {}), self.members
        first, *others = members
        self.__dict__ = dict(vars(first))
        self._is_member, self.members, self._held_out = False, n, None
        self.shape_settings_ = first.shape_settings_ | {"members": n}
        self.others_ = [{name: getattr(other, name) for name in OWN} for other in others]
        self.own_calibration_, self.calibration_ = first.calibration_, calibration

    # --- Learning --------------------------------------------------------------------------------

    def _learn(self, X: Any, y: Any, classes: Any) -> None:
        """Learn a task, one member after the other."""
        if self.members == 1:
            super()._learn(X, y, classes)
            return
        self._check_parameters()
        if isinstance(X, torch.utils.data.Dataset):  # which is read once
            X, own = read_dataset(X)
            y = own if y is None else y
        learnt: list[Self] = []
        for i, saved in enumerate(self.checkpoint.finished(self.members)):
            member = self._member(i)
            if learnt:
                member._held_out_seed = learnt[0].seed_
                if not hasattr(self, "classes_"):
                    member.random_state = derived_seed(learnt[0].seed_, MEMBER, i)
            if saved:
                unpack(member, *saved)
            else:
                member._learn(X, y, classes)
                refuse_diverged(member)
                if i + 1 < self.members:
                    self.checkpoint.finish(partial(pack, member))
            learnt.append(member)
        self._become(learnt)
        self.execution_ = learnt[-1].execution_
        self._calibrate(learnt, calibration.sums_of(self.calibration_), learnt[-1]._held_out)

    def _seed(self, *purpose: int) -> int:
        if purpose == (CALIBRATION,) and self._held_out_seed is not None:
            return derived_seed(self._held_out_seed, self.n_tasks_, *purpose)
        return super()._seed(*purpose)

    def after_task(self, network: Network, samples: Memory) -> None:
        """Keep the held-out images for the ensemble's calibration, too."""
        super().after_task(network, samples)
        if self._is_member:
            self._held_out = self._hold_out(samples)[1]

    @torch.no_grad()
    def _calibrate(
        self, members: Sequence[Calibrated], sums: Sums, held_out: Memory | None = None
    ) -> None:
        """Calibrate the ensemble on sums over held-out images, and on further ones if given."""
        own = [member.calibration_ for member in members]
        rules = [n.removesuffix(".scale") for n in own[0] if n.endswith(".scale")]
        if not rules:
            self.calibration_ = {}
            return
        weights = calibration.weights_of(own[0])
        each = [_of_means(rules, member) for member in members]
        units = {rule: max(EPS, _mean([found[rule] for found in each]).item()) for rule in rules}
        if held_out:
            device, networks = self.network_.encoder.mean.device, self._network_for(0)
            parts = [
                self._scores_and_residuals(rules, networks, x.to(device))
                for x in held_out.x.split(AT_ONCE)
            ]
            off = torch.cat([residuals for _, residuals in parts]).cpu()
            scores = {r: torch.cat([s[r] for s, _ in parts]).cpu() / units[r] for r in rules}
            found = calibration.summed(scores, off, held_out.y, weights)
            sums = calibration.joined(sums, found)
        basis = Basis({}, units, own[0]["factors"], own[0]["sizes"], weights)
        self.calibration_ = calibration.calibrated(sums, basis)

    # --- Prediction ------------------------------------------------------------------------------

    def _network_for(self, n: int) -> Network:
        if self.members == 1:
            return super()._network_for(n)
        return Networks([member._network_for(n) for member in self.members_])

    def _with_own(self, networks: Network) -> list[tuple[Self, Network]]:
        """Return each member with its network."""
        own = cast("list[Network]", list(cast("Networks", networks).networks))
        return list(zip(self.members_, own, strict=True))

    def _scores_by(self, rules: Sequence[str], network: Network, x: Tensor) -> dict[str, Tensor]:
        if self.members == 1:
            return super()._scores_by(rules, network, x)
        each = [member._scores_by(rules, own, x) for member, own in self._with_own(network)]
        return _averaged(each)

    def _scores_and_residuals(
        self, rules: Sequence[str], network: Network, x: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        if self.members == 1:
            return super()._scores_and_residuals(rules, network, x)
        pairs = self._with_own(network)
        each = [member._scores_and_residuals(rules, own, x) for member, own in pairs]
        return _averaged([scores for scores, _ in each]), _mean([off for _, off in each])

    # --- Classes that are forgotten, and models on disk ------------------------------------------

    @default_dtype_guard()
    def forget(self, label: Any) -> Self:  # noqa: D102
        if self.members == 1:
            return super().forget(label)
        row, members = self._row_of(label), [member.forget(label) for member in self.members_]
        draft = copy.copy(self)
        draft._become(members)
        sums = calibration.sums_of(self.calibration_)
        draft._calibrate(members, {rule: found.without(row) for rule, found in sums.items()})
        self.__dict__ = draft.__dict__
        return self

    def _move_seed_on(self) -> int:
        members = self.members_[1:]
        for member in members:
            member._move_seed_on()
        if members:
            self.others_ = [{name: getattr(member, name) for name in OWN} for member in members]
        return super()._move_seed_on()

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if (self.members > 1 or self._is_member) and (self._freeze is True or self._adapts):
            raise ValueError(
                f"{type(self).__name__}: an ensemble needs networks that learn, and with a frozen "
                "backbone all members would have the same features: set members=1, or freeze=False"
            )


def _of_means(rules: Sequence[str], member: Calibrated) -> dict[str, Tensor]:
    """Return by rule the mean standardised score of the class means for their own class."""
    head = member.network_.head
    features = member._mean_features().to(head.weight.device)
    found = member._rules(head).scores(rules, features)
    return {rule: comparable(scores).diagonal().mean() for rule, scores in found.items()}


def _averaged(each: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of the members' scores by rule, each standardised."""
    return {rule: _mean([comparable(found[rule].float()) for found in each]) for rule in each[0]}


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).mean(dim=0)
