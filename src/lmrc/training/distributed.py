"""Data-parallel training step: each rank has a shard, gradients are averaged."""

import warnings
from collections.abc import Callable, Sequence

from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lmrc.training.batches import Batches, MiniBatch
from lmrc.training.ranks import SYNC_BATCHNORM, wants_sync_batchnorm
from lmrc.training.step import LossFunction, Step


class DistributedStep(Step):
    """Steps in which every rank trains on its shard of each mini-batch.

    The same as `Step` on the whole mini-batch, except for rounding and for BatchNorm: its
    statistics are those of a shard, unless SyncBatchNorm is enabled. (CutMix partners are of the
    shard, too.)
    """

    def __init__(
        self,
        network: nn.Module,
        losses: LossFunction,
        batches: Batches,
        optimiser: Optimizer,
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
            # Its new name is missing in older versions of torch.
            warnings.filterwarnings("ignore", message=".*broadcast_buffers")
            self.wrapped = DistributedDataParallel(
                _Objective(network, super().terms),
                broadcast_buffers=False,  # training reads none: once per epoch is enough
                static_graph=True,  # the unused weights are the same at every step
            )

    def steps(self, rates: Sequence[float]) -> None:
        """Take all steps of an epoch; then synchronise sums and buffers."""
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

        DistributedDataParallel averages over ranks, whatever the size of their shards: hence the
        local sum, divided by all samples, times the number of ranks. Scalars stay as they are.
        """
        if not term.ndim:
            return term
        ranks = self.batches.ranks
        return term.sum() * (ranks.size * ranks.has_shard(self.size) / self.n_inputs)

    def count(self, batch: MiniBatch) -> int:
        """Return the number of inputs in the mini-batch of all ranks."""
        return self.n_inputs

    @property
    def n_inputs(self) -> int:
        """Inputs of the current mini-batch, over all ranks."""
        return self.batches.rotations.copies * self.size


class _Objective(nn.Module):
    """The loss as a module: DDP averages gradients of what `forward` uses."""

    def __init__(self, network: nn.Module, terms: Callable[[MiniBatch], Tensor]) -> None:
        super().__init__()
        self.network = network
        self.terms = terms

    def forward(self, batch: MiniBatch) -> Tensor:
        return self.terms(batch)
