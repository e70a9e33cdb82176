"""The tutorial: its commands are run as they stand, on the images that it makes."""

import re
import shlex
from pathlib import Path

import pytest

from lmrc.statistics.ridge import projection

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text("utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def without_numbers(text):
    """And without units of bytes: the network here is a smaller one."""
    return re.sub(r" +", " ", re.sub(r"\d[\d,.]*( kB| MB)?", "#", text))


def is_progress(line):
    return re.fullmatch(r"image \d+ of \d+, about .* left", line)


@pytest.mark.usefixtures("small_inputs", "small_pretrained", "undrawn", "onnx_operators")
def test_a_newcomer_gets_from_two_folders_to_an_onnx_file(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    (images,) = blocks("python")
    exec(images, {"__name__": "__main__"})
    said = ""
    commands = "".join(blocks("sh")).splitlines()
    assert len(commands) == 10
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "lmrc"
        projection.cache_clear()  # as each command is a process of its own
        code, out, err = call(*words)
        assert code == 0, command
        assert all(map(is_progress, err.splitlines())), (command, err)
        said += out
    assert (tmp_path / "flowers.onnx").exists()
    assert (tmp_path / "runs" / "evaluate-flowers" / "report.html").exists()
    # What the page shows is what is said, numbers aside.
    _, *shown = blocks("text")
    for line in "".join(shown).splitlines():
        assert without_numbers(line) in without_numbers(said), line


def test_commands_in_the_text_exist(call):
    named = set(re.findall(r"`lmrc ([a-z]+)", PAGE)) | set(re.findall(r"\| lmrc ([a-z]+)", PAGE))
    assert {"learn", "rollback", "predict"} <= named
    for command in named:
        assert call(command, "--help")[0] == 0
    learn_help = call("learn", "--help")[1]
    for option in re.findall(r"`(--[a-z-]+)", PAGE.partition("## When it is not")[2]):
        assert option in learn_help or option in call("--help")[1] or option in ("--help",)
