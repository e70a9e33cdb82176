"""One training step: eager anywhere, replayed as one CUDA graph on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
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
        terms = self.terms(batch)
        self.optimiser.zero_grad(set_to_none=True)
        total(terms).backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        for name, term in terms.items():
            weighted = term.detach().mean() * len(batch.y)
            # In place from the second step on: a captured step adds to the same memory.
            self.sums[name] = self.sums[name].add_(weighted) if name in self.sums else weighted

    def terms(self, batch: MiniBatch) -> Losses:
        """Return the terms of the loss on a mini-batch."""
        with torch.autocast(self.batches.device.type, torch.bfloat16, enabled=self.bf16):
            return self.losses(batch)

    def epoch(self) -> dict[str, float]:
        """Take all steps of an epoch; return the mean of each term of the loss."""
        for term in self.sums.values():
            term.zero_()
        start = 0
        for size in self.batches.sizes:
            self.batches.stage()
            self(torch.arange(start, start + size, device=self.batches.device))
            start += size
        return {name: float(term) / start for name, term in self.sums.items()}


class GraphedStep(Step):
    """The same step, captured as a CUDA graph for each size of mini-batch and replayed.

    The first steps of a size run eagerly, so results are those of `Step`. What cannot be captured
    runs eagerly throughout, with a warning.

    Parameters
    ----------
    frozen : nn.Module, optional
        In the graph, its pass over a mini-batch stands beside that of the network in training.
    *args, **settings
        As for `Step`.
    """

    def __init__(self, *args: Any, frozen: nn.Module | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        device = self.batches.device
        self.taken = dict.fromkeys(self.batches.sizes, 0)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.capturable = True
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.frozen = frozen
        self.beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, positions: Tensor) -> None:
        """Replay the step on the samples at these positions, or capture it first."""
        size = len(positions)
        if self.capturable and self.taken[size] == WARM_UP:
            self._capture(positions.clone())
        if size in self.graphs:
            graph, static = self.graphs[size]
            static.copy_(positions)
            graph.replay()
        else:
            with self._as_compiled(size):
                super().__call__(positions)
        self.taken[size] += 1

    def terms(self, batch: MiniBatch) -> Losses:
        """Return the terms of the loss; while a graph is captured, with two branches in it."""
        if self.frozen is None or not torch.cuda.is_current_stream_capturing():
            return super().terms(batch)
        with _branch(self.frozen, batch.x, self.beside):
            return super().terms(batch)

    def _capture(self, static: Tensor) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with self._as_compiled(len(static)), torch.cuda.graph(graph, stream=self.stream):
                super().__call__(static)
        except RuntimeError as error:
            self.capturable = False
            warnings.warn(
                "the training step cannot be captured as a CUDA graph, and runs slower without: "
                f"{str(error).splitlines()[0]}. A backbone must not ask the GPU for values, as "
                "item() and data-dependent branches do; compile=False ends this warning",
                stacklevel=2,
            )
        else:
            self.graphs[len(static)] = graph, static

    def _as_compiled(self, size: int) -> AbstractContextManager[None]:
        """Leave compiled code aside for the short mini-batch: it is not worth another compile."""
        if size == max(self.taken):
            return nullcontext()
        eager: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
        return eager

    def epoch(self) -> dict[str, float]:
        """Take all steps of an epoch on a stream of its own, as capture demands."""
        self.stream.wait_stream(torch.cuda.current_stream(self.batches.device))
        with torch.cuda.stream(self.stream), _fastest_algorithms():
            means = super().epoch()
        torch.cuda.current_stream(self.batches.device).wait_stream(self.stream)
        return means


@contextmanager
def _fastest_algorithms() -> Iterator[None]:
    """Let cuDNN try its algorithms for a convolution of a new shape and keep the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def _branch(module: nn.Module, x: Tensor, stream: torch.cuda.Stream) -> Iterator[None]:
    """Let a module's pass over x be a branch of its own in the graph that is being captured.

    It needs nothing but x, so the device may run it together with whatever else x is used for:
    one network's small layers leave a large GPU half idle.
    """
    ready, switch = torch.cuda.current_stream().record_event(), ExitStack()

    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args[0] is x:  # what is made of x later on is not ready yet
            stream.wait_event(ready)
            switch.enter_context(torch.cuda.stream(stream))

    def leave(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        switch.close()
        torch.cuda.current_stream().wait_stream(stream)

    hooks = [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def compiled(*networks: nn.Module | None) -> Iterator[None]:
    """Compile the backbones of networks for as long as they are trained.

    Compiled code is kept by the shapes and the structure of a backbone, so the next class batch's
    copy finds it ready.
    """
    modules = [network.get_submodule("trunk.backbone") for network in networks if network]
    for module in modules:
        module.compile(dynamic=False)
    try:
        yield
    finally:
        for module in modules:
            module._compiled_call_impl = None
