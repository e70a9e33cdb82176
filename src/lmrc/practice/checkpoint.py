"""Checkpoints of a training in progress, in the model's folder."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from lmrc.practice.usage import warn
from lmrc.store import unfinished
from lmrc.store.files import ModelFileError
from lmrc.training.checkpoint import Checkpoint, Member, Records, pack_training, unpack_training

_MEMBER = "member."  # prefix of tensors of members that have learnt the task


class FolderCheckpoint(Checkpoint):
    """Saves the state of training in the model's folder at intervals, with other JSON values.

    `saved` is the checkpoint of an earlier process, to resume from; `every` the minimum number of
    seconds between two checkpoints; `epochs` the number of epochs of each member. The last
    checkpoint has `epochs_saved` epochs of training and `adapted` epochs of the adaptation before
    it. `progress` can be assigned: it is called with a noun, the number done and the total, at the
    start and after each epoch.
    """

    def __init__(
        self,
        folder: Path,
        content: Mapping[str, Any],
        saved: unfinished.Checkpoint | None = None,
        *,
        every: float,
        epochs: int = 0,
        members: int = 1,
    ) -> None:
        self.progress: Callable[[str, int, int], None] = lambda noun, done, total: None
        self.epochs, self.epochs_of_member = epochs * members, epochs
        self.members = _members(saved) if saved else []
        self.epochs_saved = self._done(saved[0].get("records", [])) if saved else 0
        self.adapted = len(saved[0].get("adaptation", [])) if saved else 0
        self.folder, self.content, self.saved, self.every = folder, content, saved, every
        self.seconds_before = float(saved[0].get("seconds", 0)) if saved else 0.0
        self.started = self.last = monotonic()

    @property
    def seconds(self) -> float:
        """Training time, including that of earlier processes."""
        return self.seconds_before + monotonic() - self.started

    def _done(self, records: Sequence[dict[str, float]]) -> int:
        return len(self.members) * self.epochs_of_member + len(records)

    def finished(self, n: int) -> list[Member | None]:
        """Return the members that have learnt the task, and None for the rest of n."""
        return [*self.members, *[None] * (n - len(self.members))]

    def finish(self, pack: Callable[[], Member]) -> None:
        """Save a member that has learnt the task; the next begins with its first epoch."""
        self.members, self.saved = [*self.members, pack()], None
        if monotonic() - self.last >= self.every:
            self._write([], dict)

    def on_features(self, done: int, total: int) -> None:
        """Show how many features are computed."""
        self.progress("image", done, total)

    def on_adaptation(self, done: int, total: int) -> None:
        """Show how many epochs of an adaptation are done."""
        self.progress("adaptation epoch", done, total)

    def restore(self, network: nn.Module, optimiser: torch.optim.Optimizer) -> Records:
        """Restore the checkpoint; return the records of its epochs."""
        self.progress("epoch", self.epochs_saved, self.epochs)
        return self._restored("records", network, optimiser)

    def restore_adaptation(self, network: nn.Module, optimiser: torch.optim.Optimizer) -> Records:
        """Restore the checkpoint of an adaptation; return the records of its epochs."""
        return self._restored("adaptation", network, optimiser)

    def _restored(self, name: str, network: nn.Module, optimiser: torch.optim.Optimizer) -> Records:
        if self.saved is None or not self.saved[0].get(name):
            return []
        content, tensors = self.saved
        try:
            unpack_training(tensors, network, optimiser)
            return [dict(record) for record in content[name]]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ModelFileError(
                f"the checkpoint in {self.folder} does not fit the network: delete it with "
                f"--discard ({error})"
            ) from error

    def save(
        self,
        records: Sequence[dict[str, float]],
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
    ) -> None:
        """Save the state after the epochs of these records, if it is time."""
        self.progress("epoch", self._done(records), self.epochs)
        if monotonic() - self.last < self.every:
            return
        self._write(records, lambda: pack_training(network, optimiser))

    def save_adaptation(
        self,
        records: Sequence[dict[str, float]],
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
    ) -> None:
        """Save the state of an adaptation, if it is time; the task's own epochs come later."""
        if monotonic() - self.last >= self.every:
            self._write([], lambda: pack_training(network, optimiser), records)

    def _write(
        self,
        records: Sequence[dict[str, float]],
        training: Callable[[], dict[str, Tensor]],
        adaptation: Sequence[dict[str, float]] = (),
    ) -> None:
        content = {**self.content, "records": list(records), "seconds": self.seconds}
        if adaptation:
            content["adaptation"] = list(adaptation)
        if self.members:
            content["members"] = [description for description, _ in self.members]
            content["epochs"] = self._done(records)
        members = {
            f"{_MEMBER}{i}.{group}.{name}": tensor
            for i, (_, groups) in enumerate(self.members)
            for group, part in groups.items()
            for name, tensor in part.items()
        }
        try:
            unfinished.write(self.folder, content, members | training())
            self.epochs_saved, self.adapted = self._done(records), len(adaptation)
        except OSError as error:  # a full disk need not stop the training
            warn(f"cannot save a checkpoint in {self.folder}, training continues: {error}")
        self.last = monotonic()


def _members(saved: unfinished.Checkpoint) -> list[Member]:
    """Return the members of an ensemble that a checkpoint holds."""
    content, tensors = saved
    members: list[Member] = [(dict(found), {}) for found in content.get("members", [])]
    for name, tensor in tensors.items():
        if name.startswith(_MEMBER):
            i, group, own_name = name.removeprefix(_MEMBER).split(".", 2)
            members[int(i)][1].setdefault(group, {})[own_name] = tensor
    return members
