"""The figures of README and docs are those of the records."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest

from lmrc.report.records import read_records
from lmrc.report.summary import percent, summarize_methods

ROOT = Path(__file__).parents[2]
MAIN, PLUS, DEMO = (
    "results/cifar100/incremental",
    "results/beyond/incremental",
    "results/digits/demo",
)
ABLATION, STATISTICS = "results/beyond/ablation", "+ λ = 3, statistics"
REHEARSAL = "results/beyond/rehearsal"
WITH_20 = "results/beyond/rehearsal-snapshots"
WITH_50 = "results/beyond/rehearsal-50"
NO_CUTMIX = "results/beyond/incremental-no-cutmix"
BASELINES = "results/beyond/baselines-cutmix"
BEFORE = "results/beyond/separate-rotations"  # the earlier default
SNAPSHOTS = "results/beyond/snapshots"
RULES = ("wta", "lda", "finetuned", "linear", "ensemble")
TINY = "results/tiny-imagenet/incremental"
PRETRAINED, LITE2 = "results/pretrained/cifar100", "results/pretrained/cifar100-lite2"
LAB_BOOK = "results/search/README.md"

#: Page, heading of the section, and for each row of its table: folder and method of the records,
#: and the prediction rule where it is not that of the method.
TABLES = [
    (
        "README.md",
        "## Results",
        {
            "LMRC+, snapshot ensemble of ten networks": (SNAPSHOTS, "LMRC+"),
            "LMRC+": (PLUS, "LMRC+"),
            "LMRC": (MAIN, "LMRC"),
            "LwF.MT": (MAIN, "LwF.MT"),
            "fine-tuning": (MAIN, "Fine-tuning"),
            "with 20 exemplars per class: LMRC+, snapshot ensemble": (
                WITH_20,
                "LMRC+ + 20 per class",
            ),
            "keeps all data: joint training with CutMix and cosine schedule": (PLUS, "Joint"),
        },
    ),
    (
        "docs/results.md",
        "## CIFAR-100 from scratch",
        {
            "LMRC+, snapshot ensemble of ten networks": (SNAPSHOTS, "LMRC+"),
            "LMRC+": (PLUS, "LMRC+"),
            "LwF.MT": (MAIN, "LwF.MT"),
            "LMRC": (MAIN, "LMRC"),
            "LwF.MC": (MAIN, "LwF.MC"),
            "LM": (MAIN, "LM"),
            "fine-tuning": (MAIN, "Fine-tuning"),
            "EWC": (MAIN, "EWC"),
            **{f"{name} with CutMix": (BASELINES, name) for name in ("LMRC", "LwF.MT")},
            "LMRC+, earlier default": (BEFORE, "LMRC+"),
            "LMRC+, earlier default, ResNet-18 of twice the width": (
                "results/beyond/wide",
                "LMRC+",
            ),
            "joint training": (MAIN, "Joint"),
            "joint training with CutMix": (PLUS, "Joint"),
        },
    ),
    (
        "docs/results.md",
        "### Other splits",
        {
            "10 of 10 classes": (PLUS, "LMRC+"),
            "20 of 5": ("results/beyond/tasks-20", "LMRC+"),
            "50 classes, then 10 of 5": ("results/beyond/first-50", "LMRC+"),
            "5 of 20": ("results/beyond/tasks-5", "LMRC+"),
        },
    ),
    (
        "README.md",
        "EfficientNet-Lite0 with ImageNet weights:",
        {
            "LMRC+, adapted to the first task": (PRETRAINED, "LMRC+, adapted"),
            "keeps all data: joint fine-tuning": (PRETRAINED, "Joint fine-tuning"),
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
        {
            "LMRC, λ = 1": (ABLATION, "LMRC"),
            "+ cosine schedule": (ABLATION, "+ cosine schedule"),
            "+ rotations": (ABLATION, "+ rotations"),
            "+ softmax": (ABLATION, "+ softmax"),
            "+ λ = 3": (ABLATION, STATISTICS, "wta"),
            "+ statistics: LDA": (ABLATION, STATISTICS, "lda"),
            "+ statistics: fine-tuned heads": (ABLATION, STATISTICS, "finetuned"),
            "+ statistics: linear classifier": (ABLATION, STATISTICS, "linear"),
            "+ statistics: ensemble": (ABLATION, STATISTICS, "ensemble"),
            "+ long first task": (ABLATION, "+ long first task, low rate later"),
            "LMRC+": (ABLATION, "LMRC+"),
        },
    ),
    (
        "docs/beyond-measured.md",
        "## Exemplar-free",
        {
            "LMRC": (MAIN, "LMRC"),
            "LwF.MT": (MAIN, "LwF.MT"),
            **{f'LMRC+, `"{rule}"`': (PLUS, "LMRC+", rule) for rule in (*RULES, "ncm")},
            'LMRC+, earlier default, `"ensemble"`': (BEFORE, "LMRC+"),
            'LMRC+, `"snapshots"`, new runs': (SNAPSHOTS, "LMRC+"),
            'LMRC+, `"ensemble"`, new runs': (SNAPSHOTS, "LMRC+", "ensemble"),
            "LMRC+, earlier default, without CutMix": (NO_CUTMIX, "LMRC+"),
        },
    ),
    (
        "docs/beyond-measured.md",
        "## Members",
        {str(k): (f"results/digits/members/{k}", "LMRC+") for k in (1, 2, 3)},
    ),
]
#: The columns of a table, in this order, as far as it has them.
COLUMNS = ("average", "final", "task_id_accuracy", "task_aware_accuracy")


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


def section_of(page, anchor):
    """Return what is below a heading, as one line without emphasis; the heading by its anchor."""
    parts = re.split(r"^##+ (.+)\n", (ROOT / page).read_text("utf-8"), flags=re.M)
    anchors = [re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in parts[1::2]]
    return " ".join(parts[2::2][anchors.index(anchor)].replace("*", "").split())


def rows_of(page, heading):
    """Return label and figures of each row of the first table below a heading."""
    text = (ROOT / page).read_text("utf-8").partition(f"\n{heading}")[2]
    table = re.search(r"(?:^ *\|.*\n)+", text, re.M)[0].replace("*", "")
    table = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", table)  # links
    cells = [
        [cell.strip() for cell in line.strip()[1:-1].split("|")] for line in table.splitlines()
    ]
    return [(row[0], row[1:]) for row in cells[2:] if row[1]]


@pytest.mark.parametrize(("page", "heading", "sources"), TABLES, ids=lambda part: str(part)[:30])
def test_a_table_shows_what_its_records_say(page, heading, sources, measured):
    rows = rows_of(page, heading)
    for name, source in sources.items():
        start = re.compile(re.escape(name) + r"(?: \(| per class|, keeps| from|,|$|\b(?= \())")
        shown = next(figures for label, figures in rows if start.match(label))
        summary = measured(*source)
        columns = COLUMNS[: len(shown)]
        assert shown == [percent(getattr(summary, column)) for column in columns], (page, name)


#: Pages, and runs whose "average / last" pair they name in the text.
PAIRS = [
    ("docs/how-to/choose.md", (MAIN, "LMRC")),
    ("docs/how-to/choose.md", (PLUS, "LMRC+")),
    *(("docs/how-to/backbone.md", (PRETRAINED, f"LMRC+, {way}")) for way in ("frozen", "adapted")),
    *(("docs/how-to/backbone.md", (LITE2, f"LMRC+, {way}")) for way in ("frozen", "adapted")),
    ("docs/reference/metrics.md", (PLUS, "LMRC+")),
    ("docs/beyond.md", (PLUS, "LMRC+")),
    *(("docs/beyond.md", (folder, "LMRC+")) for folder in (NO_CUTMIX, BEFORE)),
    ("docs/beyond.md", (ABLATION, "LMRC+")),
    *((LAB_BOOK, (f"results/beyond/{name}", "LMRC+")) for name in ("first-run", "tasks-20-cutmix")),
    ("docs/beyond-measured.md", ("results/beyond/rehearsal-100", "LMRC+ + 100 per class")),
    ("docs/beyond-measured.md", ("results/beyond/first-50-frozen", "LMRC+")),
    ("docs/beyond-measured.md", (MAIN, "Joint")),
    ("docs/beyond-measured.md", (PLUS, "Joint")),
    *(
        (page, (BASELINES, method))
        for page in ("README.md", "results/README.md")
        for method in ("LMRC", "LwF.MT")
    ),
    ("results/README.md", (WITH_50, "LMRC+ + 50 per class")),
    *(("README.md", (TINY, method)) for method in ("LMRC+", "LMRC", "LwF.MT", "Joint")),
    *(
        (LAB_BOOK, (folder, f"LMRC+, {way}"))
        for folder in (PRETRAINED, f"{PRETRAINED}-last-layer")
        for way in ("frozen", "adapted")
    ),
    *(("results/README.md", (PRETRAINED, f"LMRC+, {way}")) for way in ("frozen", "adapted")),
    ("results/README.md", (MAIN, "LMRC")),
    ("results/README.md", (PLUS, "Joint")),
    *(("results/README.md", (folder, "LMRC+ + 20 per class")) for folder in (REHEARSAL, WITH_20)),
    *(
        ("results/README.md", (folder, "LMRC+"))
        for folder in (PLUS, SNAPSHOTS, BEFORE, NO_CUTMIX, "results/beyond/wide")
    ),
    *((LAB_BOOK, (folder, "LMRC+")) for folder in (PLUS, BEFORE)),
    *(
        ("results/README.md", (f"results/beyond/{name}", "LMRC+"))
        for name in ("tasks-5", "tasks-20", "first-50", "first-50-no-cutmix", "first-50-frozen")
    ),
]


@pytest.mark.parametrize(("page", "source"), PAIRS, ids=lambda part: str(part)[-40:])
def test_a_page_names_the_pair_of_its_records(page, source, measured):
    summary = measured(*source)
    average, last = (
        percent(found).partition(" ±")[0] for found in (summary.average, summary.final)
    )
    says(page, f"{average} / {last}")


# --- Figures in sentences, and tables of other records --------------------------------------------


def says(page, *texts):
    """Check that a page has texts, whatever its line breaks and its emphasis."""
    shown = " ".join((ROOT / page).read_text("utf-8").replace("*", "").split())
    for text in texts:
        assert text in shown, (page, text)


def lines_of(path, **wanted):
    """Return the records of a file that have some values."""
    lines = map(json.loads, (ROOT / path).read_text("utf-8").splitlines())
    return [line for line in lines if wanted.items() <= line.items()]


def spread(values, digits=3):
    """Return mean ± sample standard deviation; the mean alone of one value."""
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{deviation}"


def few(images):
    """Return average incremental and last accuracy on Flowers-12, in percent; images=0: all."""
    path = "results/pretrained/flowers12/few-images.jsonl"
    found = lines_of(path, per_class=images, rule="ridge", held_out=False)
    assert len(found) == 5
    average = fmean(fmean(line["accuracy"]) for line in found)
    return 100 * average, 100 * fmean(line["accuracy"][-1] for line in found)


def test_tiny_imagenet():
    rows = dict(rows_of("docs/results.md", "## Tiny-ImageNet"))
    shown = {name.partition(" (")[0].lower(): figures for name, figures in rows.items()}
    five = {}
    for folder in (TINY, "results/tiny-imagenet/rehearsal"):
        records = read_records(ROOT / folder)
        top5 = summarize_methods(records, "top5")
        for one, other in zip(summarize_methods(records), top5, strict=True):
            name, _, exemplars = one.method.lower().partition(" + ")
            name = (
                f"with {exemplars.replace(' per', ' exemplars per')}: {name}" if exemplars else name
            )
            means = (one.average, one.final, other.average, other.final)
            found = [f"{100 * mean.mean:.1f}" for mean in means]
            assert shown.pop(name.replace("joint", "joint training")) == found, name
            five[name] = found[2]
    assert not shown, "rows without records"
    methods = ("fine-tuning", "ewc", "lwf.mc", "lmrc")
    cells = " | ".join(five[f"with 20 exemplars per class: {method}"] for method in methods)
    says("docs/reproduction.md", f"| 20 | {cells} |")


def test_the_search_in_a_page_has_the_figures_of_the_lab_book():
    section = (ROOT / "results/README.md").read_text("utf-8").partition("\n## The search in")[2]
    questions = " ".join(section.split()).split(" - **[")[1:]
    assert len(questions) > 15
    for question in questions:
        place = re.match(r"[^]]+\]\(search/README\.md#([^)]+)\)", question)[1]
        details = section_of(LAB_BOOK, place)
        for figure in re.findall(r"\d+\.\d+(?: / \d+\.\d+)?", question):
            # The first is the difference of two figures, the second has its records above.
            if figure not in ("0.4", "82.9 / 74.6"):
                assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.]*\d)", details), figure


def test_few_photographs():
    (average, last), shown = few(10), {n: "{:.1f} / {:.1f}".format(*few(n)) for n in (1, 5, 10, 0)}
    says("README.md", f"{last:.0f} % at the end, {average:.0f} % on average")
    says("docs/how-to/few-images.md", f"| accuracy (%) | {' | '.join(shown.values())} |")
    for n in (5, 10, 0):
        average, last = few(n)
        says("docs/tutorial.md", f"| {n or 60} | {average:.1f} % | {last:.1f} % |")


def test_unknown_among_few_photographs():
    rows = rows_of("docs/how-to/few-images.md", "Unknown images on Flowers-12")
    lines = lines_of("results/trust/few-images.jsonl", task=2)
    for share, (_, cells) in zip(("0.05", "0.1", "0.2"), rows, strict=True):
        for n, cell in zip((5, 10, 20, 60), cells, strict=True):
            of = [line for line in lines if line["settings"]["per_class"] == n]
            found = (fmean(x[key][share] for x in of) for key in ("told_unknown_at", "lost_at"))
            assert cell == ", ".join(f"{100 * part:.0f}" for part in found)


def test_leave_one_out_accuracy():
    lines = lines_of("results/trust/few-images.jsonl")
    shown = []
    for key in ("left_out_accuracy", "new_accuracy"):
        of = {
            n: [x[key] for x in lines if x["settings"]["per_class"] == n] for n in (5, 10, 20, 60)
        }
        *first, last = (f"{100 * fmean(values):.1f}" for values in of.values())
        shown.append(f"{', '.join(first)} and {last} %")
    page = "docs/how-to/few-images.md"
    says(page, f"{shown[0]} with 5, 10, 20 and 60", f"new classes have {shown[1]}")


def test_seconds_for_photographs():
    """Of the output that the page of benchmarks shows: 200 photographs, a task each."""
    section = (ROOT / "benchmarks/README.md").read_text("utf-8").partition("(`learn.py`)")[2]
    found = re.findall(r"^ +\d +200 +([\d.]+) ", section, re.M)
    seconds = f"{float(found[0]):.0f} s"
    says("README.md", f"200 in [{seconds}](benchmarks/README.md)")
    says("docs/tutorial.md", f"200 photographs take {seconds} on")


def test_vectors():
    found = {
        backbone: fmean(
            line["accuracy"][-1]
            for line in lines_of("results/search/vectors.jsonl", data="digits", backbone=backbone)
            if line.get("classes", 2) == 2
        )
        for backbone in ("homogeneous", "mlp")
    }
    text = "{:.1f} % of all ten, where a network that learns has {:.1f} %"
    says("docs/how-to/choose.md", text.format(*(100 * share for share in found.values())))


def test_mistakes_found_by_check():
    for line in lines_of("results/trust/check.jsonl"):
        assert line["flipped_found_in_first_tenth"] == line["flipped"]
        assert line["copies_found"] == line["copies"]
        text = f"all {line['flipped']} are among the first tenth of the list, and all"
        says("docs/how-to/check.md", f"{text} {line['copies']} copies are found")
    counts = Counter()
    for line in lines_of("results/trust/check.jsonl"):
        for of_model in line["look_like_known"].values():
            counts.update(of_model)
    text = "{renamed_told} of {renamed} are reported as looking like a known class; of new kinds, "
    says("docs/how-to/check.md", (text + "{others_told} of {others}.").format(**counts))


def test_task_id_accuracy(measured):
    lmrc, plus = measured(MAIN, "LMRC"), measured(PLUS, "LMRC+")
    aware, task = (percent(x).split()[0] for x in (lmrc.task_aware_accuracy, lmrc.task_id_accuracy))
    says("docs/beyond.md", f"{aware} % of the test images correctly", f"right task for {task} %")
    aware, task = (percent(x).split()[0] for x in (plus.task_aware_accuracy, plus.task_id_accuracy))
    says("docs/beyond.md", f"accuracy is {task} %,", f"task-aware accuracy {aware} %")
    says("docs/results.md", f"LMRC+ finds it for {float(task):.0f} %")


def test_other_splits(measured):
    text = (ROOT / "docs/beyond-measured.md").read_text("utf-8").partition("## Other splits")[2]
    table = re.search(r"(?:^\|.*\n)+", text, re.M)[0]
    cells = re.findall(r"\[([^]]+)\]\(\.\./(results/[\w/-]+)\)", table)
    assert len(cells) == 9
    for shown, folder in cells:
        summary = measured(folder, "LMRC+")
        assert shown == f"{percent(summary.average)} / {percent(summary.final)}", folder


def test_forgetting(measured):
    lmrc, lwf = measured(MAIN, "LMRC"), measured(MAIN, "LwF.MT")
    lost = [f"{100 * s.forgetting.mean:.0f}" for s in (lmrc, lwf)]
    old = [f"{100 * s.old.mean:.1f} %" for s in (lmrc, lwf)]
    says("docs/results.md", f"({lost[0]} points against {lost[1]})", f"({old[0]} against {old[1]})")


def test_exemplars(measured):
    rehearsal = "results/cifar100/rehearsal"
    with_20, with_50 = (f"LMRC+ + {n} per class" for n in (20, 50))
    lmrc = measured(rehearsal, "LMRC + 20 per class").average
    default, snapshots = (
        [measured(WITH_20, with_20, rule).average, measured(SNAPSHOTS, "LMRC+", rule).average]
        for rule in ("ensemble", "snapshots")
    )
    pairs = ((lmrc, measured(MAIN, "LMRC").average), default, snapshots)
    gains = [f"from {100 * old.mean:.1f} to {100 * new.mean:.1f}" for new, old in pairs]
    text = f"raise LMRC {gains[0]}, LMRC+ {gains[1]}, and its snapshot ensemble {gains[2]}"
    says("docs/how-to/exemplars.md", text)
    says("docs/results.md", f"| {percent(snapshots[0])} | {percent(lmrc)} |")
    fifty = measured(WITH_50, with_50)
    pair = f"{percent(fifty.average)} on average and {percent(fifty.final)} at the end"
    says("docs/results.md", f"50 exemplars per class: LMRC+ has {pair}")
    says("docs/results.md", f"network alone, the default, has {percent(default[0])};")
    for name, cells in rows_of("docs/beyond-measured.md", "## With exemplars"):
        rule = name.strip('`"').partition('"')[0]
        of = [measured(WITH_20, with_20, rule), measured(SNAPSHOTS, "LMRC+", rule)]
        if rule == "snapshots":
            assert cells.pop(0) == "not run"
        else:
            of.insert(0, measured(WITH_50, with_50, rule))
        assert cells == [f"{percent(one.average)} / {percent(one.final)}" for one in of]
    methods = ("Fine-tuning", "EWC", "LwF.MC", "LMRC")
    rows = dict(rows_of("docs/reproduction.md", "## Table 1: rehearsal"))
    for n in (20, 50, 100):
        found = [measured(rehearsal, f"{method} + {n} per class").average for method in methods]
        assert rows[str(n)] == list(map(percent, found))


def test_rotations(measured):
    rows = dict(rows_of("docs/beyond-measured.md", "## Costs and limits"))
    timed = json.loads((ROOT / "results/benchmarks/rotations-h200-compiled.json").read_text())
    names = {"none": "no rotations", "one": "one random rotation", "all": "all rotations"}
    for rotations, name in names.items():
        summary = measured("results/beyond/rotations", f"LMRC+, {name}")
        clock = timed["timed"][rotations]
        # 100 epochs of 5,000 images, then 9 · 30; and ten times the work after the last epoch.
        training = 1_850_000 / clock["images"] + 10 * clock["after"]
        (shown,) = (row for label, row in rows.items() if label.startswith(f'`"{rotations}"`'))
        assert shown[:2] == [percent(summary.average), percent(summary.final)]
        assert abs(float(shown[2]) - training) < 1
        assert shown[3] == f"{round(clock['predicted'], -3):,.0f}"


def test_trust_tables():
    tables = {
        "### CIFAR-100, from scratch": ("cifar100", ("accuracy", "ece", "lost")),
        "### Flowers-12, pre-trained": ("flowers12", ("accuracy", "ece", "lost")),
        "### Held-out images or pseudo-features?": ("digits-held-out", EVERY),
    }
    targets = [row[1] for _, row in rows_of("docs/trust.md", "## Measured")]
    rules = [("cifar100", "ensemble", 5, 10), ("flowers12", "ridge", 2, 4)]
    for i, (name, rule, middle, last) in enumerate(rules):
        ends, middles = (
            lines_of(f"results/trust/{name}.jsonl", rule=rule, task=task) for task in (last, middle)
        )
        assert targets[i].startswith(spread([line["ece"] for line in ends]))
        assert targets[2 + i].startswith(
            spread([line["unknown"]["lmrc"]["auroc"] for line in middles])
        )
    for heading, (name, fields) in tables.items():
        path = f"results/trust/{name}.jsonl"
        last = max(line["task"] for line in lines_of(path))
        for label, cells in rows_of("docs/trust.md", heading):
            lines = lines_of(path, task=last, rule=label.split('"')[1])
            found = [spread([line[field] for line in lines]) for field in fields]
            for field, cell in zip(found, cells, strict=True):
                assert cell in (field, field.removesuffix(" ± 0.000")), (name, label)


def test_calibration_of_heads_of_a_frozen_backbone():
    path = "results/trust/flowers12-ensemble.jsonl"
    errors = [
        fmean(line["ece"] for line in lines_of(path, task=4, rule=rule))
        for rule in ("ensemble", "finetuned", "linear")
    ]
    says("docs/trust.md", f"an ECE of {min(errors):.3f} to {max(errors):.3f}")


EVERY = ("accuracy", "ece", "ece_by_pseudo_features", "lost")
SCORES = {
    "LMRC+": "lmrc",
    "maximum similarity": "max_similarity",
    "maximum probability": "max_probability",
    "energy": "energy",
    "Mahalanobis": "mahalanobis",
    "relative Mahalanobis": "relative_mahalanobis",
    "residual of ViM": "vim_residual",
}


@pytest.mark.parametrize(
    ("name", "heading", "rule", "task"),
    [
        ("cifar100", "### CIFAR-100, from scratch", "ensemble", 5),
        ("flowers12", "### Flowers-12, pre-trained", "ridge", 2),
    ],
)
def test_scores_for_unknown_images(name, heading, rule, task):
    section = (ROOT / "docs/trust.md").read_text("utf-8").partition(f"\n{heading}")[2]
    lines = lines_of(f"results/trust/{name}.jsonl", rule=rule, task=task)
    for label, score in SCORES.items():
        cells = re.search(rf"^\| {re.escape(label)}(?: \([^)]*\))? \|(.*)\|$", section, re.M)[1]
        found = [
            spread([line["unknown"][score][key] for line in lines]) for key in ("auroc", "fpr95")
        ]
        assert [cell.strip() for cell in cells.split("|")] == found, label


def test_what_is_left_of_a_forgotten_class():
    text = (ROOT / "results/benchmarks/forgotten.txt").read_text("utf-8")
    for before, after in re.findall(r"epochs: \[([\d.]+) +([\d.]+)\]", text):
        says("docs/privacy.md", f"{100 * float(before):.1f} % became {100 * float(after):.1f} %")
    folder = [re.findall(r": ([\d.]+)", found) for found in re.findall(r"alone, .*?{(.*)}", text)]
    rows = [[max(map(float, found)) for found in folder]]
    for name in ("probe", "told", "accuracy"):
        pairs = [list(map(float, x.split())) for x in re.findall(rf"{name}.*\[([\d. ]+)\]", text)]
        rows.append([x for pair in pairs for x in (pair[1:] if name == "accuracy" else pair[:2])])
    for row, digits in zip(rows, (0, 0, 0, 1), strict=True):
        says("docs/privacy.md", "".join(f" | {100 * x:.{digits}f} %" for x in row))


def test_a_server_under_load():
    for name in ("serve", "serve-one-thread"):
        lines = (ROOT / f"results/benchmarks/{name}.txt").read_text("utf-8").splitlines()
        rows = [line for line in lines if re.match(r"\| [a-z][\w-]+ \| \d", line)]
        assert len(rows) == 9
        cells = [[cell.strip() for cell in row.split("|")] for row in rows if "| 64 |" in row]
        ratios = [row[6] for row in cells]
        for page in ("benchmarks/README.md", "docs/serve.md"):
            says(page, f"{min(ratios)} to {max(ratios)} times")
        if name == "serve":
            says("benchmarks/README.md", *rows)
            rate = next(row[5] for row in cells if row[1] == "efficientnet-lite0").split()[0]
            says("docs/serve.md", f"EfficientNet-Lite0 classifies {rate} photographs a second")


def test_the_step():
    for name in ("h200-compiled", "h200", "cpu"):
        path = f"results/benchmarks/throughput-{name}.json"
        timed = json.loads((ROOT / path).read_text("utf-8"))["timed"]
        for row, found in timed.items():
            ratio = timed["conventional"]["ms"] / found["ms"]
            text = f"{row} {found['images']:,.0f} {found['ms']:.2f} {ratio:.2f}"
            says("benchmarks/README.md", text)
        if name == "h200-compiled":
            ours, first = (f"{timed[row]['ms']:.2f}" for row in ("ours", "ours, no frozen pass"))
            says("docs/scale.md", f"{ours} ms with the frozen pass, and {first} ms in the first")


def test_label_vectors():
    lines = lines_of("results/capacity/records.jsonl", dim=100, threshold=0.15)
    found = [line["found"] for line in lines]
    expected = 10 ** lines[0]["log10_expected"]["beta"]
    says("docs/paper.md", f"expects {expected:.0f}", f"{fmean(found):.0f} ± {stdev(found):.0f}")


def test_gains_by_snapshots():
    records = [lines_of(f"results/search/snapshots/order-{order}.jsonl") for order in (0, 1)]
    found = [line["found"] for lines in records for line in lines]
    gains = [one["all, linear, 0.5"] - one["newest"] for one in found]
    says("results/README.md", f"{min(gains):.1f} to {max(gains):.1f} points more on small networks")
