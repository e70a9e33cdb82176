"""The figures of README and docs are those of the records."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lmrc.report.records import read_records
from lmrc.report.summary import percent, summarize_methods

ROOT = Path(__file__).parents[2]
MAIN, PLUS, DEMO = (
    "results/cifar100/incremental",
    "results/beyond/incremental",
    "results/digits/demo",
)
ABLATION = "results/beyond/ablation"
PRETRAINED, LITE2 = "results/pretrained/cifar100", "results/pretrained/cifar100-lite2"

#: Page, heading of the section, and for each row of its table: folder and method of the records,
#: and the prediction rule where it is not that of the method.
TABLES = [
    (
        "README.md",
        "## Results",
        {
            "LMRC+": (PLUS, "LMRC+"),
            "LMRC": (MAIN, "LMRC"),
            "LwF.MT": (MAIN, "LwF.MT"),
            "fine-tuning": (MAIN, "Fine-tuning"),
            "joint training": (MAIN, "Joint"),
        },
    ),
    (
        "docs/results.md",
        "## CIFAR-100 from scratch",
        {
            "LMRC+": (PLUS, "LMRC+"),
            "LwF.MT": (MAIN, "LwF.MT"),
            "LMRC": (MAIN, "LMRC"),
            "LwF.MC": (MAIN, "LwF.MC"),
            "LM": (MAIN, "LM"),
            "fine-tuning": (MAIN, "Fine-tuning"),
            "EWC": (MAIN, "EWC"),
            "LMRC+, ResNet-18 of twice the width": ("results/beyond/wide", "LMRC+"),
            "joint training": (MAIN, "Joint"),
        },
    ),
    (
        "README.md",
        "## Results",
        {
            "LMRC+ on EfficientNet-Lite0": (PRETRAINED, "LMRC+, adapted"),
            "joint fine-tuning of EfficientNet-Lite0": (PRETRAINED, "Joint fine-tuning"),
        },
    ),
    (
        "docs/results.md",
        "## CIFAR-100 with a pre-trained backbone",
        {
            "LMRC+, adapted to the first task": (PRETRAINED, "LMRC+, adapted"),
            "LMRC+, frozen": (PRETRAINED, "LMRC+, frozen"),
            "LDA": (PRETRAINED, "LMRC+, frozen", "lda"),
            "nearest class mean": (PRETRAINED, "LMRC+, frozen", "ncm"),
            "LMRC+ from scratch": (PRETRAINED, "LMRC+ from scratch"),
            "EfficientNet-Lite2: LMRC+, adapted to the first task": (LITE2, "LMRC+, adapted"),
            "EfficientNet-Lite2: LMRC+, frozen": (LITE2, "LMRC+, frozen"),
            "keep all images: joint linear probe": (PRETRAINED, "Joint linear probe"),
            "keeps all images: joint fine-tuning": (PRETRAINED, "Joint fine-tuning"),
        },
    ),
    (
        "docs/results.md",
        "## Digits, the demo",
        {
            "LMRC+": (DEMO, "LMRC+"),
            "LMRC": (DEMO, "LMRC"),
            "LM": (DEMO, "LM"),
            "fine-tuning": (DEMO, "fine-tuning"),
            "LMRC + 10 exemplars": (DEMO, "LMRC + 10 per class"),
        },
    ),
    (
        "docs/beyond-measured.md",
        "## Ablation",
        {"LMRC, λ = 1": (ABLATION, "LMRC"), "LMRC+": (ABLATION, "LMRC+")},
    ),
    (
        "docs/beyond-measured.md",
        "## Exemplar-free",
        {
            "LMRC": (MAIN, "LMRC"),
            "LwF.MT": (MAIN, "LwF.MT"),
            'LMRC+, `"ensemble"`': (PLUS, "LMRC+"),
            "LMRC+ without CutMix": ("results/beyond/incremental-no-cutmix", "LMRC+"),
        },
    ),
]


@pytest.fixture(scope="module")
def measured():
    found = {}

    def of(folder, method, rule=None):
        if (folder, rule) not in found:
            records = read_records(ROOT / folder)
            if rule:
                records = [
                    replace(r, record=replace(r.record, **r.extra["prediction_rules"][rule]))
                    for r in records
                    if r.method == method
                ]
            found[folder, rule] = {s.method: s for s in summarize_methods(records)}
        return found[folder, rule][method]

    return of


def rows_of(page, heading):
    """Return the first two figures of each row of the first table below a heading."""
    text = (ROOT / page).read_text("utf-8").partition(f"\n{heading}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", text, re.M)[0].replace("*", "")
    cells = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
    return [(row[0], row[1:3]) for row in cells[2:] if row[1]]


@pytest.mark.parametrize(("page", "heading", "sources"), TABLES, ids=lambda part: str(part)[:30])
def test_a_table_shows_what_its_records_say(page, heading, sources, measured):
    rows = rows_of(page, heading)
    for name, source in sources.items():
        start = re.compile(re.escape(name) + r"(?: \(| per class|, keeps| from|,|$|\b(?= \())")
        shown = next(figures for label, figures in rows if start.match(label))
        summary = measured(*source)
        assert shown == [percent(summary.average), percent(summary.final)], (page, name)


#: Pages, and runs whose "average / last" pair they name in the text.
PAIRS = [
    ("docs/how-to/choose.md", (MAIN, "LMRC")),
    ("docs/how-to/choose.md", (PLUS, "LMRC+")),
    *(("docs/how-to/backbone.md", (PRETRAINED, f"LMRC+, {way}")) for way in ("frozen", "adapted")),
    *(("docs/how-to/backbone.md", (LITE2, f"LMRC+, {way}")) for way in ("frozen", "adapted")),
    ("docs/reference/metrics.md", (PLUS, "LMRC+")),
    ("docs/beyond.md", (PLUS, "LMRC+")),
    ("docs/beyond.md", ("results/beyond/incremental-no-cutmix", "LMRC+")),
    *(
        ("docs/beyond-measured.md", (f"results/beyond/{name}", "LMRC+"))
        for name in ("tasks-5", "tasks-20", "tasks-5-no-cutmix", "tasks-20-no-cutmix", "first-50")
    ),
    ("docs/beyond-measured.md", ("results/beyond/first-50-frozen", "LMRC+")),
    ("docs/beyond-measured.md", (MAIN, "Joint")),
]


@pytest.mark.parametrize(("page", "source"), PAIRS, ids=lambda part: str(part)[-40:])
def test_a_page_names_the_pair_of_its_records(page, source, measured):
    summary = measured(*source)
    average, last = (
        percent(found).partition(" ±")[0] for found in (summary.average, summary.final)
    )
    assert f"{average} / {last}" in (ROOT / page).read_text("utf-8")
