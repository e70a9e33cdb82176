"""Sections that the pages of all experiments share."""

from dataclasses import replace

import pytest

from lmrc.report.page import render

pytestmark = pytest.mark.usefixtures("undrawn")


def test_costs(description, steady, records, rows_of):
    rows = rows_of(render(description, steady))
    assert rows["steady"][3] == ["4.50", "0.50", "4.00", "2.00"]
    older = rows_of(render(description, records))  # without stored bytes
    assert older["steady"][2] == ["4.50", "0.50"]
    mixed = [*steady, *(r for r in records if r.method != "steady")]
    assert rows_of(render(description, mixed))["&lt;b&gt;forgets &amp; &#34;falls&#34;&lt;/b&gt;"][
        2
    ] == ["4.50", "0.50", "–", "–"]


def test_many_classes_are_collapsed(description, records):
    classes = [f"c{i}" for i in range(30)]
    many = [
        replace(
            line,
            record=replace(line.record, classes=classes, per_class=dict.fromkeys(classes, 0.5)),
        )
        for line in records
    ]
    assert "<summary>All 30 classes</summary>" in render(description, many)


def test_names_of_classes_have_room_and_numbers_need_none(description, records):
    def of_numbers(line):
        shares = {str(i): share for i, share in enumerate(line.record.per_class.values())}
        record = replace(line.record, classes=[line.record.task], per_class=shares)
        return replace(line, record=record)

    assert 'class="classes named' in render(description, records)
    assert 'class="classes named' not in render(description, list(map(of_numbers, records)))


def with_class_names(records):
    names = {"cat": "house_cat, Felis catus", "dog": "dog, Canis", "<i>emu": "emu, <Dromaius>"}
    return [
        replace(r, extra={"class_names": [names[label] for label in r.record.classes]})
        for r in records
    ]


def test_classes_are_shown_by_their_names(description, records, cells_of):
    html = render(description, with_class_names(records))
    assert cells_of(html, "house cat")[1:] == cells_of(render(description, records), "cat")[1:]
    assert cells_of(html, "emu")


def test_two_classes_never_share_a_name(description, records, cells_of):
    alike = [
        replace(r, extra={"class_names": [f"crane, {label}" for label in r.record.classes]})
        for r in records
    ]
    assert cells_of(render(description, alike), "crane, dog")
