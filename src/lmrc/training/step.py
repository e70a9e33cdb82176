"""One training step: eager anywhere, replayed as one CUDA graph on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lmrc.training.batches import Batches, MiniBatch

#: The terms of a loss by name: per sample (n,), averaged over the mini-batch, or one scalar.
Losses = Mapping[str, Tensor]

WARM_UP = 2  # eager steps of a size before it is captured: they compile and pick algorithms


def total(terms: Losses) -> Tensor:
    """Sum the terms of a loss, each averaged over the mini-batch."""
    return torch.stack([term.mean() for term in terms.values()]).sum()


class Step:
    """Take the samples at given positions of the epoch, and improve the network on them.

    Nothing in it waits for the device: the loss terms are summed up there.

    Parameters
    ----------
    losses : callable
        Maps a mini-batch to the terms of the loss.
    batches : Batches
    optimiser : torch.optim.Optimizer
    bf16 : bool
        Run the forward pass in bfloat16; weights and losses stay float32.
    """

    def __init__(
        self,
        losses: Callable[[MiniBatch], Losses],
        batches: Batches,
        optimiser: torch.optim.Optimizer,
        *,
        bf16: bool,
    ) -> None:
        self.losses, self.batches, self.optimiser, self.bf16 = losses, batches, optimiser, bf16
        self.sums: dict[str, Tensor] = {}

    def __call__(self, positions: Tensor) -> None:
        """Take one step on the samples at these positions."""
        batch = self.batches.at(positions)
        with torch.autocast(self.batches.device.type, torch.bfloat16, enabled=self.bf16):
            terms = self.losses(batch)
        self.optimiser.zero_grad(set_to_none=True)
        total(terms).backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        for name, term in terms.items():
            weighted = term.detach().mean() * len(batch.y)
            # In place from the second step on: a captured step adds to the same memory.
            self.sums[name] = self.sums[name].add_(weighted) if name in self.sums else weighted

    def epoch(self) -> dict[str, float]:
        """Take all steps of an epoch; return the mean of each term of the loss."""
        for term in self.sums.values():
            term.zero_()
        start = 0
        for size in self.batches.sizes:
            self(torch.arange(start, start + size, device=self.batches.device))
            start += size
        return {name: float(term) / start for name, term in self.sums.items()}


class GraphedStep(Step):
    """The same step, captured as a CUDA graph for each size of mini-batch and replayed.

    The first steps of a size run eagerly, so results are those of `Step`.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        batches = self.batches
        self.taken = dict.fromkeys(batches.sizes, 0)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.stream = torch.cuda.Stream(batches.device)  # type: ignore[no-untyped-call]

    def __call__(self, positions: Tensor) -> None:
        """Replay the step on the samples at these positions, or capture it first."""
        size = len(positions)
        if self.taken[size] < WARM_UP:
            with self._as_compiled(size):
                super().__call__(positions)
        else:
            if size not in self.graphs:
                graph, static = torch.cuda.CUDAGraph(), positions.clone()
                with self._as_compiled(size), torch.cuda.graph(graph, stream=self.stream):
                    super().__call__(static)
                self.graphs[size] = graph, static
            graph, static = self.graphs[size]
            static.copy_(positions)
            graph.replay()
        self.taken[size] += 1

    def _as_compiled(self, size: int) -> AbstractContextManager[None]:
        """Leave compiled code aside for the short mini-batch: it is not worth another compile."""
        if size == max(self.taken):
            return nullcontext()
        eager: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
        return eager

    def epoch(self) -> dict[str, float]:
        """Take all steps of an epoch on a stream of its own, as capture demands."""
        self.stream.wait_stream(torch.cuda.current_stream(self.batches.device))
        fastest = torch.backends.cudnn.flags(enabled=True, benchmark=True)  # of its algorithms
        with torch.cuda.stream(self.stream), fastest:
            means = super().epoch()
        torch.cuda.current_stream(self.batches.device).wait_stream(self.stream)
        return means


@contextmanager
def compiled(*networks: nn.Module | None) -> Iterator[None]:
    """Compile the backbones of networks for as long as they are trained.

    Compiled code is kept by the shapes and the structure of a backbone, so the next class batch's
    copy finds it ready.
    """
    modules = [network.get_submodule("trunk.backbone") for network in networks if network]
    for module in modules:
        module.compile()
    try:
        yield
    finally:
        for module in modules:
            module._compiled_call_impl = None
