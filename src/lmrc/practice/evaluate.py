"""``lmrc evaluate``: accuracy of a model on labelled images."""

import shlex
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Self

import numpy as np

from lmrc.data.class_names import class_name
from lmrc.data.folders import describe_skipped
from lmrc.data.images import UnreadableImageError, list_images, read_image, thumbnail
from lmrc.evaluation.model import ModelScore, reject_threshold, score_model
from lmrc.evaluation.trust import (
    Threshold,
    coverage_curve,
    expected_calibration_error,
    reliability,
    score_unknown,
    thinned,
)
from lmrc.experiments.environment import hardware, versions
from lmrc.methods.calibrated import UNKNOWN_SHARE
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.methods.state import pack
from lmrc.practice.models import (
    backbone_name,
    open_to_predict,
    outputs_of,
    prediction_rule,
    spelt_as_known,
    unknown_threshold,
)
from lmrc.practice.source import image_form, read_source, refuse_inside
from lmrc.practice.usage import Say, count, percent, warn
from lmrc.report.html import Contents
from lmrc.report.model import EXPERIMENT
from lmrc.report.page import write_report
from lmrc.report.records import (
    DESCRIPTION,
    RECORDS,
    Command,
    Description,
    encoded,
    read_description,
    write_description,
)
from lmrc.store.files import write_atomically
from lmrc.text import shorten

QUESTION = "How accurate is the model on these images? Prediction rule: {}."
SIMILARITY = "maximum similarity"
LOOKED_AT = 24  # images in each list of the page
CERTAIN = 0.9  # probability from which a correct prediction is not doubtful
MIN_BALANCED_ACCURACY = 0.65  # of a useful threshold; 0.5 is the random level
#: Prediction rules in words, by the classifier's ``predict_with``.
RULES = {
    "wta": "Winner-Take-All, the class whose label vector is nearest to its own head's response",
    "lda": "linear discriminant analysis (LDA) on the class statistics of the features",
    "finetuned": "Winner-Take-All with heads fine-tuned on pseudo-features",
    "linear": "a linear classifier of the features, trained on pseudo-features and on exemplars if "
    "there are any",
    "ensemble": "ensemble, the sum of the standardised scores of the fine-tuned heads and of a "
    "linear classifier of the features",
    "snapshots": "snapshot ensemble, the sum of the standardised scores of the ensemble and, with "
    "half its weight each, of linear classifiers on the features of earlier networks",
    "ncm": "nearest class mean, by the cosine to the class's mean feature vector",
    "ridge": "ridge regression on the features and random projections of them",
}


