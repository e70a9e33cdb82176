"""How long `lmrc learn` takes on photographs: four tasks of two classes, 100 photographs each.

    python benchmarks/learn.py [FOLDER] [--classes 8] [--each 100] [--tasks 4] [--features]

FOLDER has a sub-folder of photographs for each class; without it, JPEG files of coloured noise are
made, which take the same time. Each task is one command in a process of its own. Printed are its
wall-clock time and its CPU time, with start and imports: on an idle machine, the first is about the
second divided by the cores. With ``--features``, `partial_fit` on as many random features of 1,792
values is timed instead, in this process: what is left once features are computed.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from lmrc import LMRCPlusClassifier
from lmrc.experiments.environment import hardware, versions

SIDE = (500, 400)  # of a photograph that is made
WIDTH = 1792  # of features


def main() -> None:
    """Learn the tasks, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--each", type=int, default=100, help="photographs of a class, at most")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--features", action="store_true")
    options = parser.parse_args()
    print(f"{hardware(torch.device('cpu'))}; torch {versions()['torch']}")
    print(f"threads: {torch.get_num_threads()}, load at the start: {os.getloadavg()[0]:.1f}\n")
    if options.features:
        on_features(options.classes, options.each, options.tasks)
        return
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        folder = options.folder or made(root / "made", options.classes, options.each)
        classes = sorted(path for path in folder.iterdir() if path.is_dir())[: options.classes]
        print(f"{'task':>4} {'images':>7} {'seconds':>8} {'CPU seconds':>12}")
        for number, part in enumerate(np.array_split(np.arange(len(classes)), options.tasks), 1):
            task, n = root / f"task{number}", 0
            for label in part:
                (task / classes[label].name).mkdir(parents=True)
                for file in sorted(classes[label].iterdir())[: options.each]:
                    shutil.copy(file, task / classes[label].name)
                    n += 1
            seconds, of_cpu = timed("learn", str(root / "model"), str(task), "-q")
            print(f"{number:4} {n:7} {seconds:8.1f} {of_cpu:12.1f}", flush=True)


def on_features(n_classes: int, each: int, tasks: int) -> None:
    """Learn features, and print the times."""
    rng, model = np.random.default_rng(0), LMRCPlusClassifier(random_state=0, device="cpu")
    y = np.repeat(np.arange(n_classes), each)
    x = np.abs(rng.normal(size=(n_classes, WIDTH))[y] + rng.normal(size=(len(y), WIDTH)))
    print(f"{'task':>4} {'images':>7} {'CPU seconds':>12}")
    for number, part in enumerate(np.array_split(np.arange(n_classes), tasks), 1):
        rows, began = np.isin(y, part), time.process_time()
        model.partial_fit(x[rows].astype(np.float32), y[rows])
        print(f"{number:4} {rows.sum():7} {time.process_time() - began:12.1f}", flush=True)


def made(folder: Path, n_classes: int, each: int) -> Path:
    """Write photographs of coloured noise."""
    rng = np.random.default_rng(0)
    for label in range(n_classes):
        (folder / f"class{label}").mkdir(parents=True)
        colour = rng.integers(0, 128, 3)
        for i in range(each):
            noise = rng.integers(0, 128, (10, 12, 3)) + colour
            image = Image.fromarray(noise.astype(np.uint8)).resize(SIDE, Image.Resampling.BICUBIC)
            image.save(folder / f"class{label}" / f"{i:03}.jpg")
    return folder


def timed(*words: str) -> tuple[float, float]:
    """Run a command of lmrc; return its seconds, and those of CPU time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "lmrc", *words], check=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
