"""``lmrc evaluate``: how well a model does on labelled images."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from lmrc.data.folders import describe_skipped
from lmrc.data.images import UnreadableImageError, list_images, read_image
from lmrc.evaluation.model import ModelScore, reject_threshold, score_model
from lmrc.experiments.environment import hardware, versions
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.methods.state import pack
from lmrc.practice.batch import form_of, read_source, refuse_inside
from lmrc.practice.models import backbone_name, open_to_predict, prediction_rule, spelt_as_known
from lmrc.practice.usage import Say, percent, warn
from lmrc.report.model import EXPERIMENT
from lmrc.report.page import read_contents, write_contents
from lmrc.report.records import (
    DESCRIPTION,
    RECORDS,
    Command,
    Description,
    encoded,
    read_description,
    replace_file,
    write_description,
)

QUESTION = "Each image is shown to the model, whose heads all answer; {}. How often is it right?"
TELLS_APART = 0.65  # mean of the shares kept and rejected; chance, whatever the threshold, is 0.5
#: What wins, by the classifier's ``predict_with``.
WINS = {
    "wta": "the class whose label vector is nearest to its own head's response wins",
    "lda": "the class wins that is the likeliest by the statistics of the features",
    "finetuned": "the class whose label vector is nearest to its fine-tuned head wins",
    "linear": "the class wins that is the likeliest by a linear classifier of the features, which "
    "was trained on pseudo-features, and on those of exemplars where there are any",
    "ensemble": "the class wins whose label vector is near to its fine-tuned head, and "
    "which is likely by a linear classifier of the features",
}


def evaluate(
    path: Path,
    source: Path,
    out: Path,
    *,
    unknown: Path | None = None,
    device: str = "auto",
    say: Say = print,
) -> dict[str, Any]:
    """Score a model and write a page about it; return the main figures.

    Parameters
    ----------
    path : Path
        The model.
    source : Path
        Labelled images, as `lmrc learn` takes them.
    out : Path
        Folder for the page.
    unknown : Path or None
        Images of none of the model's classes: a threshold to tell them is looked for.
    device : str
        Where to compute.
    say : callable
        Takes each line of the result.
    """
    refuse_inside(out, source, "the page", "choose another folder with --out")
    _refuse_other(out)
    model = open_to_predict(path, device)
    X, y = _read(model, source)
    started = perf_counter()
    similarities = model.similarities(X)
    score = score_model(similarities, model.heads_, y, perf_counter() - started)
    figures: dict[str, Any] = {
        "images": score.n,
        "accuracy": score.accuracy,
        "top5": score.top5,
        "task_id_accuracy": score.task_id_accuracy,
        "task_aware_accuracy": score.task_aware_accuracy,
        "per_class": {label: accuracy for label, _, accuracy in score.per_class},
    }
    notes = []
    if unknown is not None:
        strangers = model.similarities(_read_unlabelled(model, unknown)).max(axis=1)
        threshold, kept, rejected = reject_threshold(similarities.max(axis=1), strangers)
        figures["reject_below"] = {"threshold": threshold, "kept": kept, "rejected": rejected}
        found = (kept + rejected) / 2 >= TELLS_APART
        notes.append(
            ("" if found else "no similarity tells them well apart; the best: ")
            + f"--reject-below {threshold} keeps {percent(kept)} of these images and rejects "
            f"{percent(rejected)} of the {len(strangers):,} unknown ones"
        )
    score = replace(score, settings=_settings(model), made_with=_made_with(model))
    command = ["lmrc", "evaluate", path, source, *(["--unknown", unknown] if unknown else [])]
    words = shlex.join(map(str, [*command, "--out", out]))
    page = _write(f"{path.name} on {source.name}", words, out, score, notes, model)
    _, contents = read_contents(out)
    for line in (*contents.markdown.split("\n"), contents.findings[0], *notes, f"The page: {page}"):
        say(line)
    return {**figures, "page": str(page)}


def _settings(model: LMRCClassifier) -> dict[str, Any]:
    """Return the model's settings, and what it made of those that were left to it."""
    picked = {"backbone": backbone_name(model), "augment": model.augmentation_}
    return {**pack(model)[0]["settings"], **picked}


def _made_with(model: LMRCClassifier) -> str:
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"{used}; {hardware(model.network_.encoder.mean.device)}"


def _refuse_other(out: Path) -> None:
    if not (out / RECORDS).exists():
        return
    if not (out / DESCRIPTION).exists() or read_description(out).experiment != EXPERIMENT:
        raise FileExistsError(
            f"{out} holds the records of another experiment; choose another folder with --out."
        )


def _read(model: LMRCClassifier, source: Path) -> tuple[Any, Any]:
    """Read all labelled samples of known classes: where some are set aside for tests, those."""
    batch = read_source(source, shape=model.input_shape_, test=True)
    X, y = (batch.X_val, batch.y_val) if len(batch.y_val) else (batch.X, batch.y)
    batch.warn_of_files()
    y = spelt_as_known(y, model.classes_)
    known = np.isin(y, model.classes_) if y.dtype.kind == model.classes_.dtype.kind else y != y
    if not known.all():
        strange = ", ".join(sorted(map(str, np.unique(y[~known]).tolist()))[:5])
        if not known.any():
            raise ValueError(f"{source} holds no class that the model knows, but {strange}")
        warn(
            f"left out {(~known).sum()} image(s) of classes that the model does not know: {strange}"
        )
    return X[known], y[known]


def _read_unlabelled(model: LMRCClassifier, folder: Path) -> Any:
    form, pixels, skipped = form_of(model.input_shape_), [], []
    for file in list_images(folder):
        try:
            pixels.append(read_image(file, *form))
        except UnreadableImageError as error:
            skipped.append(error)
    if skipped:
        warn(describe_skipped(skipped))
    if not pixels:
        raise ValueError(f"{folder} holds no image that can be read: --unknown needs some")
    return np.stack(pixels)


def _write(
    title: str, command: str, out: Path, score: ModelScore, notes: list[str], model: LMRCClassifier
) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    settings = {
        "classes": len(model.classes_),
        "heads": len(model.heads_),
        "backbone": backbone_name(model),
        "input shape": list(model.input_shape_),
        "images stored in the model": len(model.memory_) if model.memory_ else 0,
    }
    description = Description(
        EXPERIMENT,
        title,
        QUESTION.format(WINS[prediction_rule(model)]),
        [Command(command)],
        recipe=settings,
        notes=notes,
    )
    replace_file(out / RECORDS, encoded(f"{score.to_json()}\n"))
    write_description(out, description)
    return write_contents(out, *read_contents(out))
