import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lmrc
from lmrc import cli

HEAVY = ("torch", "numpy", "sklearn", "matplotlib", "scipy")


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


@pytest.fixture
def demo_fails(monkeypatch):
    """Return a function that lets the demo raise."""

    def let_fail(error):
        def failing(*_, **__):
            raise error

        monkeypatch.setattr("lmrc.experiments.demo.main", failing)

    return let_fail


@pytest.mark.parametrize("words", [["--help"], ["demo", "--help"]])
def test_every_command_has_help_with_an_example(words):
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 0
    assert "Example: lmrc demo" in result.output


def test_version(call):
    assert call("--version") == (0, f"lmrc {lmrc.__version__}\n", "")


def test_nothing_asked_shows_help(call):
    code, out, _ = call()
    assert code == 2
    assert "Usage: lmrc" in out


@pytest.mark.parametrize("code", ["import lmrc.cli", "import lmrc.cli; lmrc.cli.main()"])
def test_help_loads_nothing_heavy(code):
    script = (
        "import sys, atexit; sys.argv = ['lmrc', '--help'];"
        f"atexit.register(lambda: print([m for m in {HEAVY} if m in sys.modules])); {code}"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_python_m_lmrc():
    done = subprocess.run(
        [sys.executable, "-m", "lmrc", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"lmrc {lmrc.__version__}\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["demo", "--seeds", "0"], "--seeds"),
        (["demo", "--epochs", "many"], "many"),
        (["demo", "--nonsense"], "--nonsense"),
        (["dmeo"], "dmeo"),
        (["demo", "--out", __file__], Path(__file__).name),
    ],
)
def test_wrong_use_is_one_line_and_code_2(call, words, told):
    code, out, err = call(*words)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("lmrc: ")
    assert told in err
    assert "--help" in err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("so\nand so"), "lmrc: so and so\n"),
        (FileExistsError("runs/x is taken"), "lmrc: runs/x is taken\n"),
        (RuntimeError(), "lmrc: RuntimeError\n"),
        (KeyError("a"), "lmrc: KeyError: 'a' (lmrc --debug … shows where)\n"),
    ],
)
def test_failed_work_is_one_line_and_code_1(call, demo_fails, error, line):
    demo_fails(error)
    assert call("demo") == (1, "", line)


def test_debug_shows_the_traceback(monkeypatch, demo_fails):
    demo_fails(ValueError("so"))
    monkeypatch.setattr(sys, "argv", ["lmrc", "--debug", "demo"])
    with pytest.raises(ValueError, match="so"):
        cli.main()


def test_ctrl_c_is_one_line_and_code_130(call, demo_fails):
    demo_fails(KeyboardInterrupt())
    assert call("demo") == (130, "", "lmrc: interrupted\n")


def test_demo_passes_on_what_was_asked(monkeypatch, call):
    asked = {}
    monkeypatch.setattr(
        "lmrc.experiments.demo.main", lambda out, **rest: asked.update(out=out, **rest)
    )
    assert call("demo", "--out", "here", "--seeds", "3", "--quiet")[0] == 0
    assert asked == {"out": Path("here"), "seeds": 3, "epochs": 12, "quiet": True}


def test_demo_without_a_terminal_prints_plain_lines(call, tmp_path):
    code, out, err = call("demo", "--epochs", "1", "--out", str(tmp_path / "demo"))
    assert code == 0
    assert "| fine-tuning |" in out
    assert str(tmp_path / "demo" / "report.html") in out
    assert "\x1b" not in out + err
    assert len(err.splitlines()) == 20
