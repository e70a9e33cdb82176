"""Several runs on one device at once: images a second of 1, 2, 4 and 8 of them together.

    python benchmarks/side_by_side.py            # on a GPU: ResNet-18, 128 images of 32×32 a step
    python benchmarks/side_by_side.py --quick    # a small network, 1 and 2 runs

Each run is a process of its own, as with `lmrc reproduce --jobs`, and learns a task after
`--heads` others by `partial_fit`. Counted is only the time in which all of them are at work. On a
GPU start NVIDIA's MPS first (`nvidia-cuda-mps-control -d`): without it runs take turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
from typing import Any

import numpy as np
import torch
from throughput import marks_of, parse, pictures, write

from lmrc.experiments.environment import hardware, versions

WARM_UP = 2  # epochs before a run is ready


def main() -> None:
    """Measure each number of runs, print the table, write it to --out."""
    options = parse(__doc__)
    numbers = [1, 2] if options.quick else [1, 2, 4, 8]
    rates = {n: together(n, options) for n in numbers}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"\n{hardware(device)}; torch {versions()['torch']}")
    print(f"{options.backbone}, {options.batch} images of 32×32 a step\n")
    print(f"{'runs':>4} {'images/s':>9} {'each':>8} {'ratio':>6}")
    for n, rate in rates.items():
        print(f"{n:4} {rate:9,.0f} {rate / n:8,.0f} {rate / rates[1]:6.2f}")
    write({"images_per_second": rates}, device, options)


def together(n: int, options: argparse.Namespace) -> float:
    """Return the images a second that n runs learn together."""
    context = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU
    ready, results = context.Barrier(n), context.Queue()
    runs = [context.Process(target=work, args=(options, n, ready, results)) for _ in range(n)]
    for run in runs:
        run.start()
    marks = [np.array(results.get()) for _ in runs]
    for run in runs:
        run.join()
    begin = max(ends[WARM_UP] for ends in marks)
    end = min(ends[-1] for ends in marks)
    # How many epochs each had behind it when all had begun, and when the first one ended.
    epochs = sum(np.diff(np.interp([begin, end], ends, range(len(ends))))[0] for ends in marks)
    return float(epochs * options.batch * options.steps / (end - begin))


def work(options: argparse.Namespace, n: int, ready: Any, results: Any) -> None:
    """Learn beside the others; tell when each epoch ended, by the clock that all share."""
    torch.set_num_threads(max(1, torch.get_num_threads() // n))
    results.put(marks_of(*pictures(options), options, WARM_UP, ready.wait, response_weight=1.0))


if __name__ == "__main__":
    main()
