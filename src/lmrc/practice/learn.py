"""``lmrc learn``: learn a task from a user's files and store the model."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lmrc.data.folders import Files
from lmrc.data.images import Size
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.methods.state import pack
from lmrc.nets.auto import HOMOGENEOUS, pick_frozen
from lmrc.nets.loading import own_size
from lmrc.nets.packaged import packaged
from lmrc.nets.pretrained import channels_of
from lmrc.practice.checkpoint import FolderCheckpoint
from lmrc.practice.data_warnings import warn_about
from lmrc.practice.defaults import format_settings
from lmrc.practice.learn_output import (
    print_drift,
    print_result,
    print_samples,
    seconds_for,
    warn_of_confusion,
)
from lmrc.practice.models import open_model, spelt_as_known
from lmrc.practice.settings import (
    METHODS,
    SMALL_BATCH_SIZE,
    for_inputs,
    new_model,
    settings_kept,
    with_settings,
    without_effect,
)
from lmrc.practice.source import LabelledSamples, form_of_inputs, read_source, refuse_inside
from lmrc.practice.usage import Say, UsageError, count, printer, progress_lines, warn
from lmrc.report.live import duration
from lmrc.statistics.prediction_rules import EXACT
from lmrc.store import folder as store
from lmrc.store import unfinished
from lmrc.store.files import is_full
from lmrc.store.folder import ModelFileError
from lmrc.training.loop import TrainingError
from lmrc.training.ranks import current, is_lost

KEEP = 2  # versions, by default
USUAL_VAL = 0.2
#: Settings of a user who chooses how a backbone learns, which no default overrules.
CHOICES = {"weights", "rotations"}
FEW_IMAGES = 2000  # of a first task: mini-batches of 128 would give too few optimisation steps


@dataclass(frozen=True)
class Request:
    """The arguments of `lmrc learn`, stored for `--resume`."""

    source: str  # absolute path of the folder or file
    #: Parameters of the classifier that were given; the others are the model's.
    settings: dict[str, Any] = field(default_factory=dict)
    size: Size | None = None  # image size; for the first task only
    #: Share of the images to hold out for validation. None: `USUAL_VAL`, or nothing if accuracy is
    #: measured by leave-one-out.
    val: float | None = 0.0
    keep: int | None = None  # versions to keep; None: as many as before, `KEEP` for a new model
    device: str = "auto"  # device to compute on
    #: Method of a new model, "lmrc" or "lmrc+". None: "lmrc+" for photographs, vectors and
    #: pre-trained backbones, else "lmrc".
    method: str | None = None
    from_scratch: bool = False  # whether a new model for photographs has random initial weights


def learn(
    path: Path,
    request: Request | None,
    *,
    resume: bool = False,
    discard: bool = False,
    checkpoint_every: float = 60.0,
    quiet: bool = False,
    say: Say = print,
    images: Files | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    accept: Callable[[Mapping[str, Any]], bool] = lambda note: True,
) -> None:
    """Learn a task and store the model as a new version, completely or not at all.

    The request is None for `discard` alone and for `resume`, which reads the stored one; with
    `resume`, a request only says where the source is now. `images` of each class, in memory,
    replace the request's source; such a task cannot be resumed, and nothing is written before it
    has ended. `progress` is called with a noun, the number done and the total, instead of printing
    them. `accept` is called with the note on the new version before it is written; if it returns
    False, the version is discarded.
    """
    ranks = current()
    if request is not None and images is None:
        refuse_inside(path, Path(request.source), "the model", "choose another folder")
    if not ranks.is_first:  # of several processes, only the first writes and prints
        quiet, say, checkpoint_every = True, printer(quiet=True), math.inf
    with store.writing(path) if ranks.is_first else nullcontext(path) as place:
        if discard and ranks.is_first:
            if unfinished.is_there(place):
                say(f"the unfinished task of {path} is discarded")
            elif request is None:
                say(f"{path} has no unfinished task")
            unfinished.discard(place)
        saved = ranks.broadcast(lambda: _interrupted(place, request, resume))
        if saved is not None:
            request = _resumed_request(place, saved, request)
        if request is None:
            return
        if saved is None:
            request = _with_defaults(place, request, say, images)
        model = _model(place, request)
        if ranks.is_first:
            store.remove_leftovers(place)
        known = model.classes_ if hasattr(model, "classes_") else np.array([], dtype=str)
        if request.val is None:
            request = replace(request, val=0.0 if _leaves_out(model) else USUAL_VAL)
        samples = _read(request, model, images)
        print_samples(samples, known, say)
        if len(known) and (kept := settings_kept(model, request.settings)):
            say(f"settings kept from before: {format_settings(kept)}")
        content = {"request": asdict(request), "digest": samples.digest()}
        ranks.check_same(content, f"the content of {request.source}")
        if saved is None:
            if ranks.is_first and images is None:
                unfinished.write(place, content, {})
        elif saved[0].get("digest") != content["digest"]:
            begun = saved[0].get("request", {}).get("source", request.source)
            wrong = (
                f"{request.source} has changed since the interrupted learn: restore it"
                if begun == request.source
                else f"{request.source} does not hold the samples of the interrupted learn, which "
                f"came from {begun}: continue with those"
            )
            raise ModelFileError(
                f"{wrong}, or discard the unfinished task ({store.learn_command(path)} --discard)"
            )
        source, undo = request.source, "undo this learn with lmrc rollback"
        if images is not None:  # in the browser there are no commands
            source, undo = "", "discard the result"
        with _resumable(place):
            if saved is None:  # else it warned when the task began
                planned = for_inputs(model, samples.X)
                if warning := without_effect(planned, request.settings):
                    warn(warning)
                warn_about(samples, planned, source)
                if len(known) > 1:  # a single class is always right
                    print_drift(samples, model, say, undo)
            if not len(known):
                _fit_batches(model, samples, request)
            checkpoint = FolderCheckpoint(
                place,
                content,
                saved,
                every=checkpoint_every if images is None else math.inf,
                epochs=model._epochs,
                members=getattr(model, "members", 1),
            )
            if n := checkpoint.epochs_saved:
                say(f"resuming after {n} of {count(checkpoint.epochs, 'epoch')}")
            if checkpoint.adapted:
                say(f"resuming after {count(checkpoint.adapted, 'epoch')} of the adaptation")
            silent = quiet or sys.stderr.isatty()  # a terminal has a progress bar
            checkpoint.progress = progress or progress_lines(silent)
            _train(model, samples, checkpoint, quiet)
        if not ranks.is_first:
            return
        warn_of_confusion(model, known, undo)
        note = _note(model, samples, known, checkpoint.seconds)
        note["keep"] = request.keep or _keep_before(place)
        if not accept(note):
            return
        _write(place, model, note)
        print_result(place, model, note, say)


def _interrupted(
    place: Path, request: Request | None, resume: bool
) -> unfinished.Checkpoint | None:
    """Return the interrupted task to resume, if any.

    Without `resume`, it is discarded if none of its epochs was saved; otherwise an error.
    """
    saved = unfinished.read(place)
    if resume and saved is None:
        raise UsageError(f"{place} has no unfinished task to resume: give a folder to learn")
    if saved is not None and not resume:
        content, tensors = saved
        source = _saved_request(place, saved).source
        if not tensors:
            if request is not None and request.source != source:
                warn(f"the interrupted learn of {source} is discarded: none of it was saved")
            unfinished.discard(place)
            return None
        epochs = content.get("epochs", len(content.get("records", [])))  # of all members
        epochs += len(content.get("adaptation", []))
        raise UsageError(
            f"learning {source} was interrupted, {count(epochs, 'epoch')} saved: continue with "
            f"{store.learn_command(place)} --resume, or discard it with --discard"
        )
    return saved


def _resumed_request(place: Path, saved: unfinished.Checkpoint, new: Request | None) -> Request:
    """Return the request of the interrupted task, with the source of the new one if given."""
    request = _saved_request(place, saved)
    if new is not None:
        request = replace(request, source=new.source)
    if not Path(request.source).exists():
        raise UsageError(
            f"{request.source} does not exist: restore it, name its new place "
            f"({store.learn_command(place)} NEWPLACE --resume), or discard the task with --discard"
        )
    return request


def _saved_request(place: Path, saved: unfinished.Checkpoint) -> Request:
    content, _ = saved
    seconds = content.get("seconds", 0)
    try:
        records = [*content.get("records", []), *content.get("adaptation", [])]
        request = Request(**content["request"])
        _check_request(request)
        values = [value for record in records for value in record.values()]
        values += [seconds, content.get("epochs", 0)]
        if not all(type(value) in (int, float) for value in values):
            raise TypeError("a record that is not a number")
        return request
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"the unfinished task of {place} is from another version of lmrc: resume it with that, "
            f"or discard it with --discard ({error})"
        ) from error


def _check_request(request: Request) -> None:
    """Raise a TypeError for values that no command writes, except settings, checked elsewhere."""
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
        and isinstance(request.from_scratch, bool)
    ):
        raise TypeError("invalid options")


def _with_defaults(place: Path, request: Request, say: Say, images: Files | None) -> Request:
    """Add the defaults of a new model for photographs or vectors to a request."""
    freeze, given = request.settings.get("freeze", True), request.settings.get("backbone")
    chosen = freeze is False or CHOICES & request.settings.keys()
    others = given is not None and packaged(given) is None
    if request.from_scratch or request.method == "lmrc" or chosen or others:
        return request
    # The first of several processes reads for all: others may not have access to the folder.
    shape, n_images = current().broadcast(
        lambda: (
            ((), 0)
            if store.holds_model(place)
            else form_of_inputs(Path(request.source), request.size, images)
        )
    )
    if given:
        if len(shape) == 3:
            _say_how_long(place, request, n_images, say)
        return request
    backbone = pick_frozen(shape) if shape else None
    if backbone is None and len(shape) == 1 and not request.method:
        say(
            f"vectors of only {shape[0]} features: LMRC trains a network, which forgets some of "
            f"the old classes (--method lmrc+ --backbone {HOMOGENEOUS} forgets nothing)"
        )
    if backbone is None or (backbone == HOMOGENEOUS and freeze == "later"):  # which learns at first
        return request
    otherwise = "(choose another way with --from-scratch, --backbone or --method)"
    if backbone == HOMOGENEOUS:
        say(f"vectors: LMRC+ with exact statistics of the vectors themselves {otherwise}")
        return replace(request, method="lmrc+")
    request = replace(request, method="lmrc+", settings={**request.settings, "backbone": backbone})
    _say_how_long(place, request, n_images, say, "photographs: ", f" {otherwise}")
    return request


def _say_how_long(
    place: Path, request: Request, n_images: int, say: Say, before: str = "", after: str = ""
) -> None:
    """Say which backbone a new model has, and about how long its first task takes."""
    model = _model(place, request)
    how = "adapted to this first task, " if model._adapts else ""
    time = f"about {duration(seconds_for(model, n_images))}"
    say(f"{before}LMRC+ with the pre-trained backbone {model.backbone}, {how}{time}{after}")


def _model(place: Path, request: Request) -> LMRCClassifier:
    """Return the model to train: the one on disk with the user's settings, or a new one."""
    # The first of several processes reads it for all: others may not have access to the folder.
    content = current().broadcast(lambda: store.read(place) if store.holds_model(place) else None)
    if content is None:
        return new_model(request.method, request.settings, request.device, request.from_scratch)
    return with_settings(
        open_model(place, request.device, content),
        place,
        request.settings,
        size=request.size,
        method=request.method,
        from_scratch=request.from_scratch,
    )


