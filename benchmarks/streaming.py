"""What a folder of images that is not to be in memory takes of it: to list, and to learn from.

    python benchmarks/streaming.py            # 200,000 images of 32×32, a million names; made first
    python benchmarks/streaming.py --quick    # 5,000 and 20,000

Every stage runs in a process of its own, whose peak of memory is what is said, and that of its
largest worker, which shares much of it. The machine's memory is made to look too small. Linux.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from lmrc import LMRCClassifier
from lmrc.data import folders
from lmrc.data.folders import image_files
from lmrc.data.images import read_image
from lmrc.experiments.environment import hardware, versions

CLASSES, SIDE, JPEGS = 100, 32, 500
NAMES = "names alone, listed"


def main() -> None:
    """Make the folder and measure each stage."""
    options = parse()
    if options.stage:
        measure(options.stage, options.folder)
        return
    n, n_names = (5_000, 20_000) if options.quick else (options.images, 1_000_000)
    with tempfile.TemporaryDirectory() as made:
        place, names = options.folder or Path(made, "images"), Path(made, "names")
        if not options.folder:
            make(place, n)
        make_names(names, n_names)
        n = listed(place)
        print(f"{hardware()}; torch {versions()['torch']}, Python {versions()['python']}")
        print(f"{n:,} images; decoded they are {n * SIDE * SIDE * 3 / 2**20:,.0f} MiB\n")
        print(f"{'':<32}{'seconds':>9}{'images/s':>10}{'peak, MiB':>11}{'workers, MiB':>14}")
        for name in STAGES:
            seconds, count, peak, workers = alone(name, names if name == NAMES else place)
            rate = f"{count / seconds:,.0f}" if count else ""
            print(f"{name:<32}{seconds:9.1f}{rate:>10}{peak:11,.0f}{workers:14,.0f}", flush=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, help="one that is there, instead of a new one")
    parser.add_argument("--stage", help="measure this one alone, as JSON")
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
        (place / f"class{label:03}").mkdir(parents=True)
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(write, range(n)):
            pass


def make_names(place: Path, n: int) -> None:
    """Make files that are called images and are empty: what is listed is not opened."""
    for label in range(10 * CLASSES):
        (place / f"class{label:04}").mkdir(parents=True)
    for i in range(n):
        (place / f"class{i % (10 * CLASSES):04}" / f"{i:07}.png").touch()


def nothing(place: Path) -> int:
    return 0


def listed(place: Path) -> int:
    files, _, _ = image_files(place)
    return sum(map(len, files.values()))


def jpegs(place: Path) -> int:
    """Decode JPEGs of a photograph's size, of smoothed noise, and bring them to 224×224."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as made:
        path = Path(made, "0.jpg")
        noise = Image.fromarray(rng.integers(0, 256, (75, 100, 3), dtype=np.uint8))
        noise.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
        for _ in range(JPEGS):
            read_image(path, 224, "RGB")
    return JPEGS


def streamed(place: Path) -> int:
    vars(folders)["memory_at_hand"] = lambda: 0.0
    return learn(place)


def streamed_plus(place: Path) -> int:
    vars(folders)["memory_at_hand"] = lambda: 0.0
    return learn(place, statistics="low-rank", predict_with="lda")


def learn(place: Path, **settings: Any) -> int:
    """Take one epoch over all images; reading them first is part of it."""
    warnings.simplefilter("ignore")
    X, y = folders.read_files(image_files(place)[0], SIDE, "RGB", [])
    settings |= {"backbone": "mlp", "epochs": 1, "label_dim": 200}
    LMRCClassifier(**settings, device="cpu", random_state=0).partial_fit(X, y)
    return len(y)


def alone(stage: str, place: Path) -> tuple[float, int, float, float]:
    """Run a stage in a program of its own; return its seconds, images and peaks of memory."""
    command = [sys.executable, __file__, "--folder", str(place), "--stage", stage]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, count, own, workers = json.loads(answer)
    return seconds, count, own, workers


def measure(stage: str, place: Path) -> None:
    """Print what a stage took, as JSON."""
    torch.set_num_threads(1)
    begin = time.perf_counter()
    count = STAGES[stage](place)
    seconds = time.perf_counter() - begin
    # Not getrusage for itself: that begins with what the parent took.
    own = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps([seconds, count, own / 1024, workers / 1024]))


STAGES: dict[str, Callable[[Path], int]] = {
    "nothing: imports alone": nothing,
    "listed": listed,
    NAMES: listed,
    "JPEGs of 500×375 decoded": jpegs,
    "an epoch of the MLP, in memory": learn,
    "an epoch of the MLP, streamed": streamed,
    "the same with statistics": streamed_plus,
}


if __name__ == "__main__":
    main()
