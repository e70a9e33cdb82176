"""Report of one model: its scores on labelled images."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from lmrc.evaluation.model import ModelScore
from lmrc.report import html, trust
from lmrc.report.figures import task_confusion
from lmrc.report.html import Contents, Drawing, Section
from lmrc.report.records import NOT_SETTINGS, RECORDS, Description, read_lines
from lmrc.report.sections import MANY_CLASSES, TASK_MEASURES
from lmrc.report.settings import in_effect, settings_list
from lmrc.report.summary import as_markdown, as_spread, csv_text

EXPERIMENT = "model"
MAX_MISTAKES = 20  # rows of the table of mistakes
NAMED = 10  # classes without test images


def read_score(folder: Path) -> ModelScore:
    """Read the folder's last score."""
    scores = read_lines(folder, ModelScore)
    if not scores:
        raise ValueError(f"{folder / RECORDS} holds no score: evaluate the model again.")
    return scores[-1]


def build(description: Description, score: ModelScore) -> Contents:
    """Return the report of one model."""
    drawing = Drawing(
        task_confusion(score.task_confusion, [str(i + 1) for i in range(len(score.heads))]),
        "Predicted task by true task, in percent.",
    )
    parts = [_classes(score)]
    if score.mistakes:
        parts.append(_mistakes(score))
    on_trust, trust_drawings = trust.sections(score)
    parts += on_trust
    if len(score.heads) > 1:
        parts.append(_heads(score, drawing))
    return Contents(
        headline=f"{100 * score.accuracy:.1f} % of {score.n:,} images are classified correctly.",
        findings=[named] if (named := score.most_frequent_mistakes()) else [],
        sections=parts,
        settings=settings_list(_settings(score)),
        environment=html.note(
            f"Made with {score.made_with}. Predicting took {score.seconds:,.1f} seconds."
        ),
        markdown=_markdown(score),
        drawings={"confusion": drawing, **trust_drawings},
        tables={"classes": csv_text(["class", "images", "accuracy"], score.per_class)},
        notes=_not_tested(description, score),
    )


def _not_tested(description: Description, score: ModelScore) -> list[str]:
    """Name the known classes without test images."""
    tested = {label for label, *_ in score.per_class}
    left = [label for head in score.heads for label in head if label not in tested]
    noun = "vector" if len(description.recipe.get("input shape", ())) == 1 else "image"
    classes = "class" if len(left) == 1 else "classes"
    named = ", ".join(left[:NAMED]) + ", …" * (len(left) > NAMED)
    return [f"no test {noun}s of {len(left):,} known {classes}: {named}"] if left else []


def _settings(score: ModelScore) -> dict[str, Any]:
    """Return the model's settings as they are in effect, and its seed."""
    left_out = {*NOT_SETTINGS} - {"random_state"}
    return {name: v for name, v in in_effect(score.settings).items() if name not in left_out}


def _classes(score: ModelScore) -> Section:
    rows = [
        [label, f"{n:,}", html.cell(as_spread(share), "share")]
        for label, n, share in score.per_class
    ]
    many = len(rows) > MANY_CLASSES
    kind = "classes named compact" if many else "classes named"
    caption = "Images and accuracy in percent, in order of arrival."
    if len(rows) > 5:
        caption += f" Top-5 accuracy: {100 * score.top5:.1f} %."
    table = html.table(caption, ["class", "images", "accuracy"], rows, kind)
    body = html.collapsible(f"All {len(rows)} classes", table) if many else table
    return Section("classes", "Accuracy per class", body)


def _mistakes(score: ModelScore) -> Section:
    images = {label: n for label, n, _ in score.per_class}
    rows = [
        [true, predicted, f"{n:,}", as_spread(n / max(n, images.get(true, 0)))]
        for true, predicted, n in score.mistakes[:MAX_MISTAKES]
    ]
    left = len(score.mistakes) - len(rows)
    caption = "Most frequent first." + (f" {left} rarer pairs are left out." if left else "")
    head = ["true class", "predicted class", "images", "of the true class (%)"]
    table = html.table(caption, head, rows)
    return Section("mistakes", "Confused classes", table)


def _heads(score: ModelScore, drawing: Drawing) -> Section:
    tasks = html.definitions(
        (f"task {i}", ", ".join(head)) for i, head in enumerate(score.heads, start=1)
    )
    text = html.note(
        f"A task is one learn that brought new classes. The task-ID accuracy is "
        f"{100 * score.task_id_accuracy:.1f} %, the task-aware accuracy "
        f"{100 * score.task_aware_accuracy:.1f} %. {TASK_MEASURES}"
    ) + html.note(
        "A row holds the images of one task's classes; a column says to which task the predicted "
        "class belongs. Shares of a row, in percent."
    )
    grid = Markup('<div class="grid"><figure>{}</figure></div>').format(drawing.to_svg("confusion"))
    return Section("confusion", "Confusion between tasks", text + grid + tasks)


def _markdown(score: ModelScore) -> str:
    found = [*score.per_class, ["**all**", score.n, score.accuracy]]
    rows = [[label, str(n), as_spread(share)] for label, n, share in found]
    return as_markdown(["class", "images", "accuracy (%)"], rows)
