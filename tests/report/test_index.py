"""The page over many run folders."""

from dataclasses import replace

import pytest

from lmrc.report.index import reports_in, write_index
from lmrc.report.records import write_description

PAGE = "<title>{}</title><h1>{}</h1>"


@pytest.fixture
def runs(tmp_path):
    for name, headline in (("b c/two", "LMRC &lt;b&gt; is <em>best</em>"), ("a", "one")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "report.html").write_text(PAGE.format("An experiment", headline))
    return tmp_path


def test_every_report_is_listed_by_its_headline(runs):
    assert [entry.place for entry in reports_in(runs)] == ["a", "b c/two"]
    page, entries = write_index(runs)
    text = page.read_text("utf-8")
    assert entries[1].headline == "LMRC <b> is best"
    assert '<a href="b%20c/two/report.html">LMRC &lt;b&gt; is best</a>' in text
    assert text.startswith("<!doctype html>")
    assert "<b>" not in text.partition("</style>")[2]


def test_a_run_is_listed_with_its_data(runs, description):
    recipe = {"dataset": "pets", "tasks": 5, "seeds": 1}
    write_description(runs / "a", replace(description, recipe=recipe))
    (runs / "b c/two/run.json").write_text("damaged")
    assert [entry.title for entry in reports_in(runs)] == [
        "An experiment: pets, 5 tasks, 1 seed",
        "An experiment",
    ]


def test_the_command_writes_an_index_above_run_folders(runs, call):
    code, out, _ = call("report", str(runs))
    assert code == 0
    assert out == f"2 reports: {runs / 'index.html'}\n"


def test_a_folder_without_reports_is_refused_in_one_line(tmp_path, call):
    code, _, err = call("report", str(tmp_path))
    assert code == 1
    assert err.count("\n") == 1
    assert "neither records nor folders with a report.html" in err
