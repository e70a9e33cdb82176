"""Training that can be interrupted and resumed after an epoch."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Records = list[dict[str, float]]  # of epochs
#: A member of an ensemble, as it is saved: plain values, and groups of tensors.
Member = tuple[dict[str, Any], dict[str, dict[str, Tensor]]]


class Checkpoint:
    """Saves the state of training after an epoch, and restores it. This base class saves nothing.

    The seed of an epoch follows from its number, so the next epoch needs only the weights, the
    momenta and the records of earlier epochs.
    """

    def restore(self, network: nn.Module, optimiser: Optimizer) -> Records:
        """Restore the saved state; return the records of the epochs that are done."""
        return []

    def save(self, records: Records, network: nn.Module, optimiser: Optimizer) -> None:
        """Save the state after the last of these records."""

    def finished(self, n: int) -> list[Member | None]:
        """Return the members, of n, that have learnt the task, and None for the rest."""
        return [None] * n

    def finish(self, pack: Callable[[], Member]) -> None:
        """Save a member that has learnt the task; `pack` returns it."""

    def on_features(self, done: int, total: int) -> None:
        """Report how many of a task's features are computed, before training on them."""

    def on_adaptation(self, done: int, total: int) -> None:
        """Report how many epochs of a pre-trained backbone's adaptation are done."""

    def restore_adaptation(self, network: nn.Module, optimiser: Optimizer) -> Records:
        """Restore the state of an adaptation, which precedes the training."""
        return []

    def save_adaptation(self, records: Records, network: nn.Module, optimiser: Optimizer) -> None:
        """Save the state of an adaptation."""


class Adaptation(Checkpoint):
    """Saves an adaptation of n epochs in the checkpoint of the task, and reports its progress."""

    def __init__(self, task: Checkpoint, n: int) -> None:
        self.task, self.n = task, n

    def restore(self, network: nn.Module, optimiser: Optimizer) -> Records:
        """Restore the adaptation."""
        records = self.task.restore_adaptation(network, optimiser)
        self.task.on_adaptation(len(records), self.n)
        return records

    def save(self, records: Records, network: nn.Module, optimiser: Optimizer) -> None:
        """Save the adaptation, and report how many epochs are done."""
        self.task.on_adaptation(len(records), self.n)
        self.task.save_adaptation(records, network, optimiser)


NO_CHECKPOINT = Checkpoint()

_NETWORK, _MOMENTUM = "network.", "momentum."  # prefixes
_BUFFER = "momentum_buffer"  # key in the optimiser's state


def pack_training(network: nn.Module, optimiser: Optimizer) -> dict[str, Tensor]:
    """Return the tensors that training resumes from."""
    weights = {f"{_NETWORK}{name}": tensor for name, tensor in network.state_dict().items()}
    momenta = {
        f"{_MOMENTUM}{i}": optimiser.state[p][_BUFFER]
        for i, p in enumerate(_parameters(optimiser))
        if optimiser.state[p].get(_BUFFER) is not None
    }
    return weights | momenta


def unpack_training(
    tensors: Mapping[str, Tensor], network: nn.Module, optimiser: Optimizer
) -> None:
    """Restore what `pack_training` returned."""
    network.load_state_dict(
        {n.removeprefix(_NETWORK): t for n, t in tensors.items() if n.startswith(_NETWORK)}
    )
    for i, p in enumerate(_parameters(optimiser)):
        if (momentum := tensors.get(f"{_MOMENTUM}{i}")) is not None:
            # In the parameter's memory format: channels last, on a GPU.
            buffer = torch.empty_like(p, requires_grad=False)
            optimiser.state[p][_BUFFER] = buffer.copy_(momentum)


def _parameters(optimiser: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimiser.param_groups for p in group["params"]]
