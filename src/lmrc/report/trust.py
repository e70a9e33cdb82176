"""Sections of a model's page on what to trust: images to look at, calibration, the unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from lmrc.evaluation.model import ModelScore
from lmrc.report import html
from lmrc.report.figures import HEAT, LINE_STYLES, declutter, legend_below, panel
from lmrc.report.html import Drawing, Section
from lmrc.report.summary import as_spread

KNOWN, OTHERS = LINE_STYLES[0].colour, LINE_STYLES[1].colour
#: By key of `ModelScore.images`: anchor, heading and text.
LISTS = {
    "mistakes": (
        "confident-mistakes",
        "The most confident mistakes",
        "Wrong predictions, the highest probability first. Check the labels of these images.",
    ),
    "doubtful": (
        "doubtful-hits",
        "The least confident correct predictions",
        "More images like these help.",
    ),
    "taken": (
        "unknown-taken-for-known",
        "The unknown images that look most like a known class",
        "They score lowest. Is one of a known class after all?",
    ),
}
_PLACES = ("mistakes", "doubtful"), ("taken",)  # before and after the measures


def sections(score: ModelScore) -> tuple[list[Section], dict[str, Drawing]]:
    """Return the sections that a score has numbers for, and their figures by name."""
    lists = {
        key: _images(score.images[key], *texts, has_probabilities=score.ece is not None)
        for key, texts in LISTS.items()
        if score.images.get(key)
    }
    measured = {
        "reliability": (score.reliability, _calibration),
        "coverage": (score.coverage, _selective),
        "unknown": (score.unknown, _unknown),
    }
    found = {name: build(score) for name, (there, build) in measured.items() if there}
    first, last = ([lists[key] for key in keys if key in lists] for keys in _PLACES)
    parts = [*first, *(section for section, _ in found.values()), *last]
    return parts, {name: drawing for name, (_, drawing) in found.items()}


def _images(
    shown: Sequence[Sequence[Any]], anchor: str, heading: str, text: str, *, has_probabilities: bool
) -> Section:
    figures = []
    for name, true, predicted, confidence, thumbnail in shown:
        sure = f"{100 * confidence:.0f} %" if has_probabilities else f"{confidence:.2f}"
        label = predicted if true in (predicted, "") else f"{true}, predicted {predicted}"
        short = name.rpartition("/")[2] if thumbnail else name
        figures.append(
            Markup('<figure>{}<figcaption title="{}">{}, {}{}</figcaption></figure>').format(
                html.thumbnail(thumbnail) if thumbnail else "",
                name,
                html.breakable(label),
                html.prose(sure),
                Markup("<br>{}").format(html.breakable(short)) if name else "",
            )
        )
    body = html.note(text) + Markup('<div class="thumbnails">{}</div>').format(html.joined(figures))
    return Section(anchor, heading, body)


def _calibration(score: ModelScore) -> tuple[Section, Drawing]:
    confidence, accuracy = ([100 * b[i] for b in score.reliability] for i in (1, 2))
    most = max(b[0] for b in score.reliability)
    sizes = [12 + 90 * b[0] / most for b in score.reliability]
    with panel(4.9, 3.4) as (figure, axes):
        axes.plot([0, 100], [0, 100], color=OTHERS, linestyle="--", linewidth=1.2)
        axes.vlines(confidence, confidence, accuracy, color=KNOWN, linewidth=1.4, zorder=3)
        axes.scatter(confidence, accuracy, s=sizes, color=KNOWN, zorder=4, clip_on=False)
        axes.set(xlabel="probability (%)", ylabel="accuracy (%)", xlim=(0, 100), ylim=(0, 102))
        declutter(axes)
    drawing = Drawing(
        figure, "Accuracy by confidence, in bins; the diagonal is perfect calibration."
    )
    ece = 0.0 if score.ece is None else score.ece
    caption = (
        "Accuracy of predictions by their probability; a larger dot stands for more images. "
        "On the diagonal, probabilities mean what they say; below it, the model is overconfident. "
        f"The expected calibration error, the mean gap, is {ece:.3f}."
    )
    body = html.figure(drawing, "reliability", caption)
    return Section("reliability", "Probabilities", body), drawing


def _selective(score: ModelScore) -> tuple[Section, Drawing]:
    coverage, accuracy = ([100 * point[i] for point in score.coverage] for i in (0, 1))
    with panel(4.9, 3.4) as (figure, axes):
        axes.plot(coverage, accuracy, color=KNOWN, linewidth=1.9, clip_on=False)
        axes.set(xlabel="share of images that are classified (%)", ylabel="accuracy (%)")
        axes.set(xlim=(0, 100), ylim=(max(0, min(accuracy) - 5), 100.5))
        declutter(axes)
    drawing = Drawing(figure, "Accuracy on the most confident share of the images.")
    by = "probability" if score.ece is not None else "similarity"
    caption = f"Accuracy if only the share of the images with the highest {by} is classified."
    body = html.figure(drawing, "coverage", caption)
    return Section("coverage", "Accuracy against coverage", body), drawing


def _unknown(score: ModelScore) -> tuple[Section, Drawing]:
    unknown: Mapping[str, Any] = score.unknown or {}
    name, own = next(iter(unknown["scores"])), "threshold" in unknown
    bars = unknown["histogram"]
    with panel(4.9, 3.4) as (figure, axes):
        for key, colour in (("known", KNOWN), ("unknown", OTHERS)):
            shares, label = [100 * share for share in bars[key]], f"{key} classes"
            axes.stairs(shares, bars["edges"], color=colour, linewidth=1.6, zorder=3, label=label)
            axes.stairs(shares, bars["edges"], color=colour, fill=True, alpha=0.25)
        if own:
            axes.axvline(unknown["threshold"], color=HEAT, linestyle="--", linewidth=1.2)
        # Without a threshold it is a similarity, which is low for unknown images.
        axes.set(xlabel=name if own else f"{name}, negated", ylabel="images (%)")
        axes.set_ylim(bottom=0)
        declutter(axes)
        legend_below(figure, 2, columnspacing=1.8)
    drawing = Drawing(figure, "Histogram of the scores of images of known classes and of others.")
    words = f"Scores of images by {name}."
    if own:
        words += (
            f" The dashed line is the model's threshold for losing {100 * unknown['share']:.3g} % "
            f"of known images: here it loses {100 * unknown['lost']:.1f} %, and says unknown for "
            f"{100 * unknown['found']:.1f} % of the unknown ones."
        )
    table = html.table(
        f"Over {unknown['n']:,} images of unknown classes. FPR95: the share of them that is taken "
        "for known where 95 % of the known ones are.",
        ["score", "AUROC", "FPR95 (%)"],
        [
            [name, f"{scores['auroc']:.3f}", as_spread(scores["fpr95"])]
            for name, scores in unknown["scores"].items()
        ],
    )
    body = html.figure(drawing, "unknown", words) + table
    return Section("unknown", "Known against unknown", body), drawing
