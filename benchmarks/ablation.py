"""What each piece of the fast training step brings: all on, then without each, in one run.

    python benchmarks/ablation.py --compile true    # on a GPU: ResNet-18, images of 32×32
    python benchmarks/ablation.py --quick           # a small network, a minute or two on a CPU

A piece is replaced from outside by the plain form of what it does. Each row trains the same model,
which knows `--heads` tasks, alone on the device; all on comes once more midway and at the end.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
from throughput import Noted, parse, pictures, taught, timing, write
from torch import Tensor

from lmrc import LMRCClassifier, LMRCPlusClassifier
from lmrc.experiments.environment import hardware, versions
from lmrc.nets import network
from lmrc.training import graphed, prefetch
from lmrc.training.batches import Batches
from lmrc.training.prefetch import Parts
from lmrc.training.step import Step
from lmrc.training.streams import Stream

WARM_UP = 2  # epochs in which algorithms are chosen, code is compiled and steps are captured


class Ended(Exception):  # noqa: N818
    """The last epoch is over: what comes after it is not timed."""


class Untold(Noted):
    """Ends when the epochs are over, if it is told to, with when each was and the last loss."""

    ends_early: ClassVar[bool] = False

    def _train(self, *args: Any) -> Iterator[dict[str, float]]:
        loss = float("nan")
        for record in super()._train(*args):
            loss = record["loss"]
            yield record
        if self.ends_early:
            raise Ended(self.marks, loss)


class LMRC(Untold, LMRCClassifier):
    """LMRC, timed."""


class LMRCPlus(Untold, LMRCPlusClassifier):
    """LMRC+, timed."""


METHODS: dict[str, tuple[type[Untold], dict[str, Any]]] = {
    "LMRC": (LMRC, {"augment": "crop+flip", "response_weight": 1.0}),
    "LMRC+": (LMRCPlus, {"augment": "cutmix", "first_epochs": 1}),
}

# --- The plain form of each piece -----------------------------------------------------------------


class InStep:
    """Makes each mini-batch, and the old network's outputs for it, in the step that learns it."""

    rows, is_started = 1, False

    def __init__(
        self,
        prepare: Callable[[Tensor], Parts],
        batches: Batches,
        size: int,
        stream: Stream,
        side_stream: Stream,
    ) -> None:
        self.prepare, self.n = prepare, len(batches.y)
        self.positions = torch.arange(size, device=batches.device)

    def start(self, start: int) -> None:
        """Go to a position of the epoch."""
        size = len(self.positions)
        self.positions.copy_(torch.arange(start, start + size, device=self.positions.device))

    def swap(self, *, is_last: bool) -> None:
        """Do nothing: there is no chunk."""

    def take(self) -> Parts:
        """Return the next mini-batch."""
        parts = self.prepare(self.positions)
        self.positions.add_(len(self.positions)).remainder_(self.n)
        return parts


class Launched:
    """Work that the host launches kernel by kernel each time."""

    def __init__(self, work: Callable[[], None], stream: Stream) -> None:
        self.replay = work


def _fold_nothing(*_: Any) -> None:
    return None


PIECES: dict[str, list[Any]] = {
    "prefetch": [
        mock.patch.object(graphed, "Prefetcher", InStep),
        # The next epoch is not sampled while steps still read this one.
        mock.patch.object(graphed.GraphedStep, "prefetch_epoch", Step.prefetch_epoch),
    ],
    "fold": [mock.patch.object(network, "fold", _fold_nothing)],
    "graph": [mock.patch.object(m, "Graph", Launched) for m in (graphed, prefetch)],
}
ALL_OFF = ("prefetch", "fold", "graph")
ROWS: list[tuple[str, Sequence[str]]] = [
    ("all on", ()),
    ("without prefetch", ("prefetch",)),
    ("all on, once more", ()),
    ("without fold", ("fold",)),
    ("without graph", ("graph",)),
    ("without all", ALL_OFF),
    ("all on, at the end", ()),
]


@contextmanager
def without(names: Sequence[str]) -> Iterator[None]:
    """Replace pieces by their plain forms."""
    with ExitStack() as stack:
        for name in names:
            for patch in PIECES[name]:
                stack.enter_context(patch)
        yield


# --- Measuring ------------------------------------------------------------------------------------


def main() -> None:
    """Measure each row for each method, print the table, write it to --out."""
    options = parse(__doc__)
    torch._dynamo.config.recompile_limit = 64  # all rows are compiled in one process
    timed: dict[str, dict[str, dict[str, float]]] = {}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"\n{hardware(device)}; torch {versions()['torch']}, {torch.get_num_threads()} threads")
    print(
        f"{options.backbone}, {options.batch} images of 32×32 a step, {options.heads} old heads, "
        f"{options.steps} steps an epoch, median of {options.epochs} epochs\n"
    )
    print(
        f"{'':31} {'ms/step':>8} {'slower':>7} {'spread':>7} {'1st epoch':>10} {'loss':>8}",
        flush=True,
    )
    for method in METHODS:
        timed[method] = {}
        model, images, labels = prepared(method, options)
        for name, names in ROWS:
            timed[method][name] = row = time_one(model, images, labels, names, options)
            slower = row["ms"] / timed[method]["all on"]["ms"] - 1
            print(
                f"{method:6} {name:24} {row['ms']:8.3f} {slower:7.1%} {row['spread']:7.1%} "
                f"{row['first epoch']:8.1f} s {row['loss']:8.3f}",
                flush=True,
            )
            write({"timed": timed}, device, options)


def prepared(method: str, options: argparse.Namespace) -> tuple[Untold, np.ndarray, np.ndarray]:
    """Return a model that knows `options.heads` tasks, and the images and labels of the next."""
    kind, settings = METHODS[method]
    images, labels = pictures(options)
    few = argparse.Namespace(**vars(options) | {"heads": options.heads - 1, "epochs": 1})
    first = slice(0, len(images) // options.steps)
    settings = settings | {"compile": False}
    model = taught(kind, images[first], labels[first], few, 0, **settings)
    assert isinstance(model, Untold)
    model.set_params(compile=True if options.compile == "true" else options.compile)
    model.set_params(epochs=WARM_UP + options.epochs)
    return model, images, labels + options.heads * (labels.max() + 1)


def time_one(
    model: Untold,
    images: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    options: argparse.Namespace,
) -> dict[str, float]:
    """Time the epochs of the next task without some pieces."""
    model = copy.deepcopy(model)
    marks, loss = [0.0], float("nan")
    with without(names), mock.patch.object(Untold, "ends_early", True):
        try:
            model.partial_fit(images, labels)
        except Ended as end:
            marks, loss = end.args
    epochs = np.diff(marks)
    return timing(epochs[WARM_UP:], options) | {"first epoch": float(epochs[0]), "loss": loss}


if __name__ == "__main__":
    main()
