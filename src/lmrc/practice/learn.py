"""``lmrc learn``: a task from a user's files, into a model on disk."""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lmrc.data.images import Size
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.methods.state import pack
from lmrc.nets.pretrained import channels_of
from lmrc.practice.batch import Batch, read_source, refuse_inside
from lmrc.practice.cautions import warn_about
from lmrc.practice.checkpoint import FolderCheckpoint
from lmrc.practice.defaults import in_words
from lmrc.practice.info import earlier_with_images
from lmrc.practice.models import open_model, spelt_as_known
from lmrc.practice.settings import METHODS, SMALL_STEP, as_before, begun, changed
from lmrc.practice.usage import (
    Say,
    UsageError,
    bytes_in_words,
    count,
    percent,
    progress_lines,
    speaker,
    warn,
)
from lmrc.store import folder as store
from lmrc.store import unfinished
from lmrc.store.files import is_full
from lmrc.store.folder import ModelFileError
from lmrc.training.loop import TrainingError
from lmrc.training.ranks import current, is_lost

KEEP = 2  # versions, where no one says
SMALL = 2000  # images to begin with; for fewer, steps of 128 would be too few to learn from


@dataclass(frozen=True)
class Request:
    """What a user asked to learn: all that `lmrc learn --resume` needs to know.

    Attributes
    ----------
    source : str
        The folder or file, as an absolute path.
    settings : dict
        Parameters of the classifier that the user named; the others are the model's.
    size : int, (height, width) or None
        Of images, named at the first task.
    val : float
        Share of the images that is held out.
    keep : int or None
        Versions that the model keeps; None for as many as were asked for last, or else `KEEP`.
    device : str
        Where to compute.
    method : {"lmrc", "lmrc+"} or None
        Of a new model: "lmrc" where None.
    """

    source: str
    settings: dict[str, Any] = field(default_factory=dict)
    size: Size | None = None
    val: float = 0.0
    keep: int | None = None
    device: str = "auto"
    method: str | None = None


def learn(
    path: Path,
    request: Request | None,
    *,
    resume: bool = False,
    discard: bool = False,
    checkpoint_every: float = 60.0,
    quiet: bool = False,
    say: Say = print,
) -> None:
    """Learn a task and make the model on disk know it, all of it or nothing.

    Parameters
    ----------
    path : Path
        The model; begun where there is none.
    request : Request or None
        What to learn; None with `discard` alone, and with `resume`, which remembers it: there a
        request says where the source is now.
    resume : bool, default=False
        Go on with the task that was interrupted.
    discard : bool, default=False
        Drop it.
    checkpoint_every : float, default=60.0
        Seconds between two epochs whose state is kept.
    quiet : bool, default=False
        Show no progress.
    say : callable, default=print
        Takes each line of what was found and of what came of it.
    """
    ranks = current()
    if request is not None:
        refuse_inside(path, Path(request.source), "the model", "put it elsewhere")
    if not ranks.is_first:  # of several processes, the first alone writes and speaks
        quiet, say, checkpoint_every = True, speaker(quiet=True), math.inf
    with store.writing(path) if ranks.is_first else nullcontext(path) as place:
        if discard and ranks.is_first:
            if unfinished.is_there(place):
                say(f"what was unfinished in {place} is dropped")
            unfinished.discard(place)
        kept = ranks.broadcast(lambda: _interrupted(place, resume))
        if kept is not None:
            request = _gone_on_with(place, kept, request)
        if request is None:
            return
        model = _model(place, request)
        if ranks.is_first:
            store.remove_leftovers(place)
        known = model.classes_ if hasattr(model, "classes_") else np.array([], dtype=str)
        batch = _read(request, model)
        _tell_found(batch, known, say)
        if len(known) and (stays := as_before(model, request.settings)):
            say(f"as before, until named again: {in_words(stays)}")
        warn_about(batch, model)
        if not len(known) and "batch_size" not in request.settings and len(batch.y) < SMALL:
            model.set_params(batch_size=SMALL_STEP)
        content = {"request": asdict(request), "digest": batch.digest()}
        ranks.check_same(content, f"what {request.source} holds")
        if kept is None:
            if ranks.is_first:
                unfinished.write(place, content, {})
        elif kept[0].get("digest") != content["digest"]:
            raise ModelFileError(
                f"{request.source} is not what was being learnt when that was interrupted: put it "
                f"back, or drop what was learnt ({store.learn_command(path)} --discard)"
            )
        checkpoint = FolderCheckpoint(place, content, kept, every=checkpoint_every)
        if checkpoint.epochs_kept:
            say(f"going on after {checkpoint.epochs_kept} of {count(model._epochs, 'epoch')}")
        hushed = quiet or sys.stderr.isatty()  # a terminal has a bar
        checkpoint.tell = progress_lines(model._epochs, checkpoint.epochs_kept, hushed)
        _train(model, batch, checkpoint, place, quiet)
        if not ranks.is_first:
            return
        note = _note(model, batch, known, checkpoint.seconds)
        note["keep"] = request.keep or _kept_before(place)
        _write(place, model, note)
        _tell_learnt(place, model, note, say)


