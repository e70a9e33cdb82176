"""CUDA streams and graphs. On a CPU, which has neither, work is done at once and in order."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

#: None on a CPU.
Stream = torch.cuda.Stream | None


def open_stream(device: torch.device, urgency: int = 0) -> Stream:
    """Return a stream; the more urgent ones go first when the GPU is full."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device, priority=-urgency)  # type: ignore[no-untyped-call]


def current(device: torch.device) -> Stream:
    """Return the current stream."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def on(stream: Stream) -> AbstractContextManager[None]:
    """Use a stream."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def wait(stream: Stream, other: Stream) -> None:
    """Let a stream wait for all work that is queued on another."""
    if stream is not None and other is not None:
        stream.wait_stream(other)


class Graph:
    """Work that is captured once, without being executed, and then replayed.

    Its inputs and results must stay at the same memory. It is captured on a stream; `replay` uses
    the current one.
    """

    def __init__(self, work: Callable[[], None], stream: Stream) -> None:
        self.replay: Callable[[], None] = work
        if stream is None:
            return
        graph = torch.cuda.CUDAGraph()
        # Other threads may continue: one that loads inputs from disk, or predicts.
        capture = torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local")
        # A capture that fails does not restore the current stream: `on` does.
        with _no_garbage_collection(), on(stream), capture:
            work()
        self.replay = graph.replay


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collect garbage now and not during a capture: destroying an old graph would break it."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
