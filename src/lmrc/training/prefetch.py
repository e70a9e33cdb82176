"""Mini-batches prefetched in chunks, on a side stream, while earlier ones are trained on.

A mini-batch and the old network's outputs for it do not depend on the step before. Computed one at
a time they would leave a large GPU half idle. So a chunk of them is computed in one forward pass,
on a stream of its own with lower priority than the steps.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lmrc.training.batches import Batches
from lmrc.training.streams import Graph, Stream, on, wait

# Limits of a chunk, unless one mini-batch has more: inputs, and values of all inputs. So many
# images of 32×32 in colour fill a large GPU; more would only take memory.
MAX_INPUTS = 1024
MAX_VALUES = MAX_INPUTS * 3 * 32 * 32

#: Tensors by name; the first axis is that of the inputs.
Parts = Mapping[str, Tensor]


def chunk_rows(batches: Batches, size: int) -> int:
    """Return how many mini-batches of a size are in a chunk; all chunks are about equal."""
    if batches.buffer:
        return 1  # only one at a time is on the device
    inputs = batches.rotations.copies * size
    count = batches.sizes.count(size)
    limit = min(MAX_INPUTS // inputs, MAX_VALUES // batches.n_values(size), count)
    n_chunks = -(-count // max(1, limit))
    return -(-count // n_chunks)


class Prefetcher:
    """The mini-batches of one size, in two chunks: one is trained on while the next is computed.

    `prepare` maps positions of the epoch to the parts of a mini-batch, always the same ones. Each
    of the `rows` of a chunk holds all parts of one mini-batch, so that a single copy reads them.
    """

    def __init__(
        self,
        prepare: Callable[[Tensor], Parts],
        batches: Batches,
        size: int,
        stream: Stream,
        side_stream: Stream,
    ) -> None:
        self.prepare, self.batches, self.size = prepare, batches, size
        self.stream, self.side_stream = stream, side_stream
        self.rows = chunk_rows(batches, size)
        self.is_started = False
        self.positions = self._positions(0)
        wait(side_stream, stream)
        with on(side_stream):  # once eagerly: cuDNN picks its algorithms, which no capture allows
            parts = prepare(self.positions)
        wait(stream, side_stream)
        inputs = batches.rotations.copies * size
        self.layout = {name: part[:inputs].to("meta") for name, part in parts.items()}
        words = sum(_words(part) for part in self.layout.values())
        self.chunk = torch.empty(self.rows, words, dtype=torch.long, device=batches.device)
        self.next_chunk = torch.empty_like(self.chunk)
        self.row = torch.zeros(1, dtype=torch.long, device=batches.device)
        self.graph = Graph(self._compute, side_stream)

    def start(self, start: int) -> None:
        """Compute the chunk that begins at a position of the epoch."""
        with on(self.side_stream):
            self.positions.copy_(self._positions(start))
        self._compute_next()
        self.is_started = True

    def swap(self, *, is_last: bool) -> None:
        """Make the next chunk the current one, and compute the one after it."""
        wait(self.stream, self.side_stream)
        self.chunk.copy_(self.next_chunk)
        self.row.zero_()
        wait(self.side_stream, self.stream)
        self.is_started = False
        if not is_last:
            self._compute_next()

    def take(self) -> Parts:
        """Return a copy of the chunk's next mini-batch: a captured step gets another each time."""
        row = self.chunk.index_select(0, self.row)[0]
        self.row.add_(1)
        return self._unpacked(row)

    def _compute_next(self) -> None:
        with on(self.side_stream):
            self.batches.load_next()
            self.graph.replay()

    def _compute(self) -> None:
        copies, unpacked = self.batches.rotations.copies, self._unpacked(self.next_chunk)
        for name, part in self.prepare(self.positions).items():
            # `prepare` returns the first rotation of all images first; a mini-batch needs its own.
            by_rotation = part.view(copies, self.rows, self.size, *part.shape[1:])
            by_row = by_rotation.transpose(0, 1)
            unpacked[name].view(by_row.shape).copy_(by_row)
        # Past the last sample the first come again, in rows that are not used.
        self.positions.add_(len(self.positions)).remainder_(len(self.batches.y))

    def _positions(self, start: int) -> Tensor:
        end = start + self.rows * self.size
        positions = torch.arange(start, end, device=self.batches.device)
        return positions.remainder_(len(self.batches.y))

    def _unpacked(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the parts of mini-batches in one or many rows, in their original strides."""
        parts, start = {}, 0
        for name, like in self.layout.items():
            words = rows[..., start : start + _words(like)].view(like.dtype)
            shape, strides = words.shape[:-1] + like.shape, words.stride()[:-1] + like.stride()
            parts[name] = words.as_strided(shape, strides)
            start += _words(like)
        return parts


def _words(part: Tensor) -> int:
    """Return how many words of 8 bytes a part takes, aligned to 128 bytes."""
    return -(-part.nbytes // 128) * 16
