"""The documentation site: every page and file that is linked to exists."""

import importlib.util
import re
from pathlib import Path

import pytest
from markupsafe import escape

import lmrc
from lmrc.report.index import reports_in

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("build", ROOT / "docs" / "site" / "build.py")
build = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(build)


@pytest.fixture(scope="module")
def site(tmp_path_factory, run_jobs):
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    pytest.importorskip("sphinx_copybutton")
    out = tmp_path_factory.mktemp("site")
    program = str(ROOT / "docs" / "site" / "build.py")
    (done,) = run_jobs({"program": program, "arguments": [str(out)], "place": str(ROOT)})
    assert done["code"] == 0, done["said"]  # as when a link leads nowhere
    return out


def test_the_site_has_every_page_of_the_docs_in_its_contents(site):
    contents = re.findall(
        r'class="reference internal" href="([^"#]+)"', (site / "index.html").read_text("utf-8")
    )
    for page in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]:
        assert f"{page.relative_to(ROOT / 'docs').with_suffix('.html')}" in contents
    assert {"reference/cli.html", "reference/parameters.html", "results/pages.html"} <= {*contents}


def test_the_reference_shows_commands_parameters_and_classes(site):
    commands = (site / "reference" / "cli.html").read_text("utf-8")
    assert {"forget", "--memory-per-class"} <= {*re.findall(r"[\w-]+", commands)}
    assert "\x1b" not in commands
    parameters = (site / "reference" / "parameters.html").read_text("utf-8")
    assert {"response_weight", "rotations"} <= {*re.findall(r"\w+", parameters)}


def test_every_public_name_is_on_a_page_of_the_python_reference(site):
    index = (site / "reference" / "python.html").read_text("utf-8")
    links = re.findall(r'href="([\w-]+\.html)#((?:module-)?lmrc\.[\w.]+)"', index)
    for page, anchor in links:
        assert f'id="{anchor}"' in (site / "reference" / page).read_text("utf-8")
    named = {anchor.rpartition(".")[2] for _, anchor in links}
    assert {*lmrc.__all__} - {"__version__"} <= named
    plus = (site / "reference" / "lmrc-plus.html").read_text("utf-8")
    assert 'id="lmrc.LMRCPlusClassifier.partial_fit"' in plus
    baselines = (site / "reference" / "baselines.html").read_text("utf-8")
    assert "penalty_weight" in baselines
    assert "<strong>momentum</strong>" not in baselines  # on the page of all methods' parameters


def test_result_pages_and_their_list_are_on_the_site(site):
    listed = re.findall(
        r'href="([^"]+report.html)"', (site / "results" / "pages.html").read_text("utf-8")
    )
    assert len(listed) == len(list((ROOT / "results").rglob("report.html")))
    assert all((site / "results" / place).exists() for place in listed)


def test_the_index_of_results_lists_every_page():
    """Else: lmrc report results."""
    index = (ROOT / "results" / "index.html").read_text("utf-8")
    for entry in reports_in(ROOT / "results"):
        assert f'href="{entry.place}/report.html">{escape(entry.headline)}</a>' in index


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://[^"]+', text), page
    assert "<mfrac>" in (site / "reference" / "metrics.html").read_text("utf-8")  # no MathJax


def test_a_link_that_leads_nowhere_is_an_error():
    text = "see [the results](../results/nowhere.md)"
    with pytest.raises(build.BrokenLinkError, match=r"docs/a.md links to ../results/nowhere.md"):
        build._with_site_links(text, "docs/a.md", "a.md", set())


def test_links_of_the_repository_become_links_of_the_site():
    text = "[a](../README.md#install) [b](../src/lmrc/methods/lmrc.py) [c](https://x.org)"
    rewritten, files = build._with_site_links(text, "docs/a.md", "a.md", {"index.md"})
    place = "source/src/lmrc/methods/lmrc-py.md"
    assert rewritten == f"[a](index.md#install) [b]({place}) [c](https://x.org)"
    assert files == {"src/lmrc/methods/lmrc.py"}
