import json
from dataclasses import replace

import pytest

from lmrc.report.records import (
    RECORDS,
    RunRecord,
    append_record,
    by_method_and_seed,
    read_description,
    read_records,
    write_description,
)


def write_all(folder, records):
    for record in records:
        append_record(folder, record)


def test_records_come_back_as_they_were(tmp_path, records):
    write_all(tmp_path, records)
    assert read_records(tmp_path) == records
    lines = (tmp_path / RECORDS).read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(records)
    assert json.loads(lines[0])["record"]["per_class"] == {"cat": 1.0}


def test_odd_line_separators_in_a_name_do_not_break_a_record(tmp_path, records):
    odd = RunRecord(**{**vars(records[0]), "method": "a\u2028b\x85c\n"})
    append_record(tmp_path, odd)
    assert read_records(tmp_path) == [odd]


def test_a_line_that_a_kill_cut_short_is_ignored(tmp_path, records):
    write_all(tmp_path, records[:2])
    path = tmp_path / RECORDS
    path.write_bytes(path.read_bytes()[:-20])
    assert read_records(tmp_path) == records[:1]


def test_groups_keep_the_order_of_methods_and_sort_by_task(records):
    runs = by_method_and_seed([*records[1:3], records[0], *records[3:]])
    assert list(runs) == ["steady", '<b>forgets & "falls"</b>']
    assert list(runs["steady"]) == [0, 1]
    assert [line.record.task for line in runs["steady"][0]] == [0, 1, 2]


def test_records_after_a_missing_one_are_ignored_and_of_two_the_later_counts(records):
    first, second, third, *_ = records
    assert by_method_and_seed([first, third]) == {"steady": {0: [first]}}
    assert by_method_and_seed([second, third]) == {}
    again = replace(third, threads=7)
    runs = by_method_and_seed([first, third, second, again])
    assert runs == {"steady": {0: [first, second, again]}}


def test_a_description_comes_back_and_a_damaged_one_is_named(tmp_path, description):
    write_description(tmp_path, description)
    assert read_description(tmp_path) == description
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    for damaged in ('{"x": 1}', '"x"', "[]"):
        (tmp_path / "run.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"run\.json does not describe a run"):
            read_description(tmp_path)


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        ("method", 7, "it.method must be of type str, got 7"),
        ("seed", True, "it.seed must be of type int, got True"),
        ("settings", [], r"it.settings must be of type dict, got \[\]"),
        ("record.accuracy", None, "it.record.accuracy must be of type float, got None"),
        ("record.task_confusion", [[0.5]], r"it.record.task_confusion\[0\]\[0\] must be of type i"),
        ("record.shares", 1, "it.record has the unknown field 'shares'"),
    ],
)
def test_a_malformed_record_is_named_by_line_and_field(tmp_path, records, place, value, told):
    write_all(tmp_path, records[:1])
    whole = json.loads(records[1].to_json())
    *above, last = place.split(".")
    (whole[above[0]] if above else whole)[last] = value
    for line, why in ((json.dumps(whole), told), ("{", "Expecting"), ("[" * 10**5, "maximum rec")):
        (tmp_path / RECORDS).write_text(f"{records[0].to_json()}\n{line}\n")
        with pytest.raises(ValueError, match=rf"records\.jsonl, line 2 is not a record \({why}"):
            read_records(tmp_path)
