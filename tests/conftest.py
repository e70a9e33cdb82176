import sys

import pytest

from lmrc import cli


@pytest.fixture
def call(monkeypatch, capsys):
    """Call the command as a shell would; return exit code, output and errors."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["lmrc", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return end.value.code or 0, said.out, said.err

    return run
