"""One training step of LMRC, ours against the loop one would write first, side by side in one run.

    python benchmarks/throughput.py            # on a GPU: ResNet-18, 128 images of 32×32 a step
    python benchmarks/throughput.py --quick    # a small network, some seconds on a CPU

Same network, mini-batch, images and losses. Ours is the product's own path, `partial_fit`; the
other keeps a `Dataset` of images, augments them with Pillow in the workers of a `DataLoader`, and
trains in PyTorch's defaults with the heads in a Python loop.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from lmrc import LMRCClassifier
from lmrc.experiments.environment import hardware, versions
from lmrc.methods.base import IncrementalClassifier
from lmrc.nets.backbones import build

DIM, CLASSES_PER_HEAD = 100, 10
GFLOP = 1.11  # one forward pass of ResNet-18 over one image of 32×32


def main() -> None:
    """Measure all, print the table, write it to --out."""
    options = parse(__doc__)
    images, labels = pictures(options)
    timed = {
        "ours": ours(images, labels, options, response_weight=1.0),
        "ours, eager": ours(images, labels, options, response_weight=1.0, compile=False),
        "conventional": conventional(images, labels, options),
        "ours, no frozen pass": ours(images, labels, options, response_weight=0.0),
        "ours, once more": ours(images, labels, options, response_weight=1.0),
    }
    report(timed, options)


def pictures(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Make the images of a task, and their labels."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (options.batch * options.steps, 32, 32, 3), dtype=np.uint8)
    return images, np.arange(len(images)) % CLASSES_PER_HEAD


def parse(description: str | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=39, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=8, help="measured")
    parser.add_argument("--heads", type=int, default=5, help="old ones, beside the new")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", default="auto", choices=["auto", "true"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.backbone, options.batch, options.steps, options.epochs = "cnn", 64, 8, 3
        options.heads, options.workers = 2, 2
    return options


class Noted(IncrementalClassifier):
    """Notes when each epoch ends; the loop has waited for the device by then."""

    def _train(self, *args: Any) -> Iterator[dict[str, float]]:
        self.marks: list[float] = [time.perf_counter()]
        for record in super()._train(*args):
            self.marks.append(time.perf_counter())
            yield record


class Timed(Noted, LMRCClassifier):
    """Notes when each epoch ends."""


def ours(
    images: np.ndarray, labels: np.ndarray, options: argparse.Namespace, **settings: Any
) -> dict[str, float]:
    """Time the epochs of a task that comes after `options.heads` others."""
    warm_up = 2  # epochs in which algorithms are chosen, code is compiled and steps are captured
    epochs = np.diff(marks_of(images, labels, options, warm_up, **settings))
    return timing(epochs[warm_up:], options) | {"first epoch": float(epochs[0])}


def marks_of(
    images: np.ndarray,
    labels: np.ndarray,
    options: argparse.Namespace,
    warm_up: int,
    ready: Callable[[], Any] = lambda: None,
    **settings: Any,
) -> list[float]:
    """Learn a task after `options.heads` others; return when it began and each epoch ended.

    `ready` is called before it begins.
    """
    settings = {"augment": "crop+flip"} | settings
    return taught(Timed, images, labels, options, warm_up, ready, **settings).marks


def taught(
    kind: type[Noted],
    images: np.ndarray,
    labels: np.ndarray,
    options: argparse.Namespace,
    warm_up: int,
    ready: Callable[[], Any] = lambda: None,
    **settings: Any,
) -> Noted:
    """Return a classifier that has learnt a task after `options.heads` others."""
    settings = {"compile": True if options.compile == "true" else "auto"} | settings
    model = kind(
        backbone=options.backbone,
        batch_size=options.batch,
        device=options.device,
        epochs=1,
        random_state=0,
        **settings,
    )
    few = slice(0, CLASSES_PER_HEAD)
    for head in range(options.heads):
        model.partial_fit(images[few], labels[few] + head * CLASSES_PER_HEAD)
    model.set_params(epochs=warm_up + options.epochs)
    ready()
    model.partial_fit(images, labels + options.heads * CLASSES_PER_HEAD)
    return model


def timing(epochs: np.ndarray, options: argparse.Namespace) -> dict[str, float]:
    """Return milliseconds a step and images a second from the seconds of each epoch."""
    seconds = statistics.median(epochs)
    return {
        "ms": 1000 * seconds / options.steps,
        "images": options.batch * options.steps / seconds,
        "spread": float((max(epochs) - min(epochs)) / seconds),
    }


# --- The loop one would write first ---------------------------------------------------------------


class Images(Dataset[tuple[Tensor, int]]):
    """Images that are cropped, mirrored and normalised one by one with Pillow."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        image = ImageOps.expand(Image.fromarray(self.images[i]), 4)
        left, top = (int(torch.randint(0, 9, ())) for _ in range(2))
        image = image.crop((left, top, left + 32, top + 32))
        if torch.rand(()) < 0.5:
            image = ImageOps.mirror(image)
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float() / 255
        return (x - 0.5) / 0.25, int(self.labels[i])


