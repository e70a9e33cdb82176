"""Training that survives the end of its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import nn

from lmrc.practice.usage import warn
from lmrc.store import unfinished
from lmrc.store.files import ModelFileError
from lmrc.training.checkpoint import Checkpoint, Records, pack_training, unpack_training


class FolderCheckpoint(Checkpoint):
    """Keeps the state of training in the model's folder, once in a while.

    Parameters
    ----------
    folder : Path
        Of the model.
    content : mapping
        What else to keep: plain JSON values.
    kept : pair of dict or None
        What an earlier process kept, to go on from.
    every : float
        Seconds between two states that are kept, at least.

    Attributes
    ----------
    epochs_kept : int
        How many epochs need not be learnt again.
    tell : callable
        Is told after each epoch how many are done; set it.
    """

    def __init__(
        self,
        folder: Path,
        content: Mapping[str, Any],
        kept: unfinished.Kept | None = None,
        *,
        every: float,
    ) -> None:
        self.tell: Callable[[int], None] = lambda done: None
        self.epochs_kept = len(kept[0].get("records", [])) if kept else 0
        self.folder, self.content, self.kept, self.every = folder, content, kept, every
        self.before = float(kept[0].get("seconds", 0)) if kept else 0.0
        self.started = self.last = monotonic()

    @property
    def seconds(self) -> float:
        """Time that learning has taken, in this process and before."""
        return self.before + monotonic() - self.started

    def restore(self, network: nn.Module, optimiser: torch.optim.Optimizer) -> Records:
        """Put back what was kept; return the records of the epochs that are done."""
        if self.kept is None or not self.kept[1]:
            return []
        content, tensors = self.kept
        try:
            unpack_training(tensors, network, optimiser)
            return [dict(record) for record in content["records"]]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ModelFileError(
                f"what was kept of the interrupted learning in {self.folder} does not fit: "
                f"--discard it ({error})"
            ) from error

    def save(
        self,
        records: Sequence[dict[str, float]],
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
    ) -> None:
        """Keep the state after the last of these records, if it is time."""
        self.tell(len(records))
        if monotonic() - self.last < self.every:
            return
        content = {**self.content, "records": list(records), "seconds": self.seconds}
        try:
            unfinished.write(self.folder, content, pack_training(network, optimiser))
            self.epochs_kept = len(records)
        except OSError as error:  # a full disk is no reason to stop before the end
            warn(f"cannot keep the state of training in {self.folder}, going on: {error}")
        self.last = monotonic()
