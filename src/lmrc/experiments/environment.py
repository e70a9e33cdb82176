"""Versions and hardware: part of every record."""

import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import numpy
import torch

import lmrc
from lmrc.data.image_files import n_cores


def versions() -> dict[str, str]:
    """Return the date, and versions of Python and of the packages that affect the numbers."""
    return {
        "lmrc": lmrc.__version__,
        **_commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


@cache
def _commit() -> dict[str, str]:
    """Return the commit of this code, in a clone; with a plus where files were changed since."""
    root = Path(lmrc.__file__).parents[2]
    if not (root / ".git").exists():
        return {}
    git = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=7", "--exclude=*"]
    try:
        found = subprocess.run(git, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": found.stdout.strip()}


def hardware(device: str | torch.device = "cpu") -> str:
    """Return the machine in words, such as ``x86_64, AMD EPYC 7B13, 2 cores``. It names no host."""
    cores = n_cores()
    parts = [platform.machine(), _processor(), f"{cores} core{'s' * (cores != 1)}"]
    if torch.device(device).type == "cuda":
        parts.append(torch.cuda.get_device_name(device))
    return ", ".join(part for part in parts if part)


def _processor() -> str:
    """Return the processor's name; on Linux `platform` does not know it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    name = platform.processor()
    return "" if name == platform.machine() else name
