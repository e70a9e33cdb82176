import io
import sys

import pytest

from lmrc.report.live import show


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
        with show(methods, batches=3, total=len(records), quiet=quiet) as progress:
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
    assert lines[1] == "[2/12] steady, seed 0, class batch 2 of 3: 87.5 % of 2 classes, 1.5 s"
    assert len(lines) == 12


def test_quiet_shows_nothing(watch):
    assert watch(Terminal(), quiet=True) == ("", False)
