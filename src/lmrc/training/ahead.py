"""Mini-batches made ready several at a time, beside the steps that learn those before.

A mini-batch and the frozen network's answer to it depend on nothing in a step. Made one at a time
they leave a large GPU half idle, as the steps do. So they are made in blocks, in one large pass on
a stream of its own that takes what room the steps leave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lmrc.training.batches import Batches
from lmrc.training.streams import Graph, Stream, on, wait

# What a block holds at most, unless one mini-batch is more: inputs, and values of them all. That
# many images of 32×32 in colour fill a large GPU; more would only take memory. (1: no blocks.)
INPUTS = 1024
VALUES = INPUTS * 3 * 32 * 32

#: Tensors by name; the first axis is that of the inputs.
Parts = Mapping[str, Tensor]


def rows_of_block(batches: Batches, size: int) -> int:
    """Return how many mini-batches of a size to make at a time: all blocks about equally many."""
    if batches.buffer:
        return 1  # only one at a time is on the device
    inputs = batches.rotations.copies * size
    count = batches.sizes.count(size)
    most = min(INPUTS // inputs, VALUES // batches.n_values(size), count)
    n_blocks = -(-count // max(1, most))
    return -(-count // n_blocks)


class Ahead:
    """The mini-batches of one size, in blocks: one to learn from, and the next in the making.

    Parameters
    ----------
    prepare : callable
        Maps positions of the epoch to the parts of a mini-batch, always the same ones.
    batches : Batches
    size : int
        Samples in a mini-batch.
    stream, beside : Stream
        Where steps run, and where blocks are made.

    Attributes
    ----------
    rows : int
        Mini-batches in a block.
    block : Tensor
        The one to learn from. A row holds all parts of a mini-batch: one copy takes them.
    """

    def __init__(
        self,
        prepare: Callable[[Tensor], Parts],
        batches: Batches,
        size: int,
        stream: Stream,
        beside: Stream,
    ) -> None:
        self.prepare, self.batches, self.size = prepare, batches, size
        self.stream, self.beside = stream, beside
        self.rows = rows_of_block(batches, size)
        self.is_begun = False
        self.positions = self._positions(0)
        wait(beside, stream)
        with on(beside):  # once as it is: cuDNN picks its algorithms, which no capture allows
            parts = prepare(self.positions)
        wait(stream, beside)
        inputs = batches.rotations.copies * size
        self.layout = {name: part[:inputs].to("meta") for name, part in parts.items()}
        words = sum(_words(part) for part in self.layout.values())
        self.block = torch.empty(self.rows, words, dtype=torch.long, device=batches.device)
        self.made = torch.empty_like(self.block)
        self.slot = torch.zeros(1, dtype=torch.long, device=batches.device)
        self.making = Graph(self._make, beside)

    def begin(self, start: int) -> None:
        """Have the block made that begins at a position of the epoch."""
        with on(self.beside):
            self.positions.copy_(self._positions(start))
        self._make_next()
        self.is_begun = True

    def turn(self, *, is_last: bool) -> None:
        """Let `block` be the one that was being made; have the one after it made."""
        wait(self.stream, self.beside)
        self.block.copy_(self.made)
        self.slot.zero_()
        wait(self.beside, self.stream)
        self.is_begun = False
        if not is_last:
            self._make_next()

    def take(self) -> Parts:
        """Return a copy of the block's next mini-batch: a captured step gets another each time."""
        row = self.block.index_select(0, self.slot)[0]
        self.slot.add_(1)
        return self._unpacked(row)

    def _make_next(self) -> None:
        with on(self.beside):
            self.batches.load_next()
            self.making.replay()

    def _make(self) -> None:
        copies, made = self.batches.rotations.copies, self._unpacked(self.made)
        for name, part in self.prepare(self.positions).items():
            # The first turn of all images comes first: that of each mini-batch's is wanted first.
            by_turn = part.view(copies, self.rows, self.size, *part.shape[1:])
            by_row = by_turn.transpose(0, 1)
            made[name].view(by_row.shape).copy_(by_row)
        # Behind the last sample the first come again, in rows that are not used.
        self.positions.add_(len(self.positions)).remainder_(len(self.batches.y))

    def _positions(self, start: int) -> Tensor:
        end = start + self.rows * self.size
        positions = torch.arange(start, end, device=self.batches.device)
        return positions.remainder_(len(self.batches.y))

    def _unpacked(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the parts of mini-batches in one or many rows, each laid out as it was alone."""
        parts, start = {}, 0
        for name, like in self.layout.items():
            words = rows[..., start : start + _words(like)].view(like.dtype)
            shape, strides = words.shape[:-1] + like.shape, words.stride()[:-1] + like.stride()
            parts[name] = words.as_strided(shape, strides)
            start += _words(like)
        return parts


def _words(part: Tensor) -> int:
    """Return how many words of 8 bytes a part takes, up to where a GPU likes the next to begin."""
    return -(-part.nbytes // 128) * 16
