"""What a folder of images that is not to be in memory takes of it: to list, and to learn from.

    python benchmarks/streaming.py            # 200,000 images of 32×32, made first; some minutes
    python benchmarks/streaming.py --quick    # 5,000

Every stage runs in a process of its own, whose peak of memory is what is said, and that of its
largest worker, which shares much of it. The machine's memory is made to look too small. Linux.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from lmrc import LMRCClassifier
from lmrc.data import folders
from lmrc.data.folders import Files, image_files
from lmrc.experiments.environment import hardware, versions

CLASSES, SIDE = 100, 32


def main() -> None:
    """Make the folder and measure each stage."""
    options = parse()
    n = 5_000 if options.quick else options.images
    with tempfile.TemporaryDirectory() as made:
        place = options.folder or Path(made)
        if not options.folder:
            make(place, n)
        n = listed(place)
        print(f"{hardware()}; torch {versions()['torch']}, Python {versions()['python']}")
        print(f"{n:,} images; decoded they are {n * SIDE * SIDE * 3 / 2**20:,.0f} MiB\n")
        print(f"{'':<32}{'seconds':>9}{'images/s':>10}{'peak, MiB':>11}{'workers, MiB':>14}")
        stages: dict[str, Callable[[Path], int]] = {
            "nothing: imports alone": nothing,
            "listed": listed,
            "an epoch of the MLP, streamed": streamed,
            "an epoch of the MLP, in memory": in_memory,
        }
        for name, stage in stages.items():
            seconds, count, peak, workers = alone(stage, place)
            rate = f"{count / seconds:,.0f}" if count else ""
            print(f"{name:<32}{seconds:9.1f}{rate:>10}{peak:11,.0f}{workers:14,.0f}", flush=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, help="one that is there, instead of a new one")
    return parser.parse_args()


def make(place: Path, n: int) -> None:
    """Write images of random patches, the same number for each class."""
    rng = np.random.default_rng(0)
    patches = rng.integers(0, 256, (CLASSES, 4, 4, 3), dtype=np.uint8)

    def write(i: int) -> None:
        noise = np.random.default_rng(i).integers(0, 32, (4, 4, 3), dtype=np.uint8)
        pixels = (patches[i % CLASSES] // 2 + noise).repeat(SIDE // 4, 0).repeat(SIDE // 4, 1)
        Image.fromarray(pixels).save(place / f"class{i % CLASSES:03}" / f"{i:07}.png")

    for label in range(CLASSES):
        (place / f"class{label:03}").mkdir()
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(write, range(n)):
            pass


def nothing(place: Path) -> int:
    return 0


def listed(place: Path) -> int:
    files, _, _ = image_files(place)
    return sum(map(len, files.values()))


def streamed(place: Path) -> int:
    vars(folders)["memory_at_hand"] = lambda: 0.0
    return learn(image_files(place)[0])


def in_memory(place: Path) -> int:
    return learn(image_files(place)[0])


def learn(files: Files) -> int:
    """Take one epoch over all images; reading them first is part of it."""
    warnings.simplefilter("ignore")
    X, y = folders.read_files(files, SIDE, "RGB", [])
    model = LMRCClassifier(backbone="mlp", epochs=1, label_dim=200, device="cpu", random_state=0)
    model.partial_fit(X, y)
    return len(y)


def alone(stage: Callable[[Path], int], place: Path) -> tuple[float, int, float, float]:
    """Run a stage in a fresh process; return its seconds, images and peaks of memory."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measured, args=(stage, place, theirs))
    process.start()
    answer: tuple[float, int, float, float] = ours.recv()
    process.join()
    return answer


def _measured(stage: Callable[[Path], int], place: Path, pipe: Connection) -> None:
    torch.set_num_threads(1)
    begin = time.perf_counter()
    count = stage(place)
    seconds = time.perf_counter() - begin
    # Not getrusage for itself: that begins with what the parent took.
    status = Path("/proc/self/status").read_text().partition("VmHWM:")[2]
    own = int(status.split()[0])
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    pipe.send((seconds, count, own / 1024, workers / 1024))


if __name__ == "__main__":
    main()
