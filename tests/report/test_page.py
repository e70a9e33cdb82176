"""The page of a run folder, whatever the experiment."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from lmrc.data.images import thumbnail
from lmrc.evaluation.model import score_model
from lmrc.evaluation.trust import (
    Threshold,
    coverage_curve,
    expected_calibration_error,
    reliability,
    score_unknown,
    thinned,
)
from lmrc.report import figures
from lmrc.report.capacity import CapacityRecord
from lmrc.report.page import BUILDERS, assemble, build, in_recipe_order, render, write_report
from lmrc.report.records import Command, append_record, write_description
from lmrc.report.summary import summarize_methods

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


VOID = {"meta", "link", "br", "use", "wbr", "img"}


EVIL = "<script>\x1b'\"&=$x"


def made_evil(value):
    """Return plain JSON with all of its text made evil."""
    if isinstance(value, dict):
        return {key: made_evil(item) for key, item in value.items()}
    if isinstance(value, list):
        return [made_evil(item) for item in value]
    return f"{EVIL}{value}" if isinstance(value, str) else value


class Reader(HTMLParser):
    """Collects tables, all text, and attributes; fails on tags that do not match."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tables, self.words, self.attributes = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.words.append(data)
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def no_drawing(without_drawing):
    with without_drawing():
        yield


@pytest.fixture(scope="module")
def html(description, records):
    return render(description, records)


@pytest.fixture(scope="module")
def read(html):
    return Reader(html)


def shown(spread):
    return f"{100 * spread.mean:.1f} ± {100 * spread.deviation:.1f}"


def test_the_numbers_on_the_page_equal_the_records(read, records):
    accuracy, end, _, classes, settings = read.tables
    summaries = summarize_methods(records)
    assert accuracy[0] == ["method", "average", "1 classes", "2 classes", "3 classes"]
    for summary, over_time, after in zip(summaries, accuracy[1:], end[1:], strict=True):
        assert over_time == [summary.method, *map(shown, [summary.average, *summary.accuracy])]
        ends = [
            summary.final,
            summary.old,
            summary.new,
            summary.forgetting,
            summary.task_id_accuracy,
        ]
        assert after == [summary.method, *map(shown, ends), "–"]
    assert classes[0] == ["class", *(summary.method for summary in summaries)]
    for label, *cells in classes[1:]:
        assert cells == [shown(summary.per_class[label]) for summary in summaries]
    assert [row[0] for row in classes[1:]] == ["cat", "dog", "<i>emu"]
    assert settings == [["method", "strength"], ["steady", "1"], [summaries[1].method, "0"]]


@pytest.mark.usefixtures("no_drawing")
def test_one_seed_shows_no_deviation(description, records):
    read = Reader(render(description, [r for r in records if r.seed == 0]))
    assert read.tables[0][1] == ["steady", "87.5", "100.0", "87.5", "75.0"]
    assert "±" not in read.text
    assert "one seed" in read.text


def test_the_page_has_question_result_and_commands(read, description):
    text = read.text.replace("\xa0", " ")
    for told in (
        description.title,
        description.headline,
        description.question,
        *(command.words for command in description.commands),
    ):
        assert told in text
    assert " ".join(description.findings) in text
    assert "lmrc 9.9, python 3.99; abacus, 2 cores; 1 thread." in text
    assert "24 seconds" in text
    assert "mean ± standard deviation over 2 seeds" in text


def test_all_text_is_escaped(html, description):
    for tag in ("<b>", "<i>", "<em>", "<co>", "<they>"):
        assert tag not in html
    assert "&lt;b&gt;forgets &amp; " in html


def test_nothing_is_loaded_from_elsewhere(html, read):
    for tag, name, value in read.attributes:
        assert tag not in ("script", "iframe", "img", "object")
        if name in ("src", "href", "xlink:href", "action", "data"):
            assert value.startswith(("#", "data:")), (tag, name, value)
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    assert not {tag for tag, *_ in read.attributes} & {"script"}