def _interrupted(place: Path, resume: bool) -> unfinished.Kept | None:
    """Return the interrupted task if it is to go on; there must be none if it is not."""
    kept = unfinished.read(place)
    if resume and kept is None:
        raise UsageError(f"nothing of {place} is unfinished: name a folder to learn")
    if kept is not None and not resume:
        source, epochs = _remembered(place, kept).source, len(kept[0].get("records", []))
        raise UsageError(
            f"learning {source} was interrupted after {count(epochs, 'kept epoch')}: go on with "
            f"{store.learn_command(place)} --resume, or drop it with --discard"
        )
    return kept


def _gone_on_with(place: Path, kept: unfinished.Kept, now: Request | None) -> Request:
    """Return what was asked; its source may be elsewhere by now, where `now` says."""
    request = _remembered(place, kept)
    if now is not None:
        request = replace(request, source=now.source)
    if not Path(request.source).exists():
        raise UsageError(
            f"there is no {request.source}: put it back, or say where it is now "
            f"({store.learn_command(place)} NEWPLACE --resume)"
        )
    return request


def _remembered(place: Path, kept: unfinished.Kept) -> Request:
    content, _ = kept
    records, seconds = content.get("records", []), content.get("seconds", 0)
    try:
        request = Request(**content["request"])
        _check_request(request)
        if type(seconds) not in (int, float) or not all(
            type(value) in (int, float) for record in records for value in record.values()
        ):
            raise TypeError("epochs that are no numbers")
        return request
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"what is unfinished in {place} was asked by another lmrc: go on with that, or "
            f"--discard it ({error})"
        ) from error


def _check_request(request: Request) -> None:
    """Refuse, with a TypeError, what no command asks for; settings are checked as all are."""
    sides = request.size if isinstance(request.size, list | tuple) else [request.size, request.size]
    if not (
        isinstance(request.source, str)
        and isinstance(request.settings, dict)
        and isinstance(request.device, str)
        and (request.size is None or (len(sides) == 2 and all(type(s) is int for s in sides)))
        and isinstance(request.val, int | float)
        and 0 <= request.val <= 0.9
        and (request.keep is None or (type(request.keep) is int and request.keep > 0))
        and (request.method is None or request.method in METHODS)
    ):
        raise TypeError("options that lmrc learn does not take")


def _model(place: Path, request: Request) -> LMRCClassifier:
    """Return the model as it is to learn: that on disk with the user's settings, or a new one."""
    # The first of several processes reads it for all: the others may not see its folder.
    content = current().broadcast(lambda: store.read(place) if store.holds_model(place) else None)
    if content is None:
        return begun(request.method, request.settings, request.device)
    model = open_model(place, request.device, content)
    return changed(model, place, request.settings, size=request.size, method=request.method)


def _read(request: Request, model: LMRCClassifier) -> Batch:
    shape = getattr(model, "input_shape_", None)
    weights = None if shape else request.settings.get("weights")
    batch = read_source(
        Path(request.source),
        shape=shape,
        size=request.size,
        colour=weights is not None and channels_of(weights) == 3,
        val=request.val,
        square=model.rotations != "none",
    )
    known = getattr(model, "classes_", batch.y[:0])
    y, y_val = (spelt_as_known(labels, known) for labels in (batch.y, batch.y_val))
    batch = replace(batch, y=y, y_val=y_val)
    taught = {*batch.y.tolist(), *known.tolist()}
    strange = sorted({str(label) for label in batch.y_val.tolist() if label not in taught})
    if strange:
        raise ValueError(
            f"{', '.join(strange[:5])}: {request.source} has images to validate with but none to "
            "learn from, and the model knows no such class: remove them"
        )
    return batch


