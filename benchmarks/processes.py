"""What a training step takes of the processor in one process, and in each of two that share it.

    python benchmarks/processes.py            # a minute on 2 cores

gloo, one thread each; a small CNN, 128 images of 16×16 in all, first task. Processor time,
not seconds, so that other work on the machine matters little.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

import numpy as np
import torch

from lmrc import LMRCClassifier
from lmrc.experiments.environment import hardware, versions
from lmrc.training.ranks import process_group
from lmrc.training.step import Step

IMAGES, BATCH, EPOCHS, REPEATS = 1024, 128, 6, 3


def main() -> None:
    """Measure one process and two by turns."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    if "RANK" in os.environ:
        measure()
        return
    print(f"{hardware()}; torch {versions()['torch']}, Python {versions()['python']}\n")
    print(f"{'':<16}processor time of a step in each process, ms")
    for n in (1, 2) * REPEATS:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={n}", __file__]
        said = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        ).stdout
        print(f"{n} process{'es' * (n > 1):<8}{'  '.join(sorted(said.split()))}", flush=True)


def measure() -> None:
    """Train, and print the median over the epochs; the first, which warms up, is left out."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (IMAGES, 16, 16, 3), dtype=np.uint8)
    y = np.arange(IMAGES) % 10
    taken: list[float] = []
    epoch = Step.epoch

    def timed(self: Step, rates: list[float]) -> dict[str, float]:
        begin = time.process_time()
        means = epoch(self, rates)
        taken.append((time.process_time() - begin) / len(rates))
        return means

    Step.epoch = timed  # type: ignore[method-assign,assignment]
    torch.set_num_threads(1)
    with process_group():
        model = LMRCClassifier(backbone="cnn", epochs=EPOCHS, batch_size=BATCH, device="cpu")
        model.set_params(random_state=0).partial_fit(X, y)
    sys.stdout.write(f"{1000 * statistics.median(taken[1:]):.1f}\n")  # at once: others write, too


if __name__ == "__main__":
    main()
