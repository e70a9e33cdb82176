"""Class statistics after a task: compensated for feature drift, with the new classes."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from lmrc.data.inputs import Inputs
from lmrc.nets.network import Encoder
from lmrc.statistics.classes import ClassStatistics, Summary, concatenated, summed
from lmrc.statistics.drift import Drift
from lmrc.statistics.earlier import Source
from lmrc.statistics.gather import gather, passes
from lmrc.statistics.ridge import expand
from lmrc.statistics.scatter import Scatter
from lmrc.training.device import for_float64
from lmrc.training.memory import Memory
from lmrc.training.rotations import N_ROTATIONS

AT_A_TIME = 2048  # samples whose projections are in memory at once
HELD_OUT = 0.2  # share of a class's images that `without_some` leaves out
ONE_STEP = 0.5  # weight of the means that an earlier network maps in one step
OLD = -1  # in place of a task: the network before the current task
MAX_REAL = 128  # real features of a class for fine-tuning: more would only take memory


class Updated(NamedTuple):
    """The class statistics after a task, and what fine-tuning needs in addition."""

    statistics: ClassStatistics  # in the new features
    non_negative: bool  # whether no feature of these images was below 0, as behind a ReLU
    real: dict[int, Tensor]  # with exemplars, by class: some features, (rotations, n, width)
    by_earlier: dict[int, ClassStatistics]  # by task: in the features of snapshots


def add_task(scatter: Scatter, task: Memory, projections: int, device: torch.device) -> Scatter:
    """Add a task, whose samples are features, to exact statistics."""
    home = for_float64(device)
    return scatter.added(
        (row, expand(part.to(device), projections).to(home))
        for row in torch.unique(task.y).tolist()  # in order
        for part in task.of_class(row).x.split(AT_A_TIME)
    )


def without_some(
    scatter: Scatter,
    task: Memory,
    projections: int,
    device: torch.device,
    generator: torch.Generator,
) -> tuple[Scatter, Memory, Memory]:
    """Hold out a share of each class of a task: return exact statistics with the rest, rest, share.

    `scatter` are the statistics of earlier tasks.
    """
    out = torch.zeros(len(task), dtype=torch.bool)
    for row in torch.unique(task.y).tolist():
        rows = torch.nonzero(task.y == row).flatten()
        if len(rows) > 1 or row < len(scatter.counts):  # never the only image of a class
            order = torch.randperm(len(rows), generator=generator)
            out[rows[order[: max(1, round(HELD_OUT * len(rows)))]]] = True
    kept, left_out = (task.at(torch.nonzero(part).flatten()) for part in (~out, out))
    return add_task(scatter, kept, projections, device), kept, left_out


def update_statistics(
    before: ClassStatistics,
    old: Encoder | None,
    new: Encoder,
    task: Memory,
    exemplars: Memory,
    *,
    layers: int,
    augment: str,
    rotated: bool,
    generator: torch.Generator,
    finetune: bool,
    earlier: Sequence[Source] = (),
    by_earlier: Mapping[int, ClassStatistics] = MappingProxyType({}),
) -> Updated:
    """Compensate statistics for feature drift, and add those of a task's classes.

    The map from old to new features is fitted on the images at hand, and applied to the means and
    covariances of old classes, as in Gomez-Villa et al., "Exemplar-free continual representation
    learning via learnable drift compensation", ECCV 2024.

    Parameters
    ----------
    before : ClassStatistics
        In the old features.
    old, new : Encoder
        The network before the task, None at the first, and after it.
    task : Memory
        Its samples.
    exemplars : Memory
        Of earlier tasks: the map is fitted on them, too.
    layers, augment, rotated, generator
        As for `gather`.
    finetune : bool
        Whether to return real features: of each class at hand as many as there are exemplars of a
        class.
    earlier : sequence of Source, optional
        Networks before `old`, with the classes that were learnt with them.
    by_earlier : mapping of int to ClassStatistics, optional
        By task, statistics in the features of networks among `earlier`, or of `old` with the task
        `OLD`: there, only classes of this task change.
    """
    encoders = [new] if old is None else [new, old, *(source.encoder for source in earlier)]
    tasks = dict(enumerate([OLD, *(source.task for source in earlier)], start=1))
    known = {0: before}  # statistics by the network's place among the encoders
    known |= {i: by_earlier[t] for i, t in tasks.items() if t in by_earlier}
    kept, width = before.means.shape[1:]
    joins = rotated and kept == 1
    width, lowest = width // (N_ROTATIONS if joins else 1), 0.0
    drifts = [Drift(width) for _ in encoders[1:]]
    added = {i: one.emptied() for i, one in known.items()}  # where a class takes less room
    again: dict[int, dict[int, Summary]] = {}
    real: dict[int, Tensor] = {}
    n_real = 0
    if finetune and len(exemplars):
        n_real = min(MAX_REAL, passes(augment) * int(torch.bincount(exemplars.y).max()))

    def parts(row: int, x: Inputs) -> Iterator[dict[int, Tensor]]:
        nonlocal lowest
        for now, *then_by in gather(
            encoders, x, layers=layers, augment=augment, rotated=rotated, generator=generator
        ):
            for drift, then in zip(drifts, then_by, strict=True):
                drift.add(then.flatten(0, 1), now.flatten(0, 1))
            lowest = min(lowest, float(now.min()))
            found = {i: (now, *then_by)[i] for i in known}
            if joins:
                found = {i: concatenated(features) for i, features in found.items()}
            if n_real:  # where a known class comes again, its exemplars make up the number
                so_far = real.get(row, found[0][:, :0].float())
                more = found[0][:, : n_real - so_far.shape[1]].float()
                real[row] = torch.cat([so_far, more], dim=1)
            yield found

    n_known = len(before.counts)
    for row in torch.unique(task.y).tolist():  # in order
        x = task.of_class(row).x
        # An image counts once, however many views of it there are.
        found = {i: s._replace(n_images=float(len(x))) for i, s in summed(parts(row, x)).items()}
        if row < n_known:
            again[row] = found
        else:
            added = {i: one.with_class(row - n_known, found[i]) for i, one in added.items()}
    for row in torch.unique(exemplars.y).tolist():
        for _ in parts(row, exemplars.of_class(row).x):
            pass
    if drifts:
        moved = before.mapped(drifts[0].fit())
        for drift, source in zip(drifts[1:], earlier, strict=True):
            moved = moved.interpolated(source.rows, drift.fit()(source.means), ONE_STEP)
        known[0] = moved
    for row, found in again.items():
        known = {i: one.with_class(row, found[i]) for i, one in known.items()}
    after = {i: one.extended(added[i]) for i, one in known.items()}
    now = after.pop(0)
    return Updated(now, lowest >= 0, real, {tasks[i]: one for i, one in after.items()})
