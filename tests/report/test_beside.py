"""The page of a single method has something to compare it with."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lmrc.report.page import read_contents, render
from lmrc.report.records import append_record, write_description


@pytest.fixture
def folder(tmp_path, description):
    """Write records to a folder, and return it."""

    def write(name, records, **recipe):
        place = tmp_path / name
        place.mkdir()
        for record in records:
            append_record(place, record)
        recipe = {"dataset": "pets", **recipe}
        new = replace(description, experiment="incremental", commands=[], recipe=recipe)
        write_description(place, new)
        return place

    return write


def renamed(records, method, title):
    return [replace(r, method=title) for r in records if r.method == method]


def test_a_single_method_is_beside_those_of_the_same_stream(folder, records):
    mine = renamed(records, "steady", "LMRC+")
    lost = [r for r in records if r.method != "steady"]
    joint = [replace(r, method="Joint") for r in lost]
    page = folder("mine", mine)
    folder("other-data", [*mine, *lost], dataset="plants")
    shuffled = [replace(r, record=replace(r.record, classes=["x"])) for r in mine + lost]
    folder("other-order", shuffled)
    folder("unfinished", [r for r in records if r.record.task < 2])
    (folder("damaged", mine) / "records.jsonl").write_text("no record\n")
    folder("fewer", mine)
    more = [replace(r, method="LwF.MT") for r in lost]
    folder("one-seed", [r for r in [*mine, *lost, *joint, *more] if r.seed == 0])
    folder("shorter", [*mine, *lost, *joint, *more], settings={"epochs": 5})
    folder("smaller", [*mine, *lost, *joint, *more], settings={"backbone": "mlp"})
    folder("mixed", [*mine, *lost, *joint, *more], blurry=0.1)
    folder("theirs", [*mine, *(replace(r, method="LMRC") for r in lost), *joint])
    _, contents = read_contents(page)
    # Their settings may differ, so the headline does without them.
    assert contents.headline == "LMRC+: 89.6 % average incremental accuracy; chance: 61.1 %."
    _, section, *_ = contents.sections
    assert "the folder theirs beside this one: same classes, tasks, seeds" in section.body
    assert section.body.count("<tr>") == 1 + 5  # with chance


def test_without_such_a_folder_it_is_beside_chance(folder, records):
    mine = [r for r in records if r.method == "steady"]
    _, contents = read_contents(folder("mine", mine))
    assert contents.headline.endswith("; chance: 61.1 %.")  # of 1, 1/2 and 1/3


@pytest.mark.parametrize("closed", ["is_file", "iterdir"])
def test_folders_that_may_not_be_read_are_passed_over(folder, records, monkeypatch, closed):
    """As those of others in /tmp; tests may run as root, who may read everything."""
    page = folder("mine", [r for r in records if r.method == "steady"])
    (page.parent / "closed").mkdir()
    usual = getattr(Path, closed)

    def refused(path):
        if path in (page.parent, page.parent / "closed" / "records.jsonl"):
            raise PermissionError(13, "Permission denied", path)
        return usual(path)

    monkeypatch.setattr(Path, closed, refused)
    assert "; chance: " in read_contents(page)[1].headline


def test_several_methods_need_none(folder, records, description):
    page = folder("mine", records)
    folder("theirs", records)
    _, contents = read_contents(page)
    assert "theirs" not in json.dumps(contents.headline)
    assert "In comparison" not in render(description, records)