def _leaves_out(model: LMRCClassifier) -> bool:
    """Return whether accuracy will be measured by leave-one-out."""
    exact = getattr(model, "statistics", "none") != "none" and model._freeze is True
    return exact and model.predict_with in ("auto", *EXACT)


def _read(request: Request, model: LMRCClassifier, images: Files | None) -> LabelledSamples:
    shape = getattr(model, "input_shape_", None)
    weights = None if shape else request.settings.get("weights")
    arrays = request.source.lower().endswith(".npz")  # which the network itself resizes
    own = None if shape or arrays else own_size(model.backbone)
    samples = read_source(
        Path(request.source),
        shape=shape,
        size=request.size or own,
        colour=own is not None or (weights is not None and channels_of(weights) == 3),
        val=request.val or 0.0,
        square=model.rotations not in ("auto", "none"),
        images=images,
    )
    known = getattr(model, "classes_", samples.y[:0])
    y, y_val = (spelt_as_known(labels, known) for labels in (samples.y, samples.y_val))
    samples = replace(samples, y=y, y_val=y_val)
    seen = {*y.tolist(), *known.tolist()}
    if unseen := sorted({str(label) for label in y_val.tolist() if label not in seen}):
        raise ValueError(
            f"{request.source} has validation images of {', '.join(unseen[:5])}, but neither "
            "training images nor a known class of that name: remove them"
        )
    return samples


