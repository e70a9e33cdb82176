"""Malformed and forged records and descriptions are refused."""

import json
import os
from dataclasses import replace

import pytest

from lmrc.report.records import (
    RECORDS,
    append_record,
    read_description,
    read_records,
    write_description,
)


def write_all(folder, records):
    for record in records:
        append_record(folder, record)


DEEP = "[" * 100_000


def forged(record, path, value):
    """Return a record as JSON with another value at a dotted path."""
    whole = json.loads(record.to_json())
    *parents, last = path.split(".")
    place = whole
    for key in parents:
        place = place.setdefault(key, {})
    place[last] = value
    return json.dumps(whole).encode()


@pytest.mark.parametrize(
    "line", ["{", "{}", "[]", '{"method": "a", "record": {"task": 0}}', "\xff", "ragged"]
)
def test_a_damaged_line_is_named(tmp_path, records, line):
    write_all(tmp_path, records[:1])
    if line == "ragged":
        line = records[1].to_json().replace('"task_confusion": [[', '"task_confusion": [[1, ')
    with (tmp_path / RECORDS).open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    with pytest.raises(ValueError, match=r"records\.jsonl, line 2 is not a record"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("method", 7, "it.method must be text of 1000 letters at most, got 7"),
        ("method", "a" * 10**5, r"it.method must be text of .*, got 'a{20,30}\.\.\.a{20,30}'"),
        ("seed", True, "it.seed must be a whole number"),
        ("threads", "1", "it.threads must be a whole number"),
        ("versions", ["x"], "it.versions must be an object"),
        ("settings.classifier", [], "it.settings.classifier must be text"),
        ("settings.deep", [[[[[[[[1]]]]]]]], "it.settings.deep holds too many values, or too deep"),
        ("record.accuracy", 1.5, "it.record.accuracy must be a number from 0 to 1, got 1.5"),
        ("record.accuracy", None, "it.record.accuracy must be a number from 0 to 1, got None"),
        ("record.train_seconds", float("nan"), "NaN is no number"),
        ("record.test_seconds", -1, "it.record.test_seconds must be a number from 0"),
        ("record.task", 10**30, "it.record.task must be a whole number from 0 to 999"),
        ("record.task", 3, "its task is 3, but its task_confusion is of 3"),
        ("record.task", 1, "its task_accuracies are not 2"),
        ("record.n_classes_seen", 0, "it.record.n_classes_seen must be a whole number from 1"),
        ("record.classes", [["cat"]], r"it.record.classes\[0\] must be text or a whole number"),
        ("record.per_class", {"cat": "1"}, "it.record.per_class.cat must be a number"),
        ("record.task_confusion", [[4]] * 3, "it.record.task_confusion is not square"),
        ("record.task_confusion", [[0.5]], r"it.record.task_confusion\[0\]\[0\] must be a whole"),
        ("record.shares", 1, "it.record has the unknown field shares"),
        ("extra.class_names", [], "its class_names are not as many as its classes"),
        ("extra.stored_bytes", {"images": 1}, "it.extra.stored_bytes has no statistics"),
        ("extra.prediction_rules", {"wta": {}}, "it.extra.prediction_rules.wta has no accuracy"),
        ("extra.outputs", {"kind": "x"}, "it.extra.outputs has no classes"),
    ],
)
def test_a_forged_record_is_refused_in_one_short_line(tmp_path, records, path, value, told):
    (tmp_path / RECORDS).write_bytes(forged(records[0], path, value) + b"\n")
    with pytest.raises(ValueError, match=rf"line 1 is not a record \({told}") as raised:
        read_records(tmp_path)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("line", [DEEP, "9" * 10_000, '{"a": ' + "[]," * 3_000_000])
def test_a_line_that_is_too_long_or_too_deep_is_refused(tmp_path, line):
    (tmp_path / RECORDS).write_text(line + "\n")
    with pytest.raises(ValueError, match=r"line 1 is not a record \(.{,200}\); remove the line"):
        read_records(tmp_path)


def test_records_that_do_not_go_together_are_refused(tmp_path, records):
    other = replace(records[1], record=replace(records[1].record, task_confusion=[[1, 0], [0, 1]]))
    write_all(tmp_path, [records[0], other])
    with pytest.raises(ValueError, match="task_confusion of 'steady' is of several sizes"):
        read_records(tmp_path)
    (tmp_path / RECORDS).unlink()
    write_all(tmp_path, [replace(records[0], method=f"m{i}") for i in range(65)])
    with pytest.raises(ValueError, match="they are of 65 methods, and 64 at most are shown"):
        read_records(tmp_path)


def test_a_pipe_in_place_of_records_is_refused(tmp_path):
    os.mkfifo(tmp_path / RECORDS)
    with pytest.raises(ValueError, match=r"records\.jsonl is not a file"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("title", 7, "it.title must be text"),
        ("commands", [{}], r"it.commands\[0\] has no words"),
        (
            "commands",
            [{"words": "x", "methods": ["lm"], "seeds": 10**9}],
            ".*seeds must be a whole",
        ),
        ("commands", [{"words": "x", "methods": ["lm"], "seeds": 9999}] * 2, "it asks for 1 meth"),
        ("command", "x", "it has the unknown field command"),
        ("recipe", {"metric": "top6"}, "it.recipe.metric must be one of accuracy, top5"),
        ("recipe", {"dims": 3}, "it.recipe.dims must be a list"),
        ("recipe", {"thresholds": 0.5}, "it.recipe.thresholds must be a list"),
        ("recipe", {"methods": "lmrc"}, "it.recipe.methods must be a list"),
        ("recipe", {"variants": {"x": {}}}, "it.recipe.variants.x has no title"),
        ("recipe", {"rows": [{"name": "a", "method": "b"}] * 2}, "the names of its rows are not"),
        ("paper", {"LMRC": 50.3}, "it.paper.LMRC must be a number from 0 to 1"),
        ("findings", "abc", "it.findings must be a list"),
        ("__class__", 1, "it has the unknown field __class__"),
    ],
)
def test_a_forged_description_is_refused_in_one_short_line(
    tmp_path, description, field, value, told
):
    write_description(tmp_path, description)
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), field: value}))
    with pytest.raises(ValueError, match=rf"does not describe a run \({told}") as raised:
        read_description(tmp_path)
    assert len(str(raised.value)) < 500