def _train(
    model: LMRCClassifier, batch: Batch, checkpoint: FolderCheckpoint, place: Path, quiet: bool
) -> None:
    model.set_params(verbose=0 if quiet else 1)
    model.checkpoint = checkpoint
    try:
        model.partial_fit(batch.X, batch.y)
    except KeyboardInterrupt:
        command = store.learn_command(place)
        model_is = "the model is as before" if store.holds_model(place) else "there is no model yet"
        warn(f"{model_is}; {command} --resume goes on, --discard drops it")
        raise
    except Exception as error:
        # What went astray would do so again; where nothing is kept, there is nothing to go on from.
        hopeless = isinstance(error, TrainingError) or not checkpoint.epochs_kept
        if hopeless and current().is_first and not is_lost(error):
            unfinished.discard(place)
        raise
    model.set_params(verbose=0)
    del model.checkpoint


def _tell_found(batch: Batch, known: Any, say: Say) -> None:
    labels, counts = np.unique(batch.y, return_counts=True)
    of_class = dict(zip(labels.tolist(), counts.tolist(), strict=True))
    old = {label: n for label, n in of_class.items() if label in known.tolist()}
    for title, part in (
        ("new", {label: n for label, n in of_class.items() if label not in old}),
        ("known", old),
    ):
        if part:
            listed = ", ".join(f"{label} ({n:,})" for label, n in list(part.items())[:10])
            more = ", …" if len(part) > 10 else ""
            say(f"{count(len(part), f'{title} class', f'{title} classes')}: {listed}{more}")
    held = f", {len(batch.y_val):,} more to validate with" if len(batch.y_val) else ""
    held += f", those of {batch.place}" if batch.place else ""
    say(f"{count(len(batch.y), 'image')} to learn from{held}")
    if batch.mode and not len(known):
        kind, (height, width) = {"L": "grey", "RGB": "colour"}[batch.mode], batch.X.shape[1:3]
        say(f"{kind} images of {height}×{width} pixels: later ones are brought to that")
    batch.warn_of_files()


def _kept_before(place: Path) -> int:
    """Return how many versions the last `learn` was asked to keep."""
    notes = [v["note"] for v in store.versions(place)] if store.holds_model(place) else []
    kept = notes[-1].get("keep") if notes else None
    return kept if isinstance(kept, int) and kept > 0 else KEEP


def _note(model: LMRCClassifier, batch: Batch, known: Any, seconds: float) -> dict[str, Any]:
    """Say what came of it, for the log; without names, which forgetting would have to find."""
    note: dict[str, Any] = {
        "new_classes": len(model.classes_) - len(known),
        "images": len(batch.y),
        "seconds": round(seconds, 1),
    }
    if len(batch.y_val):
        right = model.predict(batch.X_val) == batch.y_val
        old = np.isin(batch.y_val, known)
        for name, part in (("new", right[~old]), ("old", right[old])):
            if len(part):
                note[f"{name}_accuracy"], note[f"{name}_tested"] = float(part.mean()), len(part)
    return note


def _write(place: Path, model: LMRCClassifier, note: dict[str, Any]) -> None:
    """Write the new version; where there is no room for it, the state for --resume makes room."""
    content = pack(model)
    try:
        store.write(place, *content, keep=note["keep"], note=note)
    except OSError as error:
        if not is_full(error):
            raise
        unfinished.drop_state(place)
        store.write(place, *content, keep=note["keep"], note=note)


def _tell_learnt(place: Path, model: LMRCClassifier, note: dict[str, Any], say: Say) -> None:
    for name in ("new", "old"):
        if f"{name}_accuracy" in note:
            tested = count(note[f"{name}_tested"], "held-out image")
            say(f"{name} classes: {percent(note[f'{name}_accuracy'])} of {tested} right")
    pool, versions = len(model.memory_) if model.memory_ else 0, store.versions(place)
    stored = f"{count(pool, 'image')} stored in it" if pool else "no images stored in it"
    if not pool and (earlier := earlier_with_images(versions)):
        kept = f"{count(earlier, 'earlier version')} that the folder keeps"
        stored += f", but some in {kept} (lmrc prune removes what is earlier)"
    say(
        f"{place} now knows {count(len(model.classes_), 'class', 'classes')}: "
        f"{note['seconds']:.0f} s, {bytes_in_words(store.size_of(versions[-1:]))}, {stored}"
    )
