"""Networks of earlier tasks: from the new images, old class means are mapped in one step.

From task to task, errors of drift compensation add up. The map from the network with which a class
was learnt to the newest one takes one step, fitted on the images at hand: the mean of both
estimates is nearer to the truth than either.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from lmrc.nets.erasing import without_row
from lmrc.nets.network import Encoder

States = Mapping[int, Mapping[str, Tensor]]  # of encoders by task, where it can in half precision
STATE = "backbone."  # what the tensors of an encoder that differ from task to task begin with


class Source(NamedTuple):
    """A network, and the classes that were learnt with it."""

    task: int
    encoder: Encoder
    rows: Tensor  # of the classes
    means: Tensor  # of their features by this network: (classes, rotations, width)


@dataclass(frozen=True)
class Earlier:
    """The networks of earlier tasks. Immutable: a change returns a new one."""

    #: (classes, rotations, width): by the network with which a class was learnt, as the means of
    #: `ClassStatistics`.
    means: Tensor
    tasks: Tensor  # (classes,): the task after which that was the network
    encoders: States  # the newest network is not among them

    @classmethod
    def begun(cls, means: Tensor, n_tasks: int) -> Self:
        """Begin with the class means by the newest network, after so many tasks."""
        return cls(means, torch.full((len(means),), n_tasks - 1), {})

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Undo `tensors`."""
        return cls(tensors["means"], tensors["tasks"], by_task(tensors))

    def tensors(self) -> dict[str, Tensor]:
        """Return them as they are saved."""
        found = {"means": self.means, "tasks": self.tasks}
        for task, state in self.encoders.items():
            found |= {f"{task}.{name}": tensor for name, tensor in state.items()}
        return found

    def check(self, shape: tuple[int, int, int], n_tasks: int, like: Encoder) -> None:
        """Refuse tensors that are not of these class means, tasks and encoder."""
        means, tasks = self.means, self.tasks
        if tuple(means.shape) != shape or means.dtype != torch.float32:
            raise ValueError("the means by earlier networks are not of its classes and features")
        if tasks.shape != shape[:1] or tasks.dtype != torch.int64:
            raise ValueError("the tasks of its classes are not one whole number each")
        wanted = _changing(like)  # none for a backbone without weights
        if wanted and set(tasks.tolist()) - {n_tasks - 1} != set(self.encoders):
            raise ValueError("it does not hold the networks that its classes were learnt with")
        for state in self.encoders.values():
            if state.keys() != wanted.keys() or any(
                t.shape != wanted[name].shape or t.dtype not in (wanted[name].dtype, torch.half)
                for name, t in state.items()
            ):
                raise ValueError("an earlier network is not as its network is")

    def sources(self, like: Encoder) -> list[Source]:
        """Return the networks on the device of another one of the same architecture."""
        found = []
        for task, encoder in self.encoders_like(like, list(self.encoders)).items():
            rows = torch.nonzero(self.tasks == task).flatten()
            found.append(Source(task, encoder, rows, self.means[rows]))
        return found

    def encoders_like(self, like: Encoder, tasks: Iterable[int]) -> dict[int, Encoder]:
        """Return the encoders of tasks, on the device of another one of the same architecture."""
        found = {}
        for task in tasks:
            encoder = copy.deepcopy(like)
            encoder.load_state_dict({**encoder.state_dict(), **self.encoders[task]})
            found[task] = encoder.eval()
        return found

    def learnt(self, old: Encoder | None, means: Tensor, rows: Tensor, task: int) -> Self:
        """Return them after a task: `means` are those of all classes by the newest network now.

        `old` is the network before the task, which taught the classes at `rows`.
        """
        own, tasks = means.clone(), torch.full((len(means),), task)
        known = torch.arange(len(self.means))
        still = known[~torch.isin(known, rows)]
        own[still], tasks[still] = self.means[still], self.tasks[still]
        newest = {} if old is None else {task - 1: _halved(_changing(old))}
        return type(self)(own, tasks, _of(tasks, {**self.encoders, **newest}))

    def without(self, row: int) -> Self:
        """Return those of the other classes."""
        tasks = without_row(self.tasks, row)
        return type(self)(without_row(self.means, row), tasks, _of(tasks, self.encoders))


def by_task(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Return the tensors whose names begin with a task and a dot, by task and by their own name."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        task, dot, own_name = name.partition(".")
        if dot:
            found.setdefault(int(task), {})[own_name] = tensor
    return found


def _of(tasks: Tensor, encoders: States) -> States:
    """Return those with which a class was learnt."""
    return {task: state for task, state in encoders.items() if bool((tasks == task).any())}


def _changing(encoder: Encoder) -> dict[str, Tensor]:
    """Return what of an encoder's state differs from task to task."""
    return {n: t.detach() for n, t in encoder.state_dict().items() if n.startswith(STATE)}


def _halved(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in half precision of what it can hold."""
    found = {}
    for name, tensor in state.items():
        half = tensor.half() if tensor.is_floating_point() else tensor
        found[name] = (half if bool(half.isfinite().all()) else tensor).cpu().clone()
    return found
