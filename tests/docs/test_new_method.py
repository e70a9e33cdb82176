"""The page about one's own method: its code is run as it stands."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lmrc.report.records import read_records

PAGE = Path(__file__).parents[2] / "docs" / "new-method.md"
SMALL = ["--epochs", "1", "--limit", "20", "--seeds", "1", "--quiet"]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


def run(words, folder):
    # Without the test's own search path: the page says that the current folder is enough.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def folder(tmp_path):
    """The researcher's folder: the first block in the file that the page names."""
    name = re.search(r"into a file `(\w+\.py)`", " ".join(PAGE.read_text("utf-8").split()))[1]
    (tmp_path / name).write_text(blocks("python")[0], "utf-8")
    return tmp_path


def test_method_passes_the_checks(folder):
    _, check = blocks("python")
    (folder / "check.py").write_text(check, "utf-8")
    run([sys.executable, "check.py"], folder)


def test_command_puts_the_method_into_the_records(folder):
    (command,) = blocks("sh")
    program, *words = shlex.split(command)
    assert program == "lmrc"
    # As the installed command does it: python -m would put the current folder on the path.
    call = [sys.executable, "-P", "-c", "from lmrc.cli import main; main()", *words, *SMALL]
    run(call, folder)
    out = folder / words[words.index("--out") + 1]
    records = read_records(out)
    methods = {record.method for record in records}
    assert methods == {"LMRC", "Fine-tuning", "nearest_mean.NearestMeanClassifier"}
    own = [record for record in records if record.method.startswith("nearest_mean")]
    assert [line.record.task for line in own] == [0, 1, 2, 3, 4]
    assert own[0].settings["feature_weight"] == 10.0
    assert "nearest_mean.NearestMeanClassifier" in (out / "report.html").read_text("utf-8")


def test_entry_point_names_the_class(folder):
    (toml,) = blocks("toml")
    announced = tomllib.loads(toml)["project"]["entry-points"]["lmrc.methods"]
    ((name, value),) = announced.items()
    info = folder / "site" / "nearest_mean-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nearest-mean\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lmrc.methods]\n{name} = {value}\n")
    ask = (
        "import sys; sys.path.append('site');"
        "from lmrc.methods.catalog import find_method;"
        f"method = find_method({name!r}); print(method.title, method.cls.__name__)"
    )
    assert f"--methods lmrc,{name}`" in PAGE.read_text("utf-8")
    done = run([sys.executable, "-c", ask], folder)
    assert done.stdout.split() == [name, "NearestMeanClassifier"]
