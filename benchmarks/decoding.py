"""Decoding a folder of images, by one process and by workers: time, and where it is spent.

    python benchmarks/decoding.py FOLDER          # one sub-folder for each class

Prints elapsed seconds, and CPU time for each image of the process that collects the images and of
the workers. With c idle cores, decoding takes no longer than the first, or than the second
divided by c.
"""

from __future__ import annotations

import argparse
import platform
import resource
import time
from pathlib import Path

from lmrc.data import folders, image_files
from lmrc.data.image_files import Names


def measured(files: dict[str, Names], workers: bool) -> tuple[float, float, float, int]:
    """Return seconds, CPU seconds of this process and of its workers, and how many images."""
    setattr(folders, "FORKS", workers)  # noqa: B010
    began, before = time.perf_counter(), _cpu()
    X, _ = folders.read_files(files, 64, "RGB", [])
    seconds, after = time.perf_counter() - began, _cpu()
    return seconds, after[0] - before[0], after[1] - before[1], len(X)


def _cpu() -> tuple[float, float]:
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own, of_children = (used.ru_utime + used.ru_stime for used in both)
    return own, of_children


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    files = {path.name: Names(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    cores = image_files.n_workers(image_files.MAX_DECODERS)
    print(
        f"{platform.machine()}, {cores} cores; {sum(map(len, files.values())):,} images, to 64×64"
    )
    print(f"{'':20}{'seconds':>10}{'images/s':>10}{'collecting, µs':>17}{'workers, µs':>14}")
    for name, workers in (("one process", False), (f"{cores} workers", True)):
        seconds, own, others, n = measured(files, workers)
        rates = f"{seconds:10.1f}{n / seconds:10,.0f}{1e6 * own / n:17.0f}{1e6 * others / n:14.0f}"
        print(f"{name:20}{rates}")


if __name__ == "__main__":
    main()
