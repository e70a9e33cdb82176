"""The reports of incremental, consolidation and heads."""

from dataclasses import replace

import pytest

from lmrc.report.page import assemble, build, render
from lmrc.report.summary import csv_table, markdown_table, summarize_methods

pytestmark = pytest.mark.usefixtures("undrawn")


def rival(records, name, factor):
    """Return the steady method's records under another name, less accurate by a factor."""
    return [
        replace(r, method=name, record=replace(r.record, accuracy=r.record.accuracy * factor))
        for r in records
        if r.method == "steady"
    ]


@pytest.mark.parametrize("experiment", ["incremental", "demo"])
def test_methods_within_one_standard_deviation_are_on_par(experiment, description, records):
    run = replace(description, experiment=experiment, headline="", findings=[])
    near = [*records, *rival(records, "near", 0.99), *rival(records, "Joint", 1.0)]
    contents = build(run, near)
    assert contents.headline.startswith(
        "steady and near are on par: 89.6 and 88.7 % average incremental accuracy"
    )
    assert contents.headline.endswith("; joint training (keeps all data): 89.6 %.")
    assert [line.split(":")[0] for line in contents.findings] == ["steady", "near"]
    far = build(run, [*records, *rival(records, "far", 0.9)])
    assert far.headline == "steady is best: 89.6 % average incremental accuracy."
    assert [line.split(":")[0] for line in far.findings] == ["steady"]


def test_one_seed_is_assumed_to_deviate_by_one_percent(description, records):
    alone = [r for r in records if r.seed == 0]
    run = replace(description, headline="")
    three = [*alone, *rival(alone, "near", 0.99), *rival(alone, "next", 0.995)]
    assert "steady, next and near are on par: 87.5, 87.1 and 86.6 %" in (build(run, three).headline)
    assert "steady is best" in build(run, [*alone, *rival(alone, "far", 0.98)]).headline


def test_the_papers_number_stands_beside_ours(description, records, cells_of):
    run = replace(description, experiment="incremental", paper={"steady": 0.664})
    html = render(run, records)
    assert cells_of(html, "method")[:3] == ["method", "average", "paper"]
    assert cells_of(html, "steady")[:3] == ["steady", "89.6 ± 2.9", "66.4"]
    summaries = summarize_methods(records)
    assert "| steady | 89.6 ± 2.9 | 66.4 | 75.0 ± 0.0 |" in markdown_table(summaries, run.paper)
    assert csv_table(summaries, run.paper).splitlines()[1].endswith(",0.664")
    assert "paper" not in cells_of(render(description, records), "method")


def test_top_5_is_shown_where_it_is_the_metric(description, records, cells_of):
    run = replace(description, recipe={"metric": "top5"}, headline="")
    contents = build(run, records)
    html = assemble(run, contents)
    assert cells_of(html, "steady") == ["steady", *["100.0 ± 0.0"] * 4]
    assert "average incremental top-5 accuracy (%)" in html
    assert "steady: 100.0 ± 0.0" in html
    assert "are on par: 100.0 and 100.0&nbsp;% average incremental top-5 accuracy" in html
    assert "average incremental top-5 accuracy" in contents.markdown


def test_accuracy_is_not_called_top_5_where_the_page_is_of_accuracy(description, records):
    run = replace(description, experiment="heads", recipe={"metric": "top5"})
    table = build(run, records).tables["table"]
    assert ",final_accuracy," in table
    assert "top5" not in table


def test_dotted_lines_of_consolidation_are_the_old_classes(description, records):
    contents = build(replace(description, experiment="consolidation"), records)
    (axes,) = contents.drawings["consolidation"].figure.axes
    (dotted,) = (line for line in axes.lines if line.get_label() == "steady, old classes")
    runs = [r.record for r in records if r.method == "steady"]
    for task, shown in enumerate(dotted.get_ydata()[-2:], 1):
        found = [100 * r.old_accuracy for r in runs if r.task == task]
        assert shown == pytest.approx(sum(found) / len(found))


def test_every_method_has_a_confusion_matrix_of_its_own(description, records):
    names = {"steady": "LMRC"}
    ours = [replace(r, method=names.get(r.method, "LMRC+")) for r in records]
    drawings = build(replace(description, experiment="heads"), ours).drawings
    assert set(drawings) >= {"confusion-lmrc", "confusion-lmrc-plus"}


def test_the_headline_on_heads_names_the_first_method_and_the_best_other(description, steady):
    def scored(method, share):
        return [
            replace(
                r,
                method=method,
                record=replace(r.record, task_id_accuracy=share, task_aware_accuracy=0.9),
            )
            for r in steady
        ]

    records = [*scored("LMRC", 0.2), *scored("EWC", 0.1), *scored("LMRC+", 0.6)]
    heads = replace(description, experiment="heads", commands=[])
    assert build(heads, records).headline == (
        "Task-ID accuracy after the last task: of LMRC 20.0 % (task-aware 90.0 %), "
        "of LMRC+ 60.0 % (task-aware 90.0 %)."
    )
