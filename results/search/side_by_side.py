"""Run commands side by side on one GPU, each up to a number of tasks, and no more at a time.

    python results/search/side_by_side.py QUEUE.json --slots 5 --until 1500

`QUEUE.json` lists jobs: ``{"out": folder, "tasks": 5, "command": "lmrc reproduce …"}``, most
valuable first. A job that has its records is ended with SIGTERM; when ``--until`` seconds are over,
all are.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def n_records(folder: Path) -> int:
    """Count the tasks that a job has finished."""
    path = folder / "records.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def main() -> None:
    """Work through the queue."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("queue", type=Path)
    parser.add_argument("--slots", type=int, default=5)
    parser.add_argument("--until", type=float, default=1e9)
    options = parser.parse_args()
    left = json.loads(options.queue.read_text())
    running: list[tuple[Any, subprocess.Popen[bytes]]] = []
    start = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while left or running:
            while left and len(running) < options.slots:
                job = left.pop(0)
                folder = Path(job["out"])
                folder.mkdir(parents=True, exist_ok=True)
                words = shlex.split(job["command"])
                words = [sys.executable, "-m", "lmrc", *words[1:], "--out", job["out"]]
                log = (folder / "log").open("wb")
                env = os.environ | job.get("env", {})
                running.append((job, subprocess.Popen(words, stdout=log, stderr=log, env=env)))
            time.sleep(1)
            over = time.monotonic() - start > options.until
            for job, process in list(running):
                done = n_records(Path(job["out"])) >= job["tasks"] and not job.get("whole")
                if process.poll() is None and (over or done):
                    process.terminate()
                if process.poll() is not None:
                    running.remove((job, process))
                    seconds = time.monotonic() - start
                    print(job["out"], process.returncode, f"{seconds:.0f} s", flush=True)
            if over:
                left = []
    finally:
        for _, process in running:
            process.terminate()
        for _, process in running:
            process.wait()


if __name__ == "__main__":
    main()
