import io
import re
import sys

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
        methods = list(dict.fromkeys(line.method for line in records))
        with show(methods, tasks=3, total=len(records), quiet=quiet) as progress:
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
    begin = "[2/12] steady, seed 0, task 2 of 3: 87.5 % of 2 classes, 1.5 s"
    assert re.fullmatch(re.escape(begin) + r", about \d+ s left", lines[1])
    assert "left" not in lines[-1]
    assert len(lines) == 12


def test_what_was_there_before_says_nothing_about_the_time(monkeypatch, capsys):
    clock = iter([0.0, 10.0])
    monkeypatch.setattr("lmrc.report.live.perf_counter", lambda: next(clock))
    Countdown(total=10, done=4).tell("one of six in ten seconds")
    assert capsys.readouterr().err == "[5/10] one of six in ten seconds, about 50 s left\n"


def test_quiet_shows_nothing(watch):
    assert watch(Terminal(), quiet=True) == ("", False)