def _fit_batches(model: LMRCClassifier, samples: LabelledSamples, request: Request) -> None:
    """Use small mini-batches for a first task with few images, if a network is trained."""
    exact = getattr(model, "statistics", "none") != "none" and for_inputs(model, samples.X)._freezes
    if len(samples.y) < FEW_IMAGES and not exact and "batch_size" not in request.settings:
        model.set_params(batch_size=SMALL_BATCH_SIZE)


@contextmanager
def _resumable(place: Path) -> Iterator[None]:
    """Say how to continue after an interruption; discard a task that cannot be continued."""
    try:
        yield
    except KeyboardInterrupt:
        command = store.learn_command(place)
        state = "the model is unchanged" if store.holds_model(place) else "there is no model yet"
        warn(f"{state}: continue with {command} --resume, or discard the task with --discard")
        raise
    except Exception as error:
        # Diverged training would diverge again; without a checkpoint there is nothing to resume.
        mine = current().is_first and not is_lost(error)
        if mine and (isinstance(error, TrainingError) or not unfinished.has_progress(place)):
            unfinished.discard(place)
        raise


def _train(
    model: LMRCClassifier, samples: LabelledSamples, checkpoint: FolderCheckpoint, quiet: bool
) -> None:
    model.set_params(verbose=0 if quiet else 1)
    model.checkpoint = checkpoint
    model.partial_fit(samples.X, samples.y)
    model.set_params(verbose=0)
    del model.checkpoint


