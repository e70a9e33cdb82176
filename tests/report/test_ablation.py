"""The reports of the ablations."""

import csv
import io
from dataclasses import replace

import pytest
from matplotlib.container import BarContainer

from lmrc.report.page import assemble, build, render

ROWS = [
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


@pytest.fixture
def ablation(steady):
    """Records in another order than the rows'."""
    last = [replace(r, method="last") for r in steady]
    more = [replace(r, method="more", extra={**r.extra, "prediction_rules": RULES}) for r in steady]
    return [*last, *more, *steady]


@pytest.fixture
def run(description):
    recipe = {"rows": ROWS, "seeds": 2, "methods": ["a", "b", "c"], "variants": {"x": {}}}
    return replace(description, experiment="ablation", recipe=recipe, headline="", findings=[])


def test_rows_are_in_order_and_have_the_scores_of_their_rules(run, ablation, rows_of):
    contents = build(run, ablation)
    rows = rows_of(assemble(run, contents))
    steps = list(rows)[list(rows).index("row") + 1 :][:4]
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
    assert contents.headline == "From start to end: 89.6 % to 89.6 % average incremental accuracy."


def test_prediction_rules_of_one_network_do_not_add_up(run, ablation):
    assert "Each row includes the changes of the rows above it." in render(run, ablation)
    rules = {**RULES, "ensemble": RULES["lda"]}
    more = [replace(r, extra={**r.extra, "prediction_rules": rules}) for r in ablation]
    rows = [*ROWS[:-1], {"name": "+ ensemble", "method": "more", "rule": "ensemble"}, ROWS[-1]]
    html = render(replace(run, recipe={**run.recipe, "rows": rows}), more)
    assert "except from “+ Gaussians” to “+ ensemble”: these are prediction rules of" in html
    assert "the rows below use “+ ensemble”" in html
    assert "of runs that may have shared the machine" in html


def test_the_bars_are_the_rows(run, ablation):
    chart = build(run, ablation).drawings["ablation"].figure
    average, last = (c for c in chart.axes[0].containers if isinstance(c, BarContainer))
    assert [bar.get_width() for bar in last] == pytest.approx([75, 25, 50, 75])
    assert [bar.get_width() for bar in average][1:3] == pytest.approx([25, 50])
    names = [label.get_text() for label in chart.axes[0].get_yticklabels()]
    assert names == ["start", "heads alone", "+ Gaussians", "end"]


def test_the_task_id_accuracy_is_that_of_the_first_and_the_last_row(run, ablation):
    labels = [
        line.get_label()
        for line in build(run, ablation).drawings["task-id-accuracy"].figure.axes[0].lines
    ]
    assert labels == ["start, task-ID", "end, task-ID"]  # no task-aware accuracy without scores


def test_the_ablation_as_a_table(run, ablation):
    rows = list(csv.DictReader(io.StringIO(build(run, ablation).tables["ablation"])))
    assert [row["row"] for row in rows] == ["start", "heads alone", "'+ Gaussians", "end"]
    assert rows[2]["final_accuracy"] == "0.5"
    assert rows[2]["training_seconds"] == ""
    assert float(rows[2]["stored_bytes_per_class"]) == 6_000
    assert (
        "| + Gaussians | 50.0 ± 0.0 | 50.0 ± 0.0 | 62.5 ± 0.0 |  | 6.00 |"
        in build(run, ablation).markdown
    )


def test_an_unfinished_ablation_has_a_page(run, ablation, rows_of):
    html = render(run, ablation[:1])
    assert "This run is not finished." in html
    assert "end" in rows_of(html)


def test_a_row_without_effect_is_named(run, ablation):
    """On digits, LMRC+ is what the row above it is already."""
    assert "is identical to" not in render(run, ablation)
    last = RULES["lda"]
    same = [
        replace(r, record=replace(r.record, **last)) if r.method == "last" else r for r in ablation
    ]
    told = "“end” is identical to “+ Gaussians” on this data set."
    assert told in render(run, same)


def test_the_page_does_not_spell_out_variants(run, ablation):
    assert "variants" not in render(run, ablation)


def test_rotations_show_accuracy_against_seconds(description, steady):
    slow = [
        replace(r, method="slow", record=replace(r.record, train_seconds=6.0, test_seconds=2.0))
        for r in steady
    ]
    run = replace(description, experiment="rotations", headline="", recipe={"methods": ["a", "b"]})
    contents = build(run, [*steady, *slow])
    # No seconds: other processes may have run at the same time.
    assert contents.headline == "steady: 89.6 %; slow: 89.6 % average incremental accuracy."
    assert "of runs that may have shared the machine" in assemble(run, contents)
    (axes,) = contents.drawings["cost"].figure.axes  # of training: testing is too short to time
    points = [line for line in axes.lines if line.get_marker() in ("<", ">")]
    assert sorted({float(line.get_xdata()[0]) for line in points}) == [4.5, 18.0]
    assert {round(float(line.get_ydata()[0]), 1) for line in points} == {89.6, 75.0}
    assert "| slow | 89.6 ± 2.9 | 75.0 ± 0.0 | 18 | 2.00 |" in contents.markdown


def test_one_seed_has_no_error_bars(description, steady):
    """Their caps would be a cross in each hollow mark."""
    run = replace(description, experiment="rotations", headline="", recipe={"methods": ["a"]})

    def marks(records):
        axes = build(run, records).drawings["cost"].figure.axes[0]
        return {line.get_marker() for line in axes.lines}

    assert "_" in marks(steady)
    assert marks([r for r in steady if r.seed == 0]) <= {"<", "None", ""}


def test_pretrained_names_the_best_row_that_keeps_no_image(run, ablation):
    """Joint training keeps them all: it is beside the others, and never the best."""
    variants = {"all": {"method": "joint", "title": "steady"}}
    described = replace(
        run, experiment="pretrained", headline="", recipe={**run.recipe, "variants": variants}
    )
    contents = build(described, ablation)
    assert contents.headline == "end is best: 89.6 % average incremental accuracy."
    assert "| start |" in contents.markdown
    assert "includes the changes" not in render(described, ablation)
