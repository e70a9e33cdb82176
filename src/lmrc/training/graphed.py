"""The training step as a CUDA graph: one launch a step.

Launched kernel by kernel, a step of a small network is mostly waiting for the host.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from lmrc.training.ahead import Ahead, Parts
from lmrc.training.batches import MiniBatch
from lmrc.training.compiling import uncompiled
from lmrc.training.delayed import Delayed
from lmrc.training.step import Step
from lmrc.training.streams import Graph, current, on, open_stream, wait

WARM_UP = 2  # eager steps of a size before it is captured: they compile and pick algorithms


def _as_it_is(batch: MiniBatch) -> MiniBatch:
    return batch


class GraphedStep(Step):
    """Steps that are captured once for each size of mini-batch, then replayed.

    The first steps of a size run eagerly, so results are those of `Step`. What cannot be captured
    runs eagerly throughout, with a warning.

    Parameters
    ----------
    prepare : callable
        Adds to a mini-batch what can be computed ahead of its step.
    delayed : Delayed, optional
        The weights whose gradients are found beside the backward pass.
    *args, **settings
        As for `Step`.
    """

    def __init__(
        self,
        *args: Any,
        prepare: Callable[[MiniBatch], MiniBatch] = _as_it_is,
        delayed: Delayed | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.prepare, self.delayed = prepare, delayed
        self.usual = self.batches.sizes[0]
        self.taken = dict.fromkeys(self.batches.sizes, 0)
        self.captured: dict[int, CapturedStep] = {}
        self.capturable = True
        self.stream = open_stream(self.batches.device, urgency=2)
        self.beside = open_stream(self.batches.device)

    def __call__(self, batch: MiniBatch) -> None:
        """Take one step."""
        if self.delayed:
            self.delayed.begin()
        super().__call__(batch)

    def backward(self, loss: Tensor) -> None:
        """Find the gradients of the sum of a loss's terms."""
        if self.delayed:
            self.delayed.drop()
        super().backward(loss)
        if self.delayed:
            self.delayed.join()

    def update(self) -> None:
        """Move the weights along their gradients."""
        super().update()
        if self.delayed:
            self.delayed.update(self.optimiser)

    def steps(self, rates: Sequence[float]) -> None:
        """Take all steps of an epoch on a stream of its own, as capture demands."""
        now = current(self.batches.device)
        wait(self.stream, now)
        wait(self.beside, now)
        with on(self.stream), _fastest_algorithms():
            start, left = 0, list(rates)
            for size, run in itertools.groupby(self.batches.sizes):
                n = len(list(run))
                with self._as_compiled(size):
                    self._run(size, start, left[:n])
                start, left = start + n * size, left[n:]
        wait(now, self.stream)

    def prefetch_epoch(self, seed: int) -> None:
        """Draw the next epoch and begin to make its mini-batches ready, beside the last steps."""
        with on(self.beside):
            self.sample_epoch(seed)
        first = self.captured.get(self.batches.sizes[0])
        if first:
            first.ahead.begin(0)
        wait(current(self.batches.device), self.beside)

    def end(self) -> None:
        """Let go of the graphs: in a cycle with all data, they would stay until Python finds it."""
        self.captured.clear()

    def _run(self, size: int, start: int, rates: list[float]) -> None:
        """Take the steps of mini-batches of one size that follow each other."""
        while rates and not self._is_captured(size):
            self.set_rate(rates.pop(0))
            self._eager_step(size, start)
            start += size
        if rates:
            self.captured[size].run(start, rates)

    def _eager_step(self, size: int, start: int) -> None:
        wait(self.stream, self.beside)  # which may still look at inputs that go now
        self.batches.load_next()
        self(self.batches.at(self.positions(start, size)))
        wait(self.beside, self.stream)
        self.taken[size] += 1

    def _is_captured(self, size: int) -> bool:
        """Say whether the step of a size is captured; do it when it is time."""
        if self.capturable and self.taken[size] >= WARM_UP and size not in self.captured:
            try:
                self.captured[size] = CapturedStep(self, size)
            except RuntimeError as error:
                self.capturable = False
                warnings.warn(
                    "the training step cannot be captured as a CUDA graph, and runs slower "
                    f"without: {str(error).splitlines()[0]}. {_remedy(error)}; compile=False ends "
                    "this warning",
                    stacklevel=2,
                )
        return size in self.captured

    def _as_compiled(self, size: int) -> AbstractContextManager[None]:
        """Leave compiled code aside for the odd last mini-batch: not worth another compile."""
        return nullcontext() if size == self.usual else uncompiled()

    def parts(self, positions: Tensor) -> Parts:
        """Make a mini-batch ready, as tensors by name."""
        with torch.autocast(self.batches.device.type, torch.bfloat16, enabled=self.bf16):
            return self.prepare(self.batches.at(positions)).rows()


class CapturedStep:
    """The step for one size of mini-batch, and the mini-batches that are made ready for it."""

    def __init__(self, taker: GraphedStep, size: int) -> None:
        self.taker = taker
        self.ahead = Ahead(taker.parts, taker.batches, size, taker.stream, taker.beside)
        self.graph = Graph(self._learn, taker.stream)

    def run(self, start: int, rates: Sequence[float]) -> None:
        """Take one step for each rate, from a position of the epoch on."""
        ahead = self.ahead
        if not ahead.is_begun:
            ahead.begin(start)
        for i, rate in enumerate(rates):
            if i % ahead.rows == 0:
                ahead.turn(is_last=i + ahead.rows >= len(rates))
            self.taker.set_rate(rate)
            self.graph.replay()

    def _learn(self) -> None:
        self.taker(self.taker.batches.batch(**self.ahead.take()))


def _remedy(error: RuntimeError) -> str:
    """Say what would let a step be captured that was not."""
    if isinstance(error, torch.OutOfMemoryError):
        return (
            "It needs more of the GPU's memory than a step without: a smaller batch_size, or "
            "precision='bf16', leaves room"
        )
    return "A backbone must not ask the GPU for values, as item() and data-dependent branches do"


@contextmanager
def _fastest_algorithms() -> Iterator[None]:
    """Let cuDNN try its algorithms for a convolution of a new shape and keep the fastest.

    Another may be the fastest the next time, and round otherwise: not where results are to be
    `repeatable`.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
