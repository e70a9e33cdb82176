import re

import pytest

from lmrc.experiments.reproduce import main
from lmrc.methods.base import IncrementalClassifier

SMALL = {"seeds": 1, "epochs": 1, "limit": 12, "device": "cpu", "quiet": True}


@pytest.fixture(scope="module", autouse=True)
def undrawn(undrawn):
    """Figures are tested with the reports."""


@pytest.fixture(scope="session")
def incremental(tmp_path_factory, without_drawing):
    """The folder of a run of three methods."""
    out = tmp_path_factory.mktemp("runs") / "incremental"
    with without_drawing():
        main("incremental", "digits", out, **SMALL, methods=["lmrc", "lm", "lwf-mt"])
    return out


@pytest.fixture(scope="session")
def ablation(tmp_path_factory, without_drawing):
    """The folder of a run of the ablation; fine-tuned heads need not be good."""
    out = tmp_path_factory.mktemp("runs") / "ablation"
    with without_drawing():
        main("ablation", "digits", out, **SMALL)
    return out


@pytest.fixture
def rows():
    """Return what reads the rows of all tables of a folder's page as lists of text."""

    def read(folder):
        html = (folder / "report.html").read_text(encoding="utf-8")
        found = []
        for row in re.findall(r"<tr>(.*?)</tr>", html, flags=re.DOTALL):
            cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, flags=re.DOTALL)
            found.append([re.sub("<[^>]+>", "", cell).strip() for cell in cells])
        return found

    return read


@pytest.fixture
def no_training(monkeypatch):
    """Let nothing be trained."""

    def refuse(*_, **__):
        raise AssertionError("something was trained")

    monkeypatch.setattr(IncrementalClassifier, "partial_fit", refuse)
    return monkeypatch
