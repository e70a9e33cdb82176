"""Text from outside, as it is shown."""

import json

import pytest

from lmrc.outside import brief, csv_cell, cut, shown

HARMFUL = "\x00\x07\x1b\n\r\t\x7f\x9b\u061c\u200b\u200e\u2028\u202e\u2066\ufeff\udcff\U000e0041"


@pytest.mark.parametrize("character", HARMFUL)
def test_what_controls_a_terminal_is_shown_as_its_escape(character):
    text = shown(f"cat{character}dog")
    assert text.isprintable()
    assert json.loads(f'"{text}"') == f"cat{character}dog"


@pytest.mark.parametrize(
    "text", ["café", "\u732b", "نمی\u200cخواهم", "👩\u200d🔬", "$5 %", "a\u00a0b"]
)
def test_names_in_any_language_stay_as_they_are(text):
    assert shown(text) == text


@pytest.mark.parametrize(
    "value", ["x" * 10**6, b"\x1b" * 10**6, {"\x1b" * 500: 1}, [[[[0] * 99] * 99] * 99]]
)
def test_a_value_in_a_message_is_short_whatever_it_is(value):
    assert len(brief(value)) <= 200
    assert brief(value).isprintable()


def test_a_message_keeps_its_beginning_and_its_end():
    assert cut("a" * 2000 + "z") == "a" * 499 + " … " + "a" * 497 + "z"


@pytest.mark.parametrize("formula", ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1"])
def test_a_cell_is_no_formula(formula):
    assert csv_cell(formula).startswith("'")
    assert csv_cell(-1.5) == -1.5
