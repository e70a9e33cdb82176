"""The code of the documentation runs as it stands, and prints what the notebooks show."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [
        ROOT / "README.md",
        *(ROOT / "docs").glob("how-to/*.md"),
        *(ROOT / "docs").glob("reference/*.md"),
    ]
    if re.search("^```python$", path.read_text("utf-8"), re.M)
)
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def run(code, namespace):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "snippet", "exec"), namespace)
    return said.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for code in re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S):
        run(code, namespace)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            said = run("".join(cell["source"]), namespace)
            shown = "".join(text for output in cell["outputs"] for text in output["text"])
            assert NUMBER.sub("#", said) == NUMBER.sub("#", shown)
            for here, there in zip(NUMBER.findall(said), NUMBER.findall(shown), strict=True):
                if "." in here:  # an accuracy; processors round differently
                    assert float(here) == pytest.approx(float(there), abs=0.12)
