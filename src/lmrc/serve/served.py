"""A served model: its newest version in memory, and how it switches to a newer one."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmrc.data.class_names import class_name
from lmrc.data.images import Mode
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.practice.models import open_model, outputs_by_image, unknown_threshold
from lmrc.practice.predict import Scored
from lmrc.practice.source import image_form
from lmrc.serve.batcher import Batcher
from lmrc.serve.errors import ApiError
from lmrc.serve.settings import Settings
from lmrc.store import folder as store
from lmrc.store.folder import ModelFileError

Signature = tuple[int, int, int]
MAX_THRESHOLDS = 100  # that are remembered: any share may be asked for
CHECK_SECONDS = 0.1  # between looks for a version that another process has written


@dataclass(frozen=True, eq=False)
class Loaded:
    """One version of a model, ready to predict."""

    model: LMRCClassifier
    version: int
    #: The form of its images.
    size: tuple[int, int]
    mode: Mode
    classes: Scored
    #: `lmrc.practice.models.unknown_threshold` of the model. Remembered: it takes milliseconds.
    unknown_threshold: Callable[[float], float]


class Served:
    """A model folder that answers requests while this process or another changes it.

    It may not exist yet. Its name is part of the URLs.
    """

    def __init__(self, name: str, path: Path, settings: Settings) -> None:
        self.name, self.path, self.device = name, path, settings.device
        self.batcher = Batcher(compute, settings.max_batch, settings.max_queue)
        self.problem = ""  # why the newest version cannot be loaded
        self._loaded: Loaded | None = None
        self._signature: Signature | None = None
        self._lock = threading.Lock()
        self._loading: asyncio.Task[None] | None = None
        self._checked = 0.0  # when

    @property
    def version(self) -> int:
        """Number of the version that predicts; 0 if there is none."""
        return self._loaded.version if self._loaded else 0

    async def current(self) -> Loaded:
        """Return the version to predict with; a newer one is loaded in the background."""
        if self._loaded is None:
            await asyncio.to_thread(self.refresh)
        elif self._loading is None and monotonic() > self._checked + CHECK_SECONDS:
            self._checked = monotonic()
            if _signature(self.path) != self._signature:
                self._loading = asyncio.create_task(self._load())
        loaded = self._loaded
        if loaded is None:
            if self.problem:
                raise ApiError(503, "damaged", self.problem)
            raise ApiError(409, "empty_model", f"{self.name} has not learnt anything yet")
        return loaded

    async def _load(self) -> None:
        try:
            await asyncio.to_thread(self.refresh)
        finally:
            self._loading = None

    def refresh(self) -> None:
        """Load the newest version, if it is not loaded; requests see the old one or the new one."""
        with self._lock:
            while (signature := _signature(self.path)) != self._signature:
                problem = ""
                try:
                    loaded = None if signature is None else _load(self.path, self.device)
                except (ModelFileError, ValueError, OSError) as error:
                    loaded, problem = self._loaded, self.plain(error)
                if _signature(self.path) == signature:  # else it was replaced while we read
                    self._loaded, self._signature, self.problem = loaded, signature, problem

    def known_classes(self) -> list[str]:
        """Return the names of the classes of the newest version; none if it cannot be loaded."""
        self.refresh()
        known = [] if (loaded := self._loaded) is None else loaded.model.classes_.tolist()
        return [class_name(str(label)) for label in known]

    def plain(self, error: BaseException | str) -> str:
        """Return a message without the model's path on this machine."""
        return str(error).replace(str(self.path), self.name)


def _signature(path: Path) -> Signature | None:
    """Return a cheap fingerprint of the manifest, without reading it; None if there is none."""
    try:
        status = (path / store.MANIFEST).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _load(path: Path, device: str) -> Loaded:
    model, version = open_model(path, device), store.versions(path)[-1]["number"]
    model._check_prediction_rule()
    size, mode = image_form(model.input_shape_)
    threshold = lru_cache(MAX_THRESHOLDS)(partial(unknown_threshold, model))
    return Loaded(model, version, size, mode, Scored(model), threshold)


def compute(loaded: Loaded, pixels: NDArray[np.uint8]) -> list[Any]:
    """Return the outputs of the model for each image."""
    return list(outputs_by_image(loaded.model, pixels))


def find_models(settings: Settings) -> dict[str, Served]:
    """Return the models to serve by name: a single one, or all in a folder.

    Raises `ValueError` if the path holds something else.
    """
    path = settings.path
    if path.is_dir() and not store.holds_model(path):
        models = [p for p in sorted(path.iterdir()) if p.is_dir() and store.holds_model(p)]
        if models:
            return {p.name: Served(p.name, p, settings) for p in models}
    try:
        store.refuse_foreign(path)
    except ModelFileError as error:
        raise ValueError(f"{error}, or one with models in it") from error
    return {path.absolute().name: Served(path.absolute().name, path, settings)}
