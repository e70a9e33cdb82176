"""Untrusted text is escaped and shortened."""

import json

import pytest

from lmrc.text import brief, csv_cell, escape, shorten

HARMFUL = "\x00\x07\x1b\n\r\t\x7f\x9b\u061c\u200b\u200e\u2028\u202e\u2066\ufeff\udcff\U000e0041"


@pytest.mark.parametrize("character", HARMFUL)
def test_control_characters_are_escaped(character):
    text = escape(f"cat{character}dog")
    assert text.isprintable()
    assert json.loads(f'"{text}"') == f"cat{character}dog"


@pytest.mark.parametrize(
    "text", ["café", "\u732b", "نمی\u200cخواهم", "👩\u200d🔬", "$5 %", "a\u00a0b"]
)
def test_names_in_any_language_are_unchanged(text):
    assert escape(text) == text


@pytest.mark.parametrize(
    "value", ["x" * 10**6, b"\x1b" * 10**6, {"\x1b" * 500: 1}, [[[[0] * 99] * 99] * 99]]
)
def test_values_in_messages_are_short(value):
    assert len(brief(value)) <= 200
    assert brief(value).isprintable()


def test_a_long_message_loses_its_middle():
    assert shorten("a" * 2000 + "z") == "a" * 499 + " … " + "a" * 497 + "z"


@pytest.mark.parametrize("formula", ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1"])
def test_formulas_in_cells_are_escaped(formula):
    assert csv_cell(formula).startswith("'")
    assert csv_cell(-1.5) == -1.5
