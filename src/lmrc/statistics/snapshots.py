"""Snapshot ensembles: networks of earlier tasks predict, too.

The features of such a network do not drift, so the statistics of all classes learnt since are those
of their images; earlier classes have the drift-compensated statistics of that time. Ensembles of
networks of one training run: Huang et al., "Snapshot Ensembles: Train 1, Get M for Free", ICLR 2017
(there, all learn the same data). Experts with their own class statistics, without exemplars: Rypeść
et al., "Divide and not forget: Ensemble of selectively trained experts in Continual Learning", ICLR
2024.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lmrc.statistics.classes import ClassStatistics
from lmrc.statistics.classifiers import finetune_linear
from lmrc.statistics.earlier import by_task

CLASSIFIER = ("linear_weight", "linear_bias")


@dataclass(frozen=True)
class Snapshots:
    """Class statistics in the features of earlier networks, and classifiers fitted to them.

    By the task of the network. Immutable: a change returns a new object.
    """

    statistics: Mapping[int, ClassStatistics]
    classifiers: Mapping[int, Mapping[str, Tensor]]  # of each what `finetune_linear` returns

    @classmethod
    def fitted(
        cls,
        statistics: Mapping[int, ClassStatistics],
        *,
        non_negative: bool,
        generator: torch.Generator,
        device: torch.device,
    ) -> Self:
        """Fit a linear classifier to the statistics of each network."""
        fits = {
            task: finetune_linear(
                of_one, non_negative=non_negative, generator=generator, device=device
            )
            for task, of_one in statistics.items()
        }
        return cls(statistics, fits)

    @classmethod
    def from_tensors(cls, kind: str, tensors: Mapping[str, Tensor]) -> Self:
        """Undo `tensors`."""
        tasks, groups = tensors["tasks"].tolist() if tensors else [], by_task(tensors)
        if tasks != sorted(groups):
            raise ValueError("it does not hold the snapshots that it names")
        statistics, classifiers = {}, {}
        for task in tasks:
            group = groups[task]
            classifiers[task] = {name: group.pop(name) for name in CLASSIFIER}
            statistics[task] = ClassStatistics.from_tensors(kind, group)
        return cls(statistics, classifiers)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save, by name; never empty, even without a snapshot."""
        found = {"tasks": torch.tensor(list(self.statistics), dtype=torch.int64)}
        for task, statistics in self.statistics.items():
            parts = {**statistics.tensors(), **self.classifiers[task]}
            found |= {f"{task}.{name}": tensor for name, tensor in parts.items()}
        return found

    def check(self, shape: tuple[int, int, int], tasks: Collection[int]) -> None:
        """Raise ValueError unless the tensors fit such class means and networks of these tasks."""
        if not set(self.statistics) <= set(tasks):
            raise ValueError("it does not hold the networks of its snapshots")
        n_classes, rotations, width = shape
        wanted: dict[str, tuple[int, ...]] = {"linear_weight": (rotations, n_classes, width)}
        wanted |= {"linear_bias": (rotations, n_classes)}
        for task, statistics in self.statistics.items():
            statistics.check(*shape)
            for name, tensor in self.classifiers[task].items():
                if tuple(tensor.shape) != wanted[name] or tensor.dtype != torch.float32:
                    raise ValueError("the classifier of a snapshot is not of these classes")

    def stacked(self) -> dict[str, Tensor]:
        """Return the classifiers as prediction rules need them; empty if there are none."""
        each = list(self.classifiers.values())
        return {
            name.replace("linear", "snapshot"): torch.stack([fit[name] for fit in each])
            for name in CLASSIFIER
            if each
        }
