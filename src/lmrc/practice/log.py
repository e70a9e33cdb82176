"""``lmrc log``: how a model came to be. Reads the manifest alone, and takes no torch to do so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmrc.practice.usage import Say, count, percent
from lmrc.store import folder as store
from lmrc.store.folder import ModelFileError


def history(path: Path) -> list[dict[str, Any]]:
    """Return the versions that are kept, oldest first: plain values."""
    kept = store.versions(path)
    with well_formed(path):
        return [
            {
                "version": version["number"],
                "saved": version["saved"],
                "classes": len(version["model"].get("classes", [])),
                **version["note"],
            }
            for version in kept
        ]


def tell_log(path: Path, say: Say) -> None:
    """Say which versions a model keeps, newest first."""
    entries = history(path)
    with well_formed(path):
        lines = [_log_line(entry) for entry in reversed(entries)]
    for line in lines:
        say(line)


def _log_line(entry: dict[str, Any]) -> str:
    parts = [f"version {entry['version']}", entry["saved"]]
    parts.append(count(entry["classes"], "class", "classes"))
    if "images" in entry:
        # What came then: some of it may have been forgotten since.
        came = f"{entry['new_classes']} new in {count(entry['images'], 'image')}"
        parts.append(f"{came}, {entry['seconds']:.0f} s")
    parts += [
        f"{name} {percent(entry[f'{name}_accuracy'])}"
        for name in ("new", "old")
        if f"{name}_accuracy" in entry
    ]
    return "  ".join(parts)


@contextmanager
def well_formed(path: Path) -> Iterator[None]:
    """Say so where a manifest, checksum and all, was made up by someone else."""
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelFileError(
            f"{path} has a manifest that lmrc did not write: {error!r:.200}"
        ) from error
