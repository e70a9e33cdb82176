"""The training step as CUDA graphs: one launch a step, the next mini-batch made beside it.

Launched kernel by kernel, a step of a small network is mostly waiting for the host. And much of it
leaves a large GPU half idle, so the next mini-batch and the frozen network's answer to it, which
depend on nothing in the step, are a second branch of its graph.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lmrc.nets.network import Frozen
from lmrc.training.batches import MiniBatch
from lmrc.training.step import Step

WARM_UP = 2  # eager steps of a size before it is captured: they compile and pick algorithms


class GraphedStep(Step):
    """Steps that are captured once for each size of mini-batch, then replayed.

    The first steps of a size run eagerly, so results are those of `Step`. What cannot be captured
    runs eagerly throughout, with a warning.

    Parameters
    ----------
    frozen : Frozen, optional
        The network that the losses consult.
    *args, **settings
        As for `Step`.
    """

    def __init__(self, *args: Any, frozen: Frozen | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        device = self.batches.device
        self.frozen = frozen
        self.most = max(self.batches.sizes)
        self.taken = dict.fromkeys(self.batches.sizes, 0)
        self.graphs: dict[int, Graphs] = {}
        self.capturable = True
        self.stream, self.beside = (
            torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )

    def steps(self, rates: Sequence[float]) -> None:
        """Take all steps of an epoch on a stream of its own, as capture demands."""
        current = torch.cuda.current_stream(self.batches.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream), _fastest_algorithms():
            self._steps(rates)
        current.wait_stream(self.stream)

    def _steps(self, rates: Sequence[float]) -> None:
        start, running = 0, None
        for i, size in enumerate(self.batches.sizes):
            self.set_rate(rates[i])
            if running is not self.graphs.get(size):
                running = None
            if self.capturable and self.taken[size] == WARM_UP:
                self._capture(size)
            if size in self.graphs:
                if running is None:
                    running = self.graphs[size]
                    self.batches.stage()
                    running.begin(start)
                if self.batches.sizes[i + 1 : i + 2] == [size]:
                    self.batches.stage()  # the next one, which this step makes ready
                running.step.replay()
            else:
                self.batches.stage()
                with self._as_compiled(size):
                    self(self.batches.at(self.positions(start, size)))
            self.taken[size] += 1
            start += size

    def _capture(self, size: int) -> None:
        try:
            with self._as_compiled(size), _nothing_cleared_away():
                self.graphs[size] = Graphs(self, size)
        except RuntimeError as error:
            self.capturable = False
            warnings.warn(
                "the training step cannot be captured as a CUDA graph, and runs slower without: "
                f"{str(error).splitlines()[0]}. A backbone must not ask the GPU for values, as "
                "item() and data-dependent branches do; compile=False ends this warning",
                stacklevel=2,
            )

    def _as_compiled(self, size: int) -> AbstractContextManager[None]:
        """Leave compiled code aside for the short mini-batch: it is not worth another compile."""
        if size == self.most:
            return nullcontext()
        eager: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
        return eager

    def prepare(self, positions: Tensor) -> tuple[MiniBatch, Tensor | None]:
        """Make a mini-batch and, if the losses ask for it, the frozen network's answer to it."""
        batch = self.batches.at(positions)
        if self.frozen is None or not self.frozen.was_asked:
            return batch, None
        autocast = torch.autocast(self.batches.device.type, torch.bfloat16, enabled=self.bf16)
        with torch.no_grad(), autocast:
            return batch, self.frozen(batch.x)


class Graphs:
    """Two graphs for one size of mini-batch: `first` makes one ready, `step` learns it.

    While `step` learns a mini-batch it makes the next one ready, as `first` does.
    """

    def __init__(self, taker: GraphedStep, size: int) -> None:
        self.taker = taker
        self.positions = taker.positions(0, size)
        self.n_samples = len(taker.batches.y)
        batch, answer = taker.prepare(self.positions)
        parts = {name: part for name, part in vars(batch).items() if part is not None}
        self.batch = replace(batch, **{n: torch.empty_like(part) for n, part in parts.items()})
        self.answer = None if answer is None else torch.empty_like(answer)
        self.first, self.step = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.first, stream=taker.stream):
            self._accept(*self._prepare())
        with torch.cuda.graph(self.step, stream=taker.stream):
            taker.beside.wait_stream(taker.stream)
            with torch.cuda.stream(taker.beside):
                coming = self._prepare()
            with self._answered():
                taker(self.batch)
            taker.stream.wait_stream(taker.beside)
            self._accept(*coming)

    def begin(self, start: int) -> None:
        """Make the mini-batch ready that begins at a position of the epoch."""
        self.positions.copy_(self.taker.positions(start, len(self.positions)))
        self.first.replay()

    def _prepare(self) -> tuple[MiniBatch, Tensor | None]:
        coming = self.taker.prepare(self.positions)
        # Behind the last one there is none: what is made then of the first samples is not used.
        self.positions.add_(len(self.positions)).remainder_(self.n_samples)
        return coming

    def _accept(self, batch: MiniBatch, answer: Tensor | None) -> None:
        """Put a mini-batch where the step looks for it."""
        for name, coming in vars(batch).items():
            if coming is not None:
                getattr(self.batch, name).copy_(coming)
        if self.answer is not None and answer is not None:
            self.answer.copy_(answer)

    def _answered(self) -> AbstractContextManager[None]:
        if self.answer is None or self.taker.frozen is None:
            return nullcontext()
        return self.taker.frozen.answering(self.batch.x, self.answer)


@contextmanager
def _nothing_cleared_away() -> Iterator[None]:
    """Clear garbage away now and not meanwhile: an old graph that goes would spoil a capture."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


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
def compiled(*networks: nn.Module | None) -> Iterator[None]:
    """Compile the trunks of networks for as long as they are trained.

    Compiled code is kept by the shapes and the structure of a trunk, so the next class batch's
    copy finds it ready.
    """
    modules = [network.get_submodule("trunk") for network in networks if network]
    for module in modules:
        # Many small kernels in one, such as the weights' casts to bfloat16.
        on_gpu = next(module.buffers()).is_cuda
        module.compile(dynamic=False, options={"combo_kernels": True} if on_gpu else None)
    try:
        yield
    finally:
        for module in modules:
            module._compiled_call_impl = None
