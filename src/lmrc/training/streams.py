"""Streams and graphs of a GPU. On a CPU, which has neither, work is done at once and in order."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

#: None stands for a CPU.
Stream = torch.cuda.Stream | None


def open_stream(device: torch.device, urgency: int = 0) -> Stream:
    """Return a stream; where the GPU is short of room, the more urgent one goes first."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device, priority=-urgency)  # type: ignore[no-untyped-call]


def current(device: torch.device) -> Stream:
    """Return the stream that work goes to now."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def on(stream: Stream) -> AbstractContextManager[None]:
    """Send work to a stream."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def wait(stream: Stream, other: Stream) -> None:
    """Let a stream wait for what another has to do by now."""
    if stream is not None and other is not None:
        stream.wait_stream(other)


class Graph:
    """Work that is captured once, without being done, and then replayed.

    Parameters
    ----------
    work : callable
        It must find its inputs and leave its results in memory that stays where it is.
    stream : Stream
        To capture on; `replay` goes to whichever is current.
    """

    def __init__(self, work: Callable[[], None], stream: Stream) -> None:
        self.replay: Callable[[], None] = work
        if stream is None:
            return
        graph = torch.cuda.CUDAGraph()
        # Threads beside this one may go on: the one that brings inputs from disk, or predicts.
        capture = torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local")
        # A capture that fails does not leave its stream: `on` does.
        with _nothing_cleared_away(), on(stream), capture:
            work()
        self.replay = graph.replay


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
