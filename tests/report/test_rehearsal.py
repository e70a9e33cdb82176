"""The report of rehearsal: Table 1."""

from dataclasses import replace

import pytest

from lmrc.report.page import assemble, build, render, write_report
from lmrc.report.records import append_record, write_description

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def with_exemplars(records):
    """The steady method with 2 and 5 exemplars per class, for a table like the paper's."""
    steady = [record for record in records if record.method == "steady"]
    return [
        replace(
            record,
            method=f"steady + {size} per class",
            settings={**record.settings, "memory_per_class": size},
        )
        for size in (5, 2)
        for record in steady
    ]


def test_table_1_has_the_papers_number_beside_ours(description, with_exemplars, cells_of):
    run = replace(
        description, experiment="rehearsal", paper={"steady + 2 per class": 0.497}, headline=""
    )
    contents = build(run, with_exemplars)
    html = assemble(run, contents)
    assert cells_of(html, "method") == ["method", "2 per class", "paper", "5 per class", "paper"]
    assert cells_of(html, "steady") == ["steady", "89.6 ± 2.9", "49.7", "89.6 ± 2.9", "–"]
    assert "| steady | 89.6 ± 2.9 | 49.7 | 89.6 ± 2.9 | – |" in contents.markdown
    assert "best on the test set" in html
    assert "steady: 89.6&nbsp;%, 89.6&nbsp;% with 2, 5 exemplars per class" in html


def test_table_1_has_no_column_of_the_paper_without_its_methods(
    description, with_exemplars, cells_of
):
    run = replace(description, experiment="rehearsal", paper={"other + 2 per class": 0.497})
    html = render(run, with_exemplars)
    assert cells_of(html, "method") == ["method", "2 per class", "5 per class"]
    assert "the paper's" not in html


@pytest.mark.parametrize(
    ("share_of_five", "texts"),
    [
        (0.5, ["steady is best for every buffer size: 89.6&nbsp;%, 89.6&nbsp;% with 2, 5"]),
        (
            0.99,  # within one standard deviation
            [
                "With 2 exemplars per class steady is best (89.6&nbsp;%)",
                "with 5 exemplars per class steady and other are on par (89.6 and 88.7&nbsp;%)",
            ],
        ),
    ],
)
def test_the_headline_names_the_best(description, with_exemplars, share_of_five, texts):
    def worse(run):
        name, record = run.method.replace("steady", "other"), run.record
        share = share_of_five if "+ 5" in name else 0.5
        return replace(run, method=name, record=replace(record, accuracy=record.accuracy * share))

    run = replace(description, experiment="rehearsal", headline="")
    html = render(run, [*with_exemplars, *map(worse, with_exemplars)])
    assert all(text in html for text in texts)
    two = [r for r in [*with_exemplars, *map(worse, with_exemplars)] if "+ 2" in r.method]
    assert "steady is best: 89.6&nbsp;% with 2 exemplars" in render(run, two)


def test_a_method_is_best_only_where_it_was_compared(description, with_exemplars):
    other = [replace(r, method="other + 2 per class") for r in with_exemplars if "+ 2" in r.method]
    worse = [replace(r, record=replace(r.record, accuracy=r.record.accuracy / 2)) for r in other]
    run = replace(description, experiment="rehearsal", headline="")
    assert "steady is best where compared: 89.6&nbsp;% with 2 exemplars" in render(
        run, [*with_exemplars, *worse]
    )
    alone = [r for r in with_exemplars if "+ 5" in r.method]
    assert "on par" not in (html := render(run, [*alone, *worse]))
    assert "is best" not in html


def test_one_buffer_size_has_no_figure(tmp_path, description, with_exemplars, cells_of):
    """It would be one point: the table says it all."""
    write_description(tmp_path, replace(description, experiment="rehearsal"))
    for record in with_exemplars:
        if "+ 2" in record.method:
            append_record(tmp_path, record)
    html = write_report(tmp_path)[0].read_text("utf-8")
    assert cells_of(html, "steady") == ["steady", "89.6 ± 2.9"]
    assert "by exemplars per class" not in html
    assert {path.name for path in tmp_path.iterdir()} == {
        "records.jsonl", "run.json", "table.csv", "report.html",
    }  # fmt: skip
    both = replace(description, experiment="rehearsal")
    assert "by exemplars per class" in render(both, with_exemplars)


def test_table_1_is_in_the_order_of_the_recipe(description, renamed, colours_of):
    titles = [f"{m} + {size} per class" for size in (5, 2) for m in ("Fine-tuning", "LMRC")]
    run = replace(
        description,
        experiment="rehearsal",
        recipe={"methods": ["finetune", "lmrc"], "memory": [5, 2]},
    )
    html = render(run, renamed(*reversed(titles)))
    assert html == render(run, renamed(*titles))
    table_1, tasks = colours_of(html)[:2], colours_of(html)[2:6]
    assert [method for method, _ in table_1] == ["Fine-tuning", "LMRC"]
    assert [method for method, _ in tasks] == titles
    assert [colour for _, colour in tasks] == 2 * [colour for _, colour in table_1]
