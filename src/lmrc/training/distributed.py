"""The training step of several processes: each learns its share, gradients are averaged."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from lmrc.training.batches import Batches, MiniBatch
from lmrc.training.ranks import SYNC_BATCHNORM, wants_sync_batchnorm
from lmrc.training.step import Losses, Step


class DistributedStep(Step):
    """Steps in which every rank learns its share of each mini-batch.

    The same as `Step` on the whole mini-batch, but for the order in which floats are added up, and
    for BatchNorm: its statistics are those of a share, unless SyncBatchNorm is asked for. (With
    CutMix, partners are of the share, too.)

    Parameters
    ----------
    network : nn.Module
        The one in training, as it has grown for this task.
    losses, batches, optimiser, bf16
        As for `Step`.
    """

    def __init__(
        self,
        network: nn.Module,
        losses: Callable[[MiniBatch], Losses],
        batches: Batches,
        optimiser: torch.optim.Optimizer,
        *,
        bf16: bool,
    ) -> None:
        super().__init__(losses, batches, optimiser, bf16=bf16)
        self.network = network
        if wants_sync_batchnorm():
            if batches.device.type != "cuda":
                raise ValueError(f"SyncBatchNorm is for GPUs: leave {SYNC_BATCHNORM} out on a CPU")
            nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
        with warnings.catch_warnings():
            # Its new name is not in every torch that will do.
            warnings.filterwarnings("ignore", message=".*broadcast_buffers")
            self.wrapped = DistributedDataParallel(
                _Objective(network, super().terms),
                broadcast_buffers=False,  # training reads none of them: once an epoch will do
                static_graph=True,  # which weights a loss leaves out is the same at every step
            )

    def steps(self, rates: Sequence[float]) -> None:
        """Take all steps of an epoch; then let all ranks have the same sums and buffers."""
        super().steps(rates)
        distributed.all_reduce(self.sums)
        self.sums /= self.batches.ranks.size
        for buffer in self.network.buffers():
            distributed.broadcast(buffer, src=0)

    def terms(self, batch: MiniBatch) -> Tensor:
        """Return this rank's part of each term."""
        part: Tensor = self.wrapped(batch)
        return part

    def mean(self, term: Tensor) -> Tensor:
        """Return this rank's part of a term, such that the mean over all ranks is the term's mean.

        DistributedDataParallel averages over the ranks, whatever their shares: hence a local sum,
        over the samples of all, times the ranks. What is one number for all counts as it is.
        """
        if not term.ndim:
            return term
        ranks = self.batches.ranks
        return term.sum() * (ranks.size * ranks.counts(self.size) / self.n_inputs)

    def count(self, batch: MiniBatch) -> int:
        """Return the number of inputs in the mini-batch of all ranks."""
        return self.n_inputs

    @property
    def n_inputs(self) -> int:
        """Inputs of the mini-batch at hand, over all ranks."""
        return self.batches.rotations.copies * self.size


class _Objective(nn.Module):
    """What is minimised, as a module: gradients are averaged for what its `forward` has used."""

    def __init__(self, network: nn.Module, terms: Callable[[MiniBatch], Tensor]) -> None:
        super().__init__()
        self.network = network
        self.terms = terms

    def forward(self, batch: MiniBatch) -> Tensor:
        return self.terms(batch)
