"""What quarter turns cost: LMRC+ without them, with one by chance, with all, one after the other.

    python benchmarks/rotations.py            # on a GPU: ResNet-18, images of 32×32
    python benchmarks/rotations.py --quick    # a small network, a minute or two on a CPU

Each learns a task after `--heads` others by `partial_fit`, alone on the device. Timed are an
epoch, what comes after the last one (statistics, and what is tuned on them), and prediction.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch
from throughput import Noted, parse, pictures, taught, write

from lmrc import LMRCPlusClassifier
from lmrc.experiments.environment import hardware, versions

WARM_UP = 2  # epochs in which algorithms are chosen, code is compiled and steps are captured
WAYS = {
    "none": {"rotations": "none", "objective": "cosine"},
    "one": {"rotations": "one"},
    "all": {"rotations": "all"},
}


class Timed(Noted, LMRCPlusClassifier):
    """Notes when each epoch ends."""


def main() -> None:
    """Measure each way, print the table, write it to --out."""
    options = parse(__doc__)
    timed = {name: time_one(settings, options) for name, settings in WAYS.items()}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"\n{hardware(device)}; torch {versions()['torch']}, {torch.get_num_threads()} threads")
    print(
        f"{options.backbone}, {options.batch} images of 32×32 a step, {options.heads} old heads\n"
    )
    print(f"{'rotations':9} {'ms/step':>8} {'images/s':>9} {'after, s':>9} {'predicted/s':>12}")
    for name, row in timed.items():
        print(
            f"{name:9} {row['ms']:8.2f} {row['images']:9,.0f} {row['after']:9.2f} "
            f"{row['predicted']:12,.0f}"
        )
    write({"timed": timed}, device, options)


def time_one(settings: dict[str, Any], options: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of one way, and what it learns and predicts in one."""
    images, labels = pictures(options)
    model = taught(Timed, images, labels, options, WARM_UP, first_epochs=1, **settings)
    end = time.perf_counter()
    seconds = statistics.median(np.diff(model.marks)[WARM_UP:])
    model.predict(images)  # algorithms are chosen
    begin = time.perf_counter()
    model.predict(images)
    return {
        "ms": 1000 * seconds / options.steps,
        "images": len(images) / seconds,
        "after": end - model.marks[-1],
        "predicted": len(images) / (time.perf_counter() - begin),
    }


if __name__ == "__main__":
    main()
