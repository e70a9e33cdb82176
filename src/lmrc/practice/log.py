"""``lmrc log``: the versions of a model. Reads only the manifest, without torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmrc.practice.usage import Say, count, noun_of, percent
from lmrc.store import folder as store
from lmrc.store.folder import ModelFileError


def history(path: Path) -> list[dict[str, Any]]:
    """Return the stored versions as JSON values, oldest first."""
    versions = store.versions(path)
    with well_formed(path):
        return [_entry(version) for version in versions]


def print_log(path: Path, say: Say) -> None:
    """Print the stored versions of a model, newest first."""
    versions = store.versions(path)
    with well_formed(path):
        lines = [
            _log_line(_entry(version), noun_of(version["model"].get("input_shape_", ())))
            for version in reversed(versions)
        ]
    for line in lines:
        say(line)


def _entry(version: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": version["number"],
        "saved": version["saved"],
        "classes": len(version["model"].get("classes", [])),
        **version["note"],
    }


def _log_line(entry: dict[str, Any], noun: str) -> str:
    parts = [f"version {entry['version']}", entry["saved"]]
    parts.append(count(entry["classes"], "class", "classes"))
    if "images" in entry:
        # As learnt at that time: some of these classes may have been removed since.
        learnt = f"{entry['new_classes']} new in {count(entry['images'], noun)}"
        parts.append(f"{learnt}, {entry['seconds']:.0f} s")
    parts += [
        f"accuracy on {name} classes {percent(entry[f'{name}_accuracy'])}"
        for name in ("new", "old")
        if f"{name}_accuracy" in entry
    ]
    return "  ".join(parts)


@contextmanager
def well_formed(path: Path) -> Iterator[None]:
    """Turn errors caused by a forged or malformed manifest into a ModelFileError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelFileError(
            f"{path} has a malformed manifest that lmrc did not write: {error!r:.200}"
        ) from error