def evaluate(
    path: Path,
    source: Path,
    out: Path,
    *,
    unknown: Path | None = None,
    thumbnails: bool = True,
    device: str = "auto",
    say: Say = print,
) -> dict[str, Any]:
    """Score a model on labelled images and write a report; return the main metrics.

    With images of none of the model's classes (`unknown`), how well they are recognised, too.
    """
    refuse_inside(out, source, "the report", "choose another folder with --out")
    _refuse_other(out)
    model = open_to_predict(path, device)
    X, y, names = _read(model, source)
    started = perf_counter()
    seen = _Predicted.by(model, X, names)
    score = score_model(seen.similarities, model.heads_, y, perf_counter() - started)
    correct = seen.labels == y
    shown = {
        kind: seen.shown(rows, y, thumbnails)
        for kind, rows in _to_look_at(seen.sure, correct).items()
    }
    coverage = thinned(coverage_curve(seen.sure, correct))
    more: dict[str, Any] = {"images": shown, "coverage": coverage}
    metrics: dict[str, Any] = {
        "images": score.n,
        "accuracy": score.accuracy,
        "top5": score.top5,
        "task_id_accuracy": score.task_id_accuracy,
        "task_aware_accuracy": score.task_aware_accuracy,
        "per_class": {label: accuracy for label, _, accuracy in score.per_class},
    }
    notes, lines = [], []
    if seen.unknown is not None:
        ece = metrics["ece"] = more["ece"] = expected_calibration_error(seen.sure, correct)
        more["reliability"] = [[*one] for one in reliability(seen.sure, correct)]
        lines.append(
            f"probabilities are off by {percent(ece)} on average (expected calibration error "
            f"{ece:.3f})"
        )
    if unknown is not None:
        others = _Predicted.by(model, *_read_unknown(model, unknown))
        known_scores, other_scores = seen.unknown_scores(), others.unknown_scores()
        threshold = None
        if seen.unknown is None:
            similar = -known_scores[SIMILARITY], -other_scores[SIMILARITY]
            notes.append(_reject_below(*similar, metrics))
        else:
            threshold = Threshold(unknown_threshold(model, UNKNOWN_SHARE), UNKNOWN_SHARE)
        more["unknown"] = separated = score_unknown(known_scores, other_scores, threshold)
        lines += _unknown_lines(separated)
        rows = np.argsort(next(iter(other_scores.values())), kind="stable")[:LOOKED_AT]
        shown["taken"] = others.shown(rows, np.full(len(others.X), ""), thumbnails)
        metrics["unknown"] = {name: part for name, part in separated.items() if name != "histogram"}
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    made_with = f"{used}; {hardware(model.network_.encoder.mean.device)}"
    score = replace(score, **more, settings=_settings(model), made_with=made_with)
    command = ["lmrc", "evaluate", path, source, *(["--unknown", unknown] if unknown else [])]
    words = shlex.join(map(str, [*command, "--out", out]))
    page, contents = _write(f"{path.name} on {source.name}", words, out, score, notes, model)
    table = contents.markdown.split("\n")
    for line in (*table, *contents.notes, *contents.findings, *lines, *notes, f"Report: {page}"):
        say(line)
    return {**metrics, "page": str(page)}


class _Predicted(NamedTuple):
    """Images, their names (empty if they are not from files), and the predictions of a model."""

    X: Any
    names: list[str]
    similarities: Any
    labels: Any  # the predicted classes
    sure: Any  # their probabilities, or similarities if there are none
    unknown: Any | None  # unknown scores; None for a model without probabilities

    @classmethod
    def by(cls, model: LMRCClassifier, X: Any, names: list[str]) -> Self:
        """Predict the classes of images."""
        similarities, probabilities, unknown = outputs_of(model, X)
        sure = (similarities if probabilities is None else probabilities).max(axis=1)
        labels = model.classes_[similarities.argmax(axis=1)]
        return cls(X, names, similarities, labels, sure, unknown)

    def unknown_scores(self) -> dict[str, Any]:
        """Return scores of unknown images by name; the model's own first, if it has one."""
        own = {} if self.unknown is None else {"unknown score": self.unknown}
        return own | {SIMILARITY: -self.similarities.max(axis=1)}

    def shown(self, rows: Any, y: Any, thumbnails: bool) -> list[list[Any]]:
        """Return images for the page, as `ModelScore.images` has them."""
        return [
            [
                self.names[i] if self.names else "",
                str(y[i]),
                str(self.labels[i]),
                float(self.sure[i]),
                thumbnail(np.asarray(self.X[i])) if thumbnails else "",
            ]
            for i in rows.tolist()
        ]


def _to_look_at(sure: Any, correct: Any) -> dict[str, Any]:
    """Return the rows of the most confident mistakes and the least confident correct ones."""
    order = np.argsort(-sure, kind="stable")
    hits = correct[order]
    doubtful = order[hits & (sure[order] < CERTAIN)][::-1]
    return {"mistakes": order[~hits][:LOOKED_AT], "doubtful": doubtful[:LOOKED_AT]}


def _reject_below(known: Any, unknown: Any, metrics: dict[str, Any]) -> str:
    """Return a threshold for ``predict --reject-below`` in words; add it to the metrics."""
    threshold, kept, rejected = reject_threshold(known, unknown)
    metrics["reject_below"] = {"threshold": threshold, "kept": kept, "rejected": rejected}
    useful = (kept + rejected) / 2 >= MIN_BALANCED_ACCURACY
    return (
        "" if useful else "no threshold separates known from unknown images well: at best, "
    ) + (
        f"--reject-below {threshold} keeps {percent(kept)} of these images and rejects "
        f"{percent(rejected)} of the {len(unknown):,} unknown ones"
    )


