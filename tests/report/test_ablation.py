"""The reports of the ablations."""

import csv
import io
from dataclasses import replace

import pytest
from matplotlib.container import BarContainer

from lmrc.report.page import assemble, build, render

pytestmark = pytest.mark.usefixtures("undrawn")

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


def test_pretrained_names_the_best_row_that_keeps_no_image(run, ablation):
    """Joint training keeps them all: it is beside the others, and never the best."""
    variants = {"all": {"method": "joint", "title": "steady"}}
    described = replace(
        run, experiment="pretrained", headline="", recipe={**run.recipe, "variants": variants}
    )
    contents = build(described, ablation)
    assert contents.headline.startswith("end is best: 89.6 % average incremental accuracy; ")
    assert "start (keeps all data): " in contents.headline
    assert "| start |" in contents.markdown
    assert "includes the changes" not in render(described, ablation)
