"""The reports beyond the paper: the ablation, rotations, and what methods cost."""

import csv
import io
import re
from dataclasses import replace

import pytest
from matplotlib.container import BarContainer

from lmrc.report import figures
from lmrc.report.build import build
from lmrc.report.page import assemble, render

RUNGS = [
    {"name": "start", "method": "steady"},
    {"name": "not run", "method": "nowhere"},
    {"name": "heads alone", "method": "more", "rule": "wta"},
    {"name": "+ Gaussians", "method": "more", "rule": "lda"},
    {"name": "end", "method": "last"},
]
RULES = {
    "wta": {"accuracy": 0.25, "task_id_accuracy": 0.375, "task_aware_accuracy": 0.5},
    "lda": {"accuracy": 0.5, "task_id_accuracy": 0.625, "task_aware_accuracy": 0.75},
}


def rows_of(html):
    """Return the rows of all tables as lists of text, by their first cell."""
    found = {}
    for row in re.findall(r"<tr>(.*?)</tr>", html, flags=re.DOTALL):
        cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, flags=re.DOTALL)
        texts = [re.sub("<[^>]+>", "", cell).strip() for cell in cells]
        found.setdefault(texts[0], []).append(texts[1:])
    return found


@pytest.fixture
def steady(records):
    """Two seeds, three tasks; 12 kB of images and 6 kB of statistics in the end."""
    return [
        replace(r, extra={"stored_bytes": {"images": 12_000, "statistics": 6_000}})
        for r in records
        if r.method == "steady"
    ]


@pytest.fixture
def ablation(steady):
    """Records in another order than the rungs'."""
    last = [replace(r, method="last") for r in steady]
    more = [replace(r, method="more", extra={**r.extra, "prediction_rules": RULES}) for r in steady]
    return [*last, *more, *steady]


@pytest.fixture
def asked(description):
    recipe = {"rungs": RUNGS, "seeds": 2, "methods": ["a", "b", "c"], "variants": {"x": {}}}
    return replace(description, experiment="ablation", recipe=recipe, headline="", findings=[])


def test_rungs_stand_in_their_order_and_are_read_off_the_network(asked, ablation):
    contents = build(asked, ablation)
    rows = rows_of(assemble(asked, contents))
    steps = list(rows)[list(rows).index("step") + 1 :][:4]
    assert steps == ["start", "heads alone", "+ Gaussians", "end"]
    given = "50.0 ± 0.0"
    assert rows["heads alone"][0] == [
        "25.0 ± 0.0",
        "25.0 ± 0.0",
        "37.5 ± 0.0",
        given,
        "4.50",
        "4.00",
    ]
    assert rows["+ Gaussians"][0][-2:] == ["", "6.00"]  # no training of its own, but statistics
    assert rows["start"][0][:2] == ["89.6 ± 2.9", "75.0 ± 0.0"]
    assert "not run" not in rows
    assert contents.headline == "From start to end: 89.6 % to 89.6 % on average over the tasks."


def test_ways_to_read_one_network_are_not_said_to_add_up(asked, ablation):
    assert "Each row has what the rows above it have." in render(asked, ablation)
    readouts = {**RULES, "ensemble": RULES["lda"]}
    more = [replace(r, extra={**r.extra, "prediction_rules": readouts}) for r in ablation]
    rungs = [*RUNGS[:-1], {"name": "+ ensemble", "method": "more", "rule": "ensemble"}, RUNGS[-1]]
    html = render(replace(asked, recipe={**asked.recipe, "rungs": rungs}), more)
    assert "except from “+ Gaussians” to “+ ensemble”: these are ways to read" in html
    assert "what comes after goes on from “+ ensemble”" in html
    assert "of runs that may have shared the machine" in html


def test_the_bars_are_the_rungs(asked, ablation):
    chart = build(asked, ablation).drawings["ablation"].figure
    average, last = (c for c in chart.axes[0].containers if isinstance(c, BarContainer))
    assert [bar.get_width() for bar in last] == pytest.approx([75, 25, 50, 75])
    assert [bar.get_width() for bar in average][1:3] == pytest.approx([25, 50])
    names = [label.get_text() for label in chart.axes[0].get_yticklabels()]
    assert names == ["start", "heads alone", "+ Gaussians", "end"]


def test_the_task_id_accuracy_is_that_of_the_first_and_the_last_rung(asked, ablation):
    labels = [
        line.get_label()
        for line in build(asked, ablation).drawings["head-choice"].figure.axes[0].lines
    ]
    assert labels == ["start, right head", "end, right head"]  # no head given without scores