def _keep_before(place: Path) -> int:
    """Return the number of versions to keep of the last `learn`."""
    notes = [v["note"] for v in store.versions(place)] if store.holds_model(place) else []
    keep = notes[-1].get("keep") if notes else None
    return keep if isinstance(keep, int) and keep > 0 else KEEP


def _note(
    model: LMRCClassifier, samples: LabelledSamples, known: Any, seconds: float
) -> dict[str, Any]:
    """Return a version's entry for the log, without class names: `forget` must leave none."""
    note: dict[str, Any] = {
        "new_classes": len(model.classes_) - len(known),
        "images": len(samples.y),
        "seconds": round(seconds, 1),
    }
    if len(samples.y_val):
        labels, right = samples.y_val, model.predict(samples.X_val) == samples.y_val
    else:
        labels, predicted = getattr(model, "left_out_", (known[:0], known[:0]))
        right = labels == predicted
        if len(labels):
            note["left_out"] = True
    old = np.isin(labels, known)
    for name, part in (("new", right[~old]), ("old", right[old])):
        if len(part):
            note[f"{name}_accuracy"], note[f"{name}_tested"] = float(part.mean()), len(part)
    return note


def _write(place: Path, model: LMRCClassifier, note: dict[str, Any]) -> None:
    """Write the new version; on a full disk, delete the checkpoint to make room."""
    content = pack(model)
    try:
        store.write(place, *content, keep=note["keep"], note=note)
    except OSError as error:
        if not is_full(error):
            raise
        unfinished.drop_state(place)
        store.write(place, *content, keep=note["keep"], note=note)
