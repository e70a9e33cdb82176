"""One training step; `graphed` and `distributed` have those for CUDA graphs and several ranks."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from lmrc.training.batches import Batches, MiniBatch

#: The terms of a loss by name: per sample (n,), averaged over the mini-batch, or one scalar.
Losses = Mapping[str, Tensor]
#: Maps a mini-batch to the terms of the loss.
LossFunction = Callable[[MiniBatch], Losses]


#: Names of other values in the record of an epoch.
RESERVED = ("task", "epoch", "learning_rate", "cutmix", "loss")


def check(terms: Losses, n: int) -> None:
    """Reject terms that are neither one value per input nor a scalar, and names that are taken."""
    if not isinstance(terms, Mapping) or not terms:
        found = "no terms" if isinstance(terms, Mapping) else f"a {type(terms).__name__}"
        raise TypeError(f"losses returned {found}: return a dict of its terms")
    for name, term in terms.items():
        if name in RESERVED:
            raise ValueError(f"losses: no term can be named {name!r}: records have that")
        if not isinstance(term, Tensor):
            raise TypeError(
                f"losses: the term {name!r} is a {type(term).__name__}: return a tensor, or leave "
                "the term out in all steps of the task"
            )
        if term.ndim and term.shape != (n,):
            raise ValueError(
                f"losses: the term {name!r} has the shape {tuple(term.shape)}: return one value "
                f"for each of the {n} inputs, or a scalar"
            )


class Step:
    """Train the network on a mini-batch.

    It never waits for the device: the loss terms are summed up there. With `bf16` the forward pass
    is in bfloat16; weights and losses stay float32.
    """

    def __init__(
        self, losses: LossFunction, batches: Batches, optimiser: Optimizer, *, bf16: bool
    ) -> None:
        self.losses, self.batches, self.optimiser, self.bf16 = losses, batches, optimiser, bf16
        self.names: tuple[str, ...] = ()
        self.sums = torch.zeros(0)
        self.rate: float | None = None
        self.sampled_seed: int | None = None  # of an epoch that is sampled and not yet trained on
        self.size = 0  # samples of the current mini-batch, over all ranks

    def __call__(self, batch: MiniBatch) -> None:
        """Take one step."""
        with torch.autocast(self.batches.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.terms(batch)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward(torch.ones_like(loss))  # type: ignore[no-untyped-call]
        self.optimiser.step()
        if not len(self.sums):
            self.sums = torch.zeros_like(loss.detach())
        # In place: a captured step adds there.
        self.sums.add_(loss.detach(), alpha=self.count(batch))

    def terms(self, batch: MiniBatch) -> Tensor:
        """Return each term of the loss, averaged over the mini-batch; their sum is minimised."""
        terms = self.losses(batch)
        check(terms, len(batch.y))
        if self.names and self.names != tuple(terms):
            raise ValueError(
                f"losses returned the terms {', '.join(terms)}, and {', '.join(self.names)} in an "
                "earlier step: return the same ones in all steps of a task, 0 · another if need be"
            )
        self.names = tuple(terms)
        return torch.stack([self.mean(term) for term in terms.values()])

    def mean(self, term: Tensor) -> Tensor:
        """Return the mean of a term over the mini-batch."""
        return term.mean()

    def count(self, batch: MiniBatch) -> int:
        """Return the number of inputs in the mini-batch."""
        return len(batch.y)

    def sample_epoch(self, seed: int) -> None:
        """Sample the next epoch, unless `prefetch_epoch` has done so."""
        if self.sampled_seed != seed:
            self.batches.sample_epoch(torch.Generator().manual_seed(seed))
            self.sampled_seed = seed

    def epoch(self, rates: Sequence[float], next_seed: int | None = None) -> dict[str, float]:
        """Take all steps of an epoch; return the mean of each term of the loss.

        `rates` are those of the steps, `next_seed` is the seed of the next epoch, if any.
        """
        self.sampled_seed = None
        self.sums.zero_()
        self.steps(rates)
        if next_seed is not None:
            self.prefetch_epoch(next_seed)
        n = self.batches.n_inputs
        return {name: term / n for name, term in zip(self.names, self.sums.tolist(), strict=True)}

    def steps(self, rates: Sequence[float]) -> None:
        """Take all steps of an epoch."""
        for rate, (size, positions) in zip(rates, self.batches.shards(), strict=True):
            self.set_rate(rate)
            self.size = size
            self(self.batches.at(positions))

    def prefetch_epoch(self, seed: int) -> None:
        """Sample the next epoch while the device still computes."""

    def end(self) -> None:
        """Release what only steps need, after the last one."""

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        if rate == self.rate:
            return
        self.rate = rate
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # in place: a captured step reads it there
            else:
                group["lr"] = rate