def _unknown_lines(unknown: dict[str, Any]) -> list[str]:
    lines = [
        f"known against {unknown['n']:,} unknown images by {name}: AUROC {found['auroc']:.3f}, "
        f"FPR95 {percent(found['fpr95'])}"
        for name, found in unknown["scores"].items()
    ]
    if "threshold" in unknown:
        lines.append(
            f"predict --unknown rejects {percent(unknown['lost'])} of these images and "
            f"{percent(unknown['found'])} of the unknown ones"
        )
    return lines


def _settings(model: LMRCClassifier) -> dict[str, Any]:
    """Return the model's settings, with the values it chose for those on ``"auto"``."""
    chosen = {"backbone": backbone_name(model), "augment": model.augmentation_}
    if hasattr(model, "prediction_rule_"):
        chosen |= {"freeze": model._freeze, "predict_with": model.prediction_rule_}
    return {**pack(model)[0]["settings"], **chosen}


def _refuse_other(out: Path) -> None:
    if not (out / RECORDS).exists():
        return
    if not (out / DESCRIPTION).exists() or read_description(out).experiment != EXPERIMENT:
        raise FileExistsError(
            f"{out} contains records of another experiment: choose another folder with --out"
        )


def _read(model: LMRCClassifier, source: Path) -> tuple[Any, Any, list[str]]:
    """Read the labelled samples of known classes; only the test samples if the source has some.

    Returns X, y and the name of each image; no names if they are not from files.
    """
    samples = read_source(source, shape=model.input_shape_, test=True)
    X, y = (samples.X_val, samples.y_val) if len(samples.y_val) else (samples.X, samples.y)
    names = samples.names()
    names = names if len(names) == len(y) else []  # else all that were held out are unreadable
    samples.warn_about_files()
    y = spelt_as_known(y, model.classes_)
    known = np.isin(y, model.classes_) if y.dtype.kind == model.classes_.dtype.kind else y != y
    if not known.all():
        others = sorted(map(str, np.unique(y[~known]).tolist()))
        unknown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if others[5:] else "")
        if not known.any():
            raise ValueError(f"{source} has none of the model's classes, only {unknown}")
        left_out = count(int((~known).sum()), "image")
        warn(f"left out {left_out} of classes unknown to the model: {unknown}")
        names = [name for name, kept in zip(names, known.tolist(), strict=False) if kept]
    return X[known], y[known], names


def _read_unknown(model: LMRCClassifier, folder: Path) -> tuple[Any, list[str]]:
    """Read the images of a folder, without those of sub-folders named as known classes."""
    form, pixels, names, skipped = image_form(model.input_shape_), [], [], []
    known = {class_name(str(label)) for label in model.classes_.tolist()}
    left_out: list[str] = []
    for file in list_images(folder):
        if named := known.intersection(map(class_name, file.relative_to(folder).parent.parts)):
            left_out += named
            continue
        try:
            pixels.append(read_image(file, *form))
            names.append(str(file))
        except UnreadableImageError as error:
            skipped.append(error)
    if skipped:
        warn(describe_skipped(skipped))
    if left_out:
        of_classes = shorten(", ".join(sorted({*left_out})), 200)
        warn(f"left out {count(len(left_out), 'image')} of known classes in {folder}: {of_classes}")
    if not pixels:
        raise ValueError(
            f"{folder} has no readable image of other classes: --unknown needs at least one"
        )
    return np.stack(pixels), names


def _write(
    title: str, command: str, out: Path, score: ModelScore, notes: list[str], model: LMRCClassifier
) -> tuple[Path, Contents]:
    out.mkdir(parents=True, exist_ok=True)
    settings = {
        "classes": len(model.classes_),
        "heads": len(model.heads_),
        "backbone": backbone_name(model),
        "input shape": list(model.input_shape_),
        "exemplars": len(model.memory_) if model.memory_ else 0,
    }
    description = Description(
        EXPERIMENT,
        title,
        QUESTION.format(RULES[prediction_rule(model)]),
        [Command(command)],
        recipe=settings,
        notes=notes,
    )
    write_atomically(out / RECORDS, encoded(f"{score.to_json()}\n"))
    write_description(out, description)
    return write_report(out)
