import io
import re
import sys
from collections import Counter
from dataclasses import replace

import pytest

from lmrc.report.live import Countdown, show


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def watch(monkeypatch, records):
    """Show the records on a stream; return what stands there and whether it is a table."""

    def run(stream, quiet=False):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "80")
        to_run = Counter(line.method for line in records)
        with show(to_run, tasks=3, quiet=quiet) as progress:
            for n in range(len(records)):
                progress.update(records[: n + 1])
        return stream.getvalue(), progress.shows_table

    return run


def test_a_terminal_shows_a_table_that_fills(watch):
    text, shows_table = watch(Terminal())
    assert shows_table
    begin, end = text[: len(text) // 4], text[-len(text) // 6 :]
    assert "·" in begin
    assert "·" not in end
    assert "89.6 ± 2.9" in end
    assert "over 2 seeds" in end


def test_elsewhere_it_is_one_line_per_record(watch):
    text, shows_table = watch(io.StringIO())
    assert not shows_table
    lines = text.splitlines()
    assert lines[1] == "[2/12] steady, seed 0, task 2 of 3: 87.5 % of 2 classes, 1.5 s"
    assert re.search(r" 1\.5 s, about \d+ s left$", lines[-2])
    assert "left" not in lines[-1]
    assert len(lines) == 12


def test_what_was_there_before_says_nothing_about_the_time(monkeypatch, capsys):
    clock = iter([0.0, 10.0])
    monkeypatch.setattr("lmrc.report.live.perf_counter", lambda: next(clock))
    Countdown(total=10, done=4).tell("one of six in ten seconds")
    assert capsys.readouterr().err == "[5/10] one of six in ten seconds, about 50 s left\n"


def test_the_time_left_is_estimated_by_method(monkeypatch, records):
    """No method has an estimate from the speed of another."""
    clock = iter([0.0, 14.0, 48.0])
    monkeypatch.setattr("lmrc.report.live.perf_counter", lambda: next(clock))
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    line = records[0]
    slow = replace(line, method="slow", record=replace(line.record, train_seconds=9.5))
    before, steps = [slow] * 5, [line, line, slow, slow]
    with show({"steady": 3, "slow": 3}, tasks=3, done=5) as progress:
        for n in range(1, 5):
            progress.update([*before, *steps[:n]])
    ends = [text.partition(" 9.5 s")[2] for text in stream.getvalue().splitlines()]
    assert ends == ["", "", ", about 22 s left", ", about 24 s left"]


def test_quiet_shows_nothing(watch):
    assert watch(Terminal(), quiet=True) == ("", False)
