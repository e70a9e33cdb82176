"""The code of the documentation runs as it stands, and prints what the notebooks show."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest
from typer import BadParameter, Context
from typer.main import get_command

from lmrc.cli import app
from lmrc.experiments.options import one_by_one
from lmrc.statistics import prediction_rules

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
        said = run(code, namespace)
        shown = re.findall(r"^print\(.*#.*?(\d\.\d+)", code, re.M)  # "print(…)  # 0.98, …"
        for here, there in zip(NUMBER.findall(said), shown, strict=False):
            assert float(here) == pytest.approx(float(there), abs=0.01)
        assert len(shown) <= len(NUMBER.findall(said))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prediction_rules, "STEPS", 100)  # a third of them shows the same
    namespace = {"__name__": "__main__"}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            said = run("".join(cell["source"]), namespace)
            shown = "".join(text for output in cell["outputs"] for text in output["text"])
            assert NUMBER.sub("#", said) == NUMBER.sub("#", shown)
            for here, there in zip(NUMBER.findall(said), NUMBER.findall(shown), strict=True):
                if "." in here:  # an accuracy; processors round differently
                    assert float(here) == pytest.approx(float(there), abs=0.12)


def commands_of(path):
    """Return the commands in the fences of a page, without comments; continued lines are joined."""
    fences = re.findall(r"^```(.*?)\n(.*?)^```$", path.read_text("utf-8"), re.M | re.S)
    shell = "\n".join(code for language, code in fences if language in ("", "sh"))
    lines = shell.replace("\\\n", " ").splitlines()
    return [found[1] for line in lines if (found := re.search(r"(?:^|-m )lmrc (.+)", line))]


COMMANDS = sorted(
    {
        (str(path.relative_to(ROOT)), command)
        for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
        for command in commands_of(path)
    }
)


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_of_the_documentation_is_taken(page, command):
    """Parsed as the command line does, but not run: most need images, a GPU, or much time."""
    words = one_by_one(shlex.split(command, comments=True))
    if words[0].startswith("-"):
        return
    root = get_command(app)
    chosen = root.get_command(Context(root), words[0])
    assert chosen is not None, command
    wrong = ""
    try:
        chosen.make_context(words[0], words[1:])
    except BadParameter as error:
        wrong = error.message
    assert not wrong or "does not exist" in wrong  # the images, as a rule


def test_commands_are_found():
    assert len(COMMANDS) > 30
