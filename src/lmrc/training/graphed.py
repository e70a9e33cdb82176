"""The training step as a CUDA graph: one launch per step.

Launched kernel by kernel, a step of a small network mostly waits for the host.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from lmrc.training.batches import MiniBatch
from lmrc.training.device import uncompiled
from lmrc.training.prefetch import Parts, Prefetcher
from lmrc.training.step import Step
from lmrc.training.streams import Graph, current, on, open_stream, wait

WARM_UP = 2  # eager steps of a size before it is captured: they compile and pick algorithms


def _identity(batch: MiniBatch) -> MiniBatch:
    return batch


class GraphedStep(Step):
    """Steps that are captured once for each size of mini-batch, then replayed.

    The first steps of a size run eagerly, so results are those of `Step`. A step that cannot be
    captured runs eagerly throughout, with a warning. `prepare` adds to a mini-batch what can be
    computed before its step.
    """

    def __init__(
        self,
        *args: Any,
        prepare: Callable[[MiniBatch], MiniBatch] = _identity,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.prepare = prepare
        self.usual_size = self.batches.sizes[0]
        self.n_eager = dict.fromkeys(self.batches.sizes, 0)
        self.captured: dict[int, CapturedStep] = {}
        self.capturable = True
        self.stream = open_stream(self.batches.device, urgency=1)
        self.side_stream = open_stream(self.batches.device)

    def steps(self, rates: Sequence[float]) -> None:
        """Take all steps of an epoch, on a stream of its own as capture requires."""
        now = current(self.batches.device)
        wait(self.stream, now)
        wait(self.side_stream, now)
        with on(self.stream), _fastest_algorithms():
            start, left = 0, list(rates)
            for size, run in itertools.groupby(self.batches.sizes):
                n = len(list(run))
                with self._compiled_for(size):
                    self._run(size, start, left[:n])
                start, left = start + n * size, left[n:]
        wait(now, self.stream)

    def prefetch_epoch(self, seed: int) -> None:
        """Sample the next epoch and prefetch its first mini-batches, beside the last steps."""
        with on(self.side_stream):
            self.sample_epoch(seed)
        first = self.captured.get(self.batches.sizes[0])
        if first:
            first.prefetcher.start(0)
        wait(current(self.batches.device), self.side_stream)

    def end(self) -> None:
        """Release the graphs: they are in a reference cycle with all data."""
        self.captured.clear()

    def _run(self, size: int, start: int, rates: list[float]) -> None:
        """Take the steps of consecutive mini-batches of one size."""
        while rates and not self._is_captured(size):
            self.set_rate(rates.pop(0))
            self._eager_step(size, start)
            start += size
        if rates:
            self.captured[size].run(start, rates)

    def _eager_step(self, size: int, start: int) -> None:
        wait(self.stream, self.side_stream)  # which may still read inputs that are replaced now
        self.batches.load_next()
        positions = torch.arange(start, start + size, device=self.batches.device)
        self(self.batches.at(positions))
        wait(self.side_stream, self.stream)
        self.n_eager[size] += 1

    def _is_captured(self, size: int) -> bool:
        """Tell whether the step of a size is captured; capture it after the warm-up."""
        if self.capturable and self.n_eager[size] >= WARM_UP and size not in self.captured:
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

    def _compiled_for(self, size: int) -> AbstractContextManager[None]:
        """Run a last mini-batch of another size eagerly: it is not worth another compilation."""
        return nullcontext() if size == self.usual_size else uncompiled()

    def parts(self, positions: Tensor) -> Parts:
        """Return a prepared mini-batch, as tensors by name."""
        with torch.autocast(self.batches.device.type, torch.bfloat16, enabled=self.bf16):
            return self.prepare(self.batches.at(positions)).rows()


class CapturedStep:
    """The step for one size of mini-batch, and the prefetcher of its mini-batches."""

    def __init__(self, step: GraphedStep, size: int) -> None:
        self.step = step
        self.prefetcher = Prefetcher(step.parts, step.batches, size, step.stream, step.side_stream)
        self.graph = Graph(self._learn, step.stream)

    def run(self, start: int, rates: Sequence[float]) -> None:
        """Take one step for each rate, from a position of the epoch on."""
        prefetcher = self.prefetcher
        if not prefetcher.is_started:
            prefetcher.start(start)
        for i, rate in enumerate(rates):
            if i % prefetcher.rows == 0:
                prefetcher.swap(is_last=i + prefetcher.rows >= len(rates))
            self.step.set_rate(rate)
            self.graph.replay()

    def _learn(self) -> None:
        self.step(self.step.batches.batch(**self.prefetcher.take()))


def _remedy(error: RuntimeError) -> str:
    """Return how to make the step capturable."""
    if isinstance(error, torch.OutOfMemoryError):
        return (
            "It needs more of the GPU's memory than a step without: a smaller batch_size, or "
            "precision='bf16', leaves room"
        )
    return "A backbone must not ask the GPU for values, as item() and data-dependent branches do"


@contextmanager
def _fastest_algorithms() -> Iterator[None]:
    """Let cuDNN benchmark its algorithms for each new shape, unless results are deterministic.

    Another algorithm may be the fastest the next time, and round differently.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
