"""Dynamic batching: images of concurrent requests share a forward pass.

Images queue while a mini-batch is computed, and are the next one. A single client never waits for
others.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmrc.serve.errors import ApiError

#: Computes the outputs of a mini-batch by a loaded model.
Compute = Callable[[Any, NDArray[np.uint8]], list[Any]]


@dataclass(frozen=True, eq=False)
class _Waiting:
    model: Any
    pixels: NDArray[np.uint8]
    future: asyncio.Future[Any]


class Batcher:
    """Computes outputs for images in mini-batches, in a thread of its own.

    `compute` maps a model and a mini-batch to one output per image. At most `max_batch` images are
    in a mini-batch, and `max_queue` may wait.
    """

    def __init__(self, compute: Compute, max_batch: int, max_queue: int) -> None:
        self.compute, self.max_batch, self.max_queue = compute, max_batch, max_queue
        self.on_batch: Callable[[int], None] = lambda n: None
        self._queue: deque[_Waiting] = deque()
        self._thread = ThreadPoolExecutor(1, "lmrc-predict")
        self._running: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Number of images that wait."""
        return len(self._queue)

    def check_room(self, n: int) -> None:
        """Raise an ApiError if n more images cannot wait."""
        if len(self._queue) + n > self.max_queue:
            raise ApiError(
                429, "busy", "too many images are waiting for a prediction", retry_after=1
            )

    async def outputs(self, model: Any, images: list[NDArray[np.uint8]]) -> list[Any]:
        """Return the given model's output for each image, even if a newer version is loaded."""
        self.check_room(len(images))
        loop = asyncio.get_running_loop()
        waiting = [_Waiting(model, pixels, loop.create_future()) for pixels in images]
        self._queue.extend(waiting)
        if self._running is None:
            self._running = loop.create_task(self._run())
        try:
            return list(await asyncio.gather(*(item.future for item in waiting)))
        except asyncio.CancelledError:
            for item in waiting:
                item.future.cancel()
            raise

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                batch = self._next_batch()
                if not batch:
                    continue
                pixels = np.stack([item.pixels for item in batch])
                self.on_batch(len(batch))
                try:
                    found = await loop.run_in_executor(
                        self._thread, self.compute, batch[0].model, pixels
                    )
                except Exception as error:
                    for item in batch:
                        if not item.future.done():
                            item.future.set_exception(error)
                    continue
                for item, output in zip(batch, found, strict=True):
                    if not item.future.done():
                        item.future.set_result(output)
        finally:
            self._running = None

    def _next_batch(self) -> list[_Waiting]:
        """Take waiting images of one model, in order of arrival."""
        batch: list[_Waiting] = []
        while self._queue and len(batch) < self.max_batch:
            if batch and self._queue[0].model is not batch[0].model:
                break
            item = self._queue.popleft()
            if not item.future.cancelled():
                batch.append(item)
        return batch

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