def test_the_ablation_as_a_table(asked, ablation):
    rows = list(csv.DictReader(io.StringIO(build(asked, ablation).tables["ablation"])))
    assert [row["step"] for row in rows] == ["start", "heads alone", "'+ Gaussians", "end"]
    assert rows[2]["final_accuracy"] == "0.5"
    assert rows[2]["training_seconds"] == ""
    assert float(rows[2]["stored_bytes_per_class"]) == 6_000
    assert (
        "| + Gaussians | 50.0 ± 0.0 | 50.0 ± 0.0 | 62.5 ± 0.0 |  | 6.00 |"
        in build(asked, ablation).markdown
    )


def test_a_ablation_that_has_only_begun_has_a_page(asked, ablation):
    html = render(asked, ablation[:1])
    assert "This run has not ended yet." in html
    assert "end" in rows_of(html)


def test_a_step_that_changes_nothing_is_said_to(asked, ablation):
    """On digits, LMRC+ is what the row above it is already."""
    assert "has the very numbers" not in render(asked, ablation)
    last = RULES["lda"]
    same = [
        replace(r, record=replace(r.record, **last)) if r.method == "last" else r for r in ablation
    ]
    told = "“end” has the very numbers of “+ Gaussians”: on this data set it adds nothing to it."
    assert told in render(asked, same)


def test_the_page_does_not_spell_out_variants(asked, ablation):
    assert "variants" not in render(asked, ablation)


def test_rotations_show_accuracy_against_seconds(description, steady):
    slow = [
        replace(r, method="slow", record=replace(r.record, train_seconds=6.0, test_seconds=2.0))
        for r in steady
    ]
    asked = replace(
        description, experiment="rotations", headline="", recipe={"methods": ["a", "b"]}
    )
    contents = build(asked, [*steady, *slow])
    # Nothing by the clock, which counts what ran beside them, too.
    assert contents.headline == "steady: 89.6 %; slow: 89.6 % on average over the tasks."
    assert "of runs that may have shared the machine" in assemble(asked, contents)
    training, testing = contents.drawings["cost"].figure.axes
    for axes, seconds in ((training, [4.5, 18.0]), (testing, [0.5, 2.0])):
        points = [line for line in axes.lines if line.get_marker() in ("o", "s")]
        assert sorted({float(line.get_xdata()[0]) for line in points}) == seconds
        assert {round(float(line.get_ydata()[0]), 1) for line in points} == {89.6, 75.0}
    assert "| slow | 89.6 ± 2.9 | 75.0 ± 0.0 | 18 | 2.00 |" in contents.markdown


def test_one_seed_has_no_bars_of_deviation(description, steady):
    """Their caps would be a cross in each hollow mark."""
    asked = replace(description, experiment="rotations", headline="", recipe={"methods": ["a"]})

    def marks(records):
        axes = build(asked, records).drawings["cost"].figure.axes[0]
        return {line.get_marker() for line in axes.lines}

    assert "_" in marks(steady)
    assert marks([r for r in steady if r.seed == 0]) <= {"o", "None", ""}


def test_the_numbers_of_two_axes_stand_apart(description, steady):
    asked = replace(description, experiment="rotations", headline="", recipe={"methods": ["a"]})
    figure = build(asked, steady).drawings["cost"].figure
    figures.to_png(figure)
    left, right = (axes.get_window_extent() for axes in figure.axes)
    assert right.x0 - left.x1 > 0.055 * figure.bbox.width


def test_what_methods_cost_stands_on_the_page(description, steady, records):
    rows = rows_of(render(description, steady))
    assert rows["steady"][2] == ["4.50", "0.50", "4.00", "2.00"]
    older = rows_of(render(description, records))  # of before bytes were recorded
    assert older["steady"][2] == ["4.50", "0.50"]
    mixed = [*steady, *(r for r in records if r.method != "steady")]
    assert rows_of(render(description, mixed))["&lt;b&gt;forgets &amp; &#34;falls&#34;&lt;/b&gt;"][
        2
    ] == ["4.50", "0.50", "–", "–"]


def test_joint_training_is_compared_with_and_does_not_win(description, records):
    joint = [replace(r, method="Joint" if r.method == "steady" else "LMRC+") for r in records]
    asked = replace(description, headline="", findings=[], experiment="incremental")
    contents = build(asked, joint)
    assert contents.headline.startswith("LMRC+: ")
    assert contents.headline.endswith("; joint training on all images: 89.6 %.")
    assert contents.findings[0].startswith("LMRC+ ends at")
    assert len(contents.findings) == 1
