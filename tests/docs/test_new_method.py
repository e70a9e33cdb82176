"""The page about one's own method: its code is run as it stands."""

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from lmrc.methods.catalog import find_method
from lmrc.report.records import read_records

PAGE = Path(__file__).parents[2] / "docs" / "new-method.md"
SMALL = ["--epochs", "1", "--limit", "12", "--seeds", "1", "--quiet"]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The researcher's folder, the current one: the first block in the file that the page names."""
    name = re.search(r"into a file `(\w+\.py)`", " ".join(PAGE.read_text("utf-8").split()))[1]
    (tmp_path / name).write_text(blocks("python")[0], "utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop(name.removesuffix(".py"), None)


def test_method_passes_the_checks(folder, monkeypatch):
    _, check, _ = blocks("python")
    monkeypatch.syspath_prepend(folder)
    exec(check, {"__name__": "__main__"})


def test_evaluation_in_python_prints_a_summary(folder, monkeypatch, capsys):
    code = blocks("python")[2].replace("epochs=12", "epochs=1")
    monkeypatch.syspath_prepend(folder)
    exec(code, {"__name__": "__main__"})
    assert "'tasks': 5" in capsys.readouterr().out


def test_command_puts_the_method_into_the_records(folder, run_job):
    (command,) = blocks("sh")
    program, *words = shlex.split(command)
    assert program == "lmrc"
    # In another process, where only the command itself puts the current folder on the path.
    done = run_job(*words, *SMALL, needs=["lmrc.experiments.reproduce"])
    assert done["code"] == 0, done["said"]
    out = folder / words[words.index("--out") + 1]
    records = read_records(out)
    methods = {record.method for record in records}
    assert methods == {"LMRC", "Fine-tuning", "nearest_mean.NearestMeanClassifier"}
    own = [record for record in records if record.method.startswith("nearest_mean")]
    assert [line.record.task for line in own] == [0, 1, 2, 3, 4]
    assert own[0].settings["feature_weight"] == 10.0
    assert "nearest_mean.NearestMeanClassifier" in (out / "report.html").read_text("utf-8")


def test_entry_point_names_the_class(folder, monkeypatch):
    (toml,) = blocks("toml")
    announced = tomllib.loads(toml)["project"]["entry-points"]["lmrc.methods"]
    ((name, value),) = announced.items()
    info = folder / "site" / "nearest_mean-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nearest-mean\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lmrc.methods]\n{name} = {value}\n")
    assert f"--methods lmrc {name}`" in PAGE.read_text("utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.syspath_prepend(folder / "site")
    method = find_method(name)
    assert (method.title, method.cls.__name__) == (name, "NearestMeanClassifier")
