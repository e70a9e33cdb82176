"""The programs of the documentation, `python benchmarks/…`, take the arguments that it gives them.

Most need a GPU, data or minutes, as the table of benchmarks/README.md says; those that do not are
run on few inputs.
"""

import argparse
import re
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "benchmarks/README.md", ROOT / "results/README.md"]
PAGES += [ROOT / "results/provenance.md", ROOT / "results/search/README.md"]
PAGES += [*(ROOT / "docs").rglob("*.md")]
PROGRAM = re.compile(r"\bpython ((?:benchmarks|results)/\w[\w/]*\.py[^`#\n;]*)")


def programs_of(page):
    """Return the commands of a page, in fences and in sentences."""
    text = page.read_text("utf-8")
    if "git checkout" in text:  # programs of earlier commits
        text = re.sub(r"^```\ngit checkout.*?^```$", "", text, flags=re.M | re.S)
    fences = re.findall(r"^```.*?^```$", text, re.M | re.S)
    for fence in fences:
        text = text.replace(fence, "")
    code = "\n".join(fences).replace("\\\n", " ")
    inline = "\n".join(" ".join(found.split()) for found in re.findall(r"`[^`]+`", text))
    return [command.strip() for command in PROGRAM.findall(f"{code}\n{inline}")]


COMMANDS = sorted({command for page in PAGES for command in programs_of(page)})


class ParsedError(Exception):
    """The arguments were taken."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_program_takes_its_arguments(command, monkeypatch):
    path, *words = shlex.split(command)
    assert (ROOT / path).is_file()
    if "parse" not in (ROOT / path).read_text("utf-8"):
        pytest.skip("takes words as they are")
    parse = argparse.ArgumentParser.parse_args

    def parse_only(self, *given):
        parse(self, *given)  # ends the program if it does not take them
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    monkeypatch.setattr(sys, "argv", [path, *words])
    monkeypatch.syspath_prepend((ROOT / path).parent)  # as Python does it
    with pytest.raises(ParsedError):
        runpy.run_path(str(ROOT / path), run_name="__main__")


def test_programs_are_found():
    known = {
        "benchmarks/decoding.py tiny-imagenet-200/train",
        "benchmarks/serve.py --seconds 3 --rounds 2",
    }
    assert known < {*COMMANDS}
    assert len(COMMANDS) > 25


def test_the_page_of_benchmarks_says_what_each_needs():
    table = (ROOT / "benchmarks/README.md").read_text("utf-8").partition("\n## ")[0]
    for path in (ROOT / "benchmarks").glob("*.py"):
        assert f"`{path.name}`" in table


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    place, rng = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for name, colour in {"cat": (200, 60, 40), "dog": (40, 60, 200), "owl": (9, 200, 9)}.items():
        (place / name).mkdir()
        for i in range(6):
            pixels = (rng.integers(-40, 40, (72, 72, 3)) + np.array(colour)).clip(0, 255)
            Image.fromarray(pixels.astype("uint8")).save(place / name / f"{i}.png")
    return place


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("decoding.py {photographs}", r"one process +\d"),
        ("learn.py --features --tasks 1 --classes 2 --each 10", r"1 +20 +\d"),
        ("check.py {photographs} --seeds 1", r'"renamed_told": \d'),
    ],
)
def test_a_cheap_program_runs(command, said, photographs, run_jobs):
    name, *words = command.format(photographs=photographs).split()
    program = str(ROOT / "benchmarks" / name)
    (done,) = run_jobs({"program": program, "arguments": words, "place": str(ROOT)})
    assert done["code"] == 0, done["said"]
    assert re.search(said, done["said"])