class Heads(nn.Module):
    """A backbone and a list of heads."""

    def __init__(self, backbone: str, n_heads: int) -> None:
        super().__init__()
        self.backbone = build(backbone, (3, 32, 32))
        width = self.backbone(torch.zeros(2, 3, 32, 32)).shape[1]
        self.heads = nn.ModuleList(nn.Linear(width, DIM) for _ in range(n_heads))

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the unit response of each head."""
        features = self.backbone(x)
        return [F.normalize(head(features), dim=1) for head in self.heads]


def conventional(
    images: np.ndarray, labels: np.ndarray, options: argparse.Namespace
) -> dict[str, float]:
    """Time the same training in eager float32 from a DataLoader."""
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(auto if options.device == "auto" else options.device)
    network = Heads(options.backbone, options.heads + 1).to(device).train()
    frozen = copy.deepcopy(network).eval().requires_grad_(False)
    vectors = F.normalize(torch.randn(CLASSES_PER_HEAD, DIM, device=device), dim=1)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    loader = DataLoader(
        Images(images, labels),
        batch_size=options.batch,
        shuffle=True,
        num_workers=options.workers,
        pin_memory=device.type == "cuda",
        persistent_workers=options.workers > 0,
    )
    marks = []
    for _ in range(2 + options.epochs):
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            answers = network(x)
            with torch.no_grad():
                before = frozen(x)
            loss = -F.cosine_similarity(answers[-1], vectors[y]).mean()
            for now, then in zip(answers[:-1], before[:-1], strict=True):
                loss = loss - F.cosine_similarity(now, then).mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        loss.item()  # wait for the device
        marks.append(time.perf_counter())
    return timing(np.diff(marks)[1:], options)


# --- What it is held against ----------------------------------------------------------------------


def matrix_rate(device: torch.device) -> float:
    """Return the device's rate on a large bfloat16 product, in TFLOP/s."""
    n = 8192
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        a @ b
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(30):
        a @ b
    torch.cuda.synchronize()
    return 30 * 2 * n**3 / (time.perf_counter() - begin) / 1e12


def report(timed: dict[str, dict[str, float]], options: argparse.Namespace) -> None:
    """Print the table and the floor; write both to --out."""
    on_gpu = torch.cuda.is_available() and options.device != "cpu"
    device = torch.device("cuda" if on_gpu else "cpu")
    used = versions()
    print(f"\n{hardware(device)}; torch {used['torch']}, {torch.get_num_threads()} threads")
    print(
        f"{options.backbone}, {options.batch} images of 32×32 a step, {options.heads} old heads "
        f"and a new one, {options.steps} steps an epoch, median of {options.epochs} epochs\n"
    )
    usual = timed["conventional"]["images"]
    print(f"{'':22} {'images/s':>9} {'ms/step':>8} {'ratio':>6} {'spread':>7} {'1st epoch':>10}")
    for name, row in timed.items():
        first = f"{row['first epoch']:8.1f} s" if "first epoch" in row else ""
        print(
            f"{name:22} {row['images']:9,.0f} {row['ms']:8.2f} {row['images'] / usual:6.2f} "
            f"{row['spread']:6.1%} {first:>10}"
        )
    facts: dict[str, Any] = {"timed": timed}
    if on_gpu and options.backbone == "resnet18":
        rate = matrix_rate(device)
        floor = 4 * GFLOP * options.batch / rate
        print(
            f"\nFloor by arithmetic: 4 × {GFLOP} GFLOP × {options.batch} at {rate:.0f} TFLOP/s "
            f"= {floor:.2f} ms"
        )
        facts |= {"rate": rate, "floor": floor}
    write(facts, device, options)


def write(facts: dict[str, Any], device: torch.device, options: argparse.Namespace) -> None:
    """Write what was found to --out, with what it was found by."""
    if options.out:
        whole = {"options": vars(options) | {"out": None}} | facts
        whole |= {"hardware": hardware(device)} | versions()
        options.out.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
