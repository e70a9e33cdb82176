"""Where files that can be recreated are kept."""

import os
import platform
from pathlib import Path

CACHE_VARIABLE = "LMRC_CACHE"


def cache_folder() -> Path:
    r"""Return the folder for files that can be recreated: ``LMRC_CACHE``, or the platform's place.

    That is ``$XDG_CACHE_HOME/lmrc`` or ``~/.cache/lmrc`` on Linux, ``~/Library/Caches/lmrc`` on
    macOS and ``%LOCALAPPDATA%\lmrc`` on Windows. It may be deleted at any time.
    """
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser()
    if platform.system() == "Windows":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif platform.system() == "Darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "lmrc"
