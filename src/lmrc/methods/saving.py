"""Models to disk, for `lmrc.methods.persistence` to bring back."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from lmrc.methods.state import pack
from lmrc.store import folder, unfinished
from lmrc.store.folder import ModelFileError
from lmrc.training.device import default_dtype_guard


def remember(model: Any, path: str | os.PathLike[str], state: str | None) -> None:
    """Let a model know from which folder it is, and in which state that was."""
    model._on_disk = Path(path).resolve(), state


def state_of(path: str | os.PathLike[str]) -> str | None:
    """Return what tells the model in a folder from all others; None where none can be read."""
    with suppress(ModelFileError):
        return folder.fingerprint(Path(path))
    return None


@default_dtype_guard()
def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a model to a folder, unless that has learnt since the model was read from it."""
    with folder.writing(path):
        place, then = getattr(model, "_on_disk", (None, None))
        if place == Path(path).resolve() and state_of(path) not in (then, None):
            raise ModelFileError(
                f"{path} has changed since this model was read from it or written to it, and what "
                "it has learnt there would be lost: load it again, or save to another folder"
            )
        unfinished.refuse(Path(path))
        folder.write(path, *pack(model))
        remember(model, path, state_of(path))