def test_ids_are_there_once(read):
    ids = [value for _, name, value in read.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_it_fits_a_phone_and_the_dark(html, read):
    assert ("meta", "name", "viewport") in read.attributes
    assert "prefers-color-scheme: dark" in html
    assert len([1 for a in read.attributes if a[1:] == ("class", "scroll")]) == len(read.tables)


def test_no_records_no_page(description):
    with pytest.raises(ValueError, match="run the experiment first"):
        render(description, [])


@pytest.fixture
def folder(tmp_path, description, records):
    write_description(tmp_path, description)
    for record in records:
        append_record(tmp_path, record)
    return tmp_path


def test_a_figure_of_a_page_is_drawn_once_for_page_and_file(folder, monkeypatch):
    names, draw = [], figures.to_svg
    monkeypatch.setattr(
        figures, "to_svg", lambda figure, **how: names.append(how["name"]) or draw(figure, **how)
    )
    write_report(folder)
    assert "accuracy" in names
    assert len(names) == len(set(names))


def test_the_report_of_a_folder_is_made_from_its_records_alone(folder, html):
    assert write_report(folder)[0] == folder / "report.html"
    made = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(made) == {
        "records.jsonl", "run.json", "accuracy.svg", "accuracy.png", "table.csv", "report.html",
    }  # fmt: skip
    assert made["report.html"].decode() == html
    write_report(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == made


@pytest.mark.parametrize(
    ("changes", "recipe"), [({"extra": {"class_names": [7]}}, {}), ({}, {"methods": [{}]})]
)
def test_what_lmrc_does_not_write_is_named(tmp_path, records, description, changes, recipe):
    append_record(tmp_path, replace(records[0], **changes))
    write_description(tmp_path, replace(description, recipe=recipe))
    with pytest.raises(ValueError, match=r"cannot be shown \(\w+Error: .*not as lmrc writes it"):
        write_report(tmp_path)


OUTPUTS = {
    "kind": "probability",
    "classes": [0, 1, 2, 3],
    "means": [[0.1, 0.2, 0.3, 0.4], [0.2, 0.2, 0.4, 0.2]] + 2 * [[0.0, 0.0, 0.25, 0.75]],
}


OVER_TIME = ["100.0 ± 0.0", "93.8 ± 8.8", "75.0 ± 0.0"]  # (1, 1), (7/8, 1), (3/4, 3/4)


#: A row that the page of each experiment must show, worked out by hand from the records.
ROWS = {
    "incremental": ["steady", "89.6 ± 2.9", *OVER_TIME],
    "rehearsal": ["steady", "89.6 ± 2.9"],
    "consolidation": ["steady", "–", "87.5 ± 17.7", "75.0 ± 17.7"],
    "heads": ["steady", *OVER_TIME],
    "softmax-suppression": ["steady", "class 0", "0.10 ± 0.00", "0.20 ± 0.00", "0.30 ± 0.00"],
    "capacity": ["8", "0.2", "31 ± 1", "100", "1,000", "2.5e51"],
}


def write_records(experiment, records, folder):
    """Write what an experiment would have measured."""
    if experiment == "capacity":
        laws = {"beta": 2.0, "normal": 3.0, "paper": 51.4}
        made_with = {"versions": {}, "hardware": "abacus", "threads": 1, "seconds": 1.0}
        records = [
            CapacityRecord(8, 0.2, seed, found, {"limit": 99}, laws, **made_with)
            for seed, found in enumerate((30, 32))
        ]
    if experiment == "rehearsal":
        records = [replace(r, method=f"{r.method} + 2 per class") for r in records]
    if experiment == "softmax-suppression":
        ends = [replace(r, extra={"outputs": OUTPUTS}) for r in records if r.record.task == 2]
        records = [r for r in records if r.record.task < 2] + ends
    for record in records:
        append_record(folder, record)


def browse(path, *options):
    """Return the page as Chromium has it after loading, and what it says of it."""
    usual = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
        "--disable-background-networking --disable-component-update --enable-logging=stderr --v=0 "
        f"--user-data-dir={path.parent / 'profile'} --dump-dom"
    )
    done = subprocess.run(
        [CHROMIUM, *usual.split(), *options, path.as_uri()],
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    return done.stdout, done.stderr


needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium or google-chrome on the path"
)


def write_page(experiment, folder, description, records):
    write_description(folder, replace(description, experiment=experiment))
    write_records(experiment, records, folder)
    return write_report(folder)[0]


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.parametrize("experiment", ROWS)
def test_the_page_of_each_experiment_shows_its_numbers(experiment, tmp_path, description, records):
    path = write_page(experiment, tmp_path, description, records)
    tables, row = Reader(path.read_text("utf-8")).tables, ROWS[experiment]
    assert row in [shown[: len(row)] for table in tables for shown in table]


@needs_chromium
@pytest.mark.parametrize("experiment", ["incremental", "capacity"])
def test_a_browser_shows_the_numbers_without_errors(experiment, tmp_path, description, records):
    path = write_page(experiment, tmp_path, description, records)
    seen, complaints = browse(path)
    assert "CONSOLE" not in complaints
    assert Reader(seen).tables == Reader(path.read_text("utf-8")).tables


#: Notes on each image whether it could be decoded.
DECODED = """<script>
for (const image of document.images) image.dataset.width = image.naturalWidth;
</script></body>"""


@needs_chromium
def test_a_browser_shows_all_parts_of_a_model_s_page(tmp_path, description):
    rng = np.random.default_rng(0)
    classes, y = np.array(["cat", "dog", "fox"]), rng.integers(0, 3, 60)
    similarities = np.eye(3)[y] + 0.7 * rng.standard_normal((60, 3))
    score = score_model(similarities, [classes[:2], classes[2:]], classes[y])
    sure = rng.uniform(0.4, 1, 60)
    correct = similarities.argmax(axis=1) == y
    image = thumbnail(np.full((8, 8), 200, np.uint8))
    score = replace(
        score,
        ece=expected_calibration_error(sure, correct),
        reliability=[[*one] for one in reliability(sure, correct)],
        coverage=thinned(coverage_curve(sure, correct)),
        unknown=score_unknown(
            {"unknown score": rng.normal(0, 1, 60), "maximum similarity": rng.normal(0, 1, 60)},
            {"unknown score": rng.normal(2, 1, 40), "maximum similarity": rng.normal(1, 1, 40)},
            Threshold(1.6, 0.05),
        ),
        images={
            "mistakes": [["a.png", "cat", "dog", 0.97, image]],
            "doubtful": [[EVIL, "fox", "fox", 0.41, image], ["b.png", "cat", "cat", 0.5, ""]],
        },
    )
    write_description(tmp_path, replace(description, experiment="model"))
    (tmp_path / "records.jsonl").write_text(f"{score.to_json()}\n", "utf-8")
    path, _ = write_report(tmp_path)
    html = path.read_text("utf-8")
    path.write_text(html.replace("</body>", DECODED), "utf-8")
    seen, complaints = browse(path)
    assert "CONSOLE" not in complaints
    assert "<script>\x1b" not in html
    assert re.findall(r'data-width="(\d+)"', seen) == ["96", "96"]
    headings = re.findall(r"<h2 id=\"([^\"]+)\"", seen)
    parts = ["mistakes", "confident-mistakes", "doubtful-hits", "reliability", "coverage"]
    assert [name for name in headings if name in (*parts, "unknown")] == [*parts, "unknown"]
    for name in ("reliability", "coverage", "unknown"):
        assert (tmp_path / f"{name}.svg").exists()
        assert f'id="{name}-figure_1"' in seen
    tables = Reader(html).tables
    auroc = score.unknown["scores"]["unknown score"]["auroc"]
    assert ["unknown score", f"{auroc:.3f}"] in [row[:2] for table in tables for row in table]


#: Notes on each table how much of it is cut off, and how far a name begins below its dot.
MEASURE = """<script>
for (const box of document.querySelectorAll(".scroll"))
  box.dataset.cut = box.scrollWidth - box.clientWidth;
for (const name of document.querySelectorAll(".keyed")) {
  const text = document.createRange(), dot = name.querySelector(".key").getBoundingClientRect();
  text.setStart(name.childNodes[1], 0);
  text.setEnd(name.childNodes[1], 1);
  const letter = text.getBoundingClientRect();
  name.dataset.below = Math.max(0, Math.round(letter.top - dot.bottom));
}
</script></body>"""


@needs_chromium
def test_ten_tasks_and_a_long_name_fit_a_laptop(tmp_path, description, records):
    own = "nearest_mean.NearestMeanClassifier"
    ten = [
        replace(
            line,
            method=own,
            record=replace(line.record, task=task, n_classes_seen=10 * task + 10),
        )
        for line in records
        if line.record.task == 0 and line.method == "steady"
        for task in range(10)
    ]
    html = render(replace(description, paper={own: 0.5}), ten)
    assert "100 classes" in html
    path = tmp_path / "report.html"
    path.write_text(html.replace("</body>", MEASURE), "utf-8")
    seen, _ = browse(path, "--window-size=1200,900")
    assert set(re.findall(r'data-cut="(\d+)"', seen)) == {"0"}
    assert set(re.findall(r'data-below="(\d+)"', seen)) == {"0"}


def test_text_of_records_and_run_is_never_markup(tmp_path, records, description):
    for i, record in enumerate(records):
        whole = made_evil(json.loads(record.to_json()))
        whole["settings"] |= {EVIL: EVIL, "by": [EVIL], "n": i % 2}
        whole["record"]["per_class"] = {made_evil(k): 1.0 for k in record.record.per_class}
        whole["extra"] = {"class_names": [EVIL], "data_note": EVIL, "augmentation": EVIL}
        with (tmp_path / "records.jsonl").open("a") as file:
            file.write(json.dumps(whole) + "\n")
    write_description(tmp_path, description)
    run = made_evil(json.loads((tmp_path / "run.json").read_text("utf-8")))
    run["recipe"], run["notes"] = {EVIL: EVIL, "tasks": [EVIL]}, [EVIL]
    (tmp_path / "run.json").write_text(json.dumps(run))
    html = write_report(tmp_path)[0].read_text("utf-8")
    reader = Reader(html)
    assert "<script" not in html.lower()
    assert reader.text.count("<script>") > 20
    harmless = Reader(render(description, records))
    assert {(tag, name) for tag, name, _ in reader.attributes} <= {
        (tag, name) for tag, name, _ in harmless.attributes
    }
    for made in (html, (tmp_path / "accuracy.svg").read_text("utf-8")):
        assert "\x1b" not in made
    ElementTree.parse(tmp_path / "accuracy.svg")
    assert "\n=" not in (tmp_path / "table.csv").read_text("utf-8")


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.parametrize("experiment", sorted({*BUILDERS, "incremental"}))
def test_a_page_is_in_the_order_of_the_recipe(experiment, description, renamed, colours_of):
    recipe = {"methods": ["lmrc", "my.own:Method", "lm", "finetune"]}
    run = replace(description, experiment=experiment, recipe=recipe)
    titles = ["LMRC", "my.own.Method", "LM", "Fine-tuning"]
    one = render(run, renamed("another", *reversed(titles)))
    assert one == render(run, renamed(*titles, "another"))
    if experiment != "ablation":  # it shows the first and the last row first
        assert list(dict.fromkeys(method for method, _ in colours_of(one))) == [
            *titles,
            "another",
        ]


def test_variants_are_known_by_their_titles(renamed):
    recipe = {"methods": ["b", "a"], "variants": {"a": {"title": "A!"}, "b": {"title": "B!"}}}
    ordered = in_recipe_order(renamed("A!", "B!"), recipe)
    assert list(dict.fromkeys(record.method for record in ordered)) == ["B!", "A!"]


@pytest.mark.usefixtures("no_drawing")
def test_a_report_has_a_headline_once_the_runs_of_each_command_are_finished(description, records):
    first, second = list(dict.fromkeys(record.method for record in records))
    lacks = [record for record in records if (record.method, record.seed) != (second, 1)]
    one, other = Command("x", [first], seeds=2), Command("y", [second], seeds=1)
    run = replace(description, headline="", commands=[one, other])
    assert build(run, lacks).headline.startswith("steady is best: 89.6 %")
    assert build(run, lacks[:-1]).headline == ""
    assert build(run, [record for record in lacks if record.method == first]).headline == ""
    for command in (replace(other, seeds=2), replace(other, memory=[0, 5])):
        assert build(replace(run, commands=[command, one]), lacks).headline == ""


@pytest.mark.parametrize(
    "experiment", sorted({*BUILDERS, "incremental"} - {"ablation", "pretrained"})
)
@pytest.mark.usefixtures("no_drawing")
def test_an_unfinished_run_has_a_page_in_every_experiment(experiment, description, records):
    begun = replace(description, experiment=experiment, headline="", findings=[])
    html = render(begun, records[:1])
    assert "This run is not finished." in html
    assert "No run has learnt all tasks yet." in html


@pytest.mark.usefixtures("no_drawing")
def test_with_a_note_on_the_data_the_page_has_no_numbers_of_the_paper(
    description, records, cells_of
):
    told = [replace(r, extra={"data_note": "Only <2> images."}) for r in records]
    run = replace(description, experiment="incremental", paper={"steady": 0.664})
    contents = build(run, told)
    html = assemble(run, contents)
    assert "Only &lt;2&gt; images." in html
    assert contents.markdown.endswith("|\n\nOnly <2> images.")
    assert "paper" not in cells_of(html, "method")
