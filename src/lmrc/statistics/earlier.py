"""Networks of earlier tasks, which map old class means to the new features in one step.

Errors of drift compensation add up from task to task. A single map, from the network that learnt a
class to the newest one, is fitted on the new images as well: the mean of the two estimates is
closer to the true class mean than either.
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

States = Mapping[int, Mapping[str, Tensor]]  # of encoders by task; half precision if values fit
STATE = "backbone."  # prefix of the tensors of an encoder that differ from task to task


class Source(NamedTuple):
    """A network of an earlier task, and the classes that it learnt."""

    task: int
    encoder: Encoder
    rows: Tensor  # of the classes
    means: Tensor  # of their features in this network: (classes, rotations, width)


@dataclass(frozen=True)
class Earlier:
    """The networks of earlier tasks. Immutable: a change returns a new object."""

    #: (classes, rotations, width): as the means of `ClassStatistics`, but in the features of the
    #: network that learnt the class.
    means: Tensor
    tasks: Tensor  # (classes,): the task of that network
    encoders: States  # the newest network is not among them

    @classmethod
    def begun(cls, means: Tensor, n_tasks: int) -> Self:
        """Start with the class means in the newest network, after so many tasks."""
        return cls(means, torch.full((len(means),), n_tasks - 1), {})

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Undo `tensors`."""
        return cls(tensors["means"], tensors["tasks"], by_task(tensors))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save, by name."""
        found = {"means": self.means, "tasks": self.tasks}
        for task, state in self.encoders.items():
            found |= {f"{task}.{name}": tensor for name, tensor in state.items()}
        return found

    def check(self, shape: tuple[int, int, int], n_tasks: int, like: Encoder) -> None:
        """Raise ValueError unless the tensors fit these class means, tasks and encoder."""
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
        """Return the networks, with the architecture and on the device of another one."""
        found = []
        for task, encoder in self.encoders_like(like, list(self.encoders)).items():
            rows = torch.nonzero(self.tasks == task).flatten()
            found.append(Source(task, encoder, rows, self.means[rows]))
        return found

    def encoders_like(self, like: Encoder, tasks: Iterable[int]) -> dict[int, Encoder]:
        """Return the encoders of tasks, with the architecture and on the device of another one."""
        found = {}
        for task in tasks:
            encoder = copy.deepcopy(like)
            encoder.load_state_dict({**encoder.state_dict(), **self.encoders[task]})
            found[task] = encoder.eval()
        return found

    def learnt(self, old: Encoder | None, means: Tensor, rows: Tensor, task: int) -> Self:
        """Return the networks after a task, which learnt the classes at `rows`.

        `old` is the encoder before the task, `means` are the means of all classes in the new one.
        """
        own, tasks = means.clone(), torch.full((len(means),), task)
        known = torch.arange(len(self.means))
        still = known[~torch.isin(known, rows)]
        own[still], tasks[still] = self.means[still], self.tasks[still]
        newest = {} if old is None else {task - 1: _halved(_changing(old))}
        return type(self)(own, tasks, _of(tasks, {**self.encoders, **newest}))

    def without(self, row: int) -> Self:
        """Remove a class."""
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
    """Return the encoders that are still the network of a class."""
    return {task: state for task, state in encoders.items() if bool((tasks == task).any())}


def _changing(encoder: Encoder) -> dict[str, Tensor]:
    """Return the tensors of an encoder that differ from task to task."""
    return {n: t.detach() for n, t in encoder.state_dict().items() if n.startswith(STATE)}


def _halved(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies, in half precision if it can represent them."""
    found = {}
    for name, tensor in state.items():
        half = tensor.half() if tensor.is_floating_point() else tensor
        found[name] = (half if bool(half.isfinite().all()) else tensor).cpu().clone()
    return found
