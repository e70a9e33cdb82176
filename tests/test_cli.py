import json
import os
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lmrc
from lmrc import cli

HEAVY = ("torch", "numpy", "sklearn", "matplotlib", "scipy")


@pytest.fixture
def demo_fails(monkeypatch):
    """Return a function that makes the demo raise an error."""

    def let_fail(error):
        def failing(*_, **__):
            raise error

        monkeypatch.setattr("lmrc.experiments.demo.main", failing)

    return let_fail


PRACTICE = ("learn", "predict", "evaluate", "info", "log", "rollback", "forget", "export")


@pytest.mark.parametrize(
    "words", [[], ["demo"], ["reproduce"], ["report"], *([c] for c in PRACTICE)]
)
def test_every_command_has_help_with_an_example(words):
    result = CliRunner().invoke(cli.app, [*words, "--help"])
    assert result.exit_code == 0
    assert f"Example: lmrc {' '.join(words) or 'learn'}" in result.output
    own = result.output.replace("--help", "").splitlines()
    requested = [line for line in own if "<bool>" in line and "-completion" not in line]
    # That of --help is typer's; an option without a value has none.
    assert len(requested) <= 1, requested


def test_version(call):
    assert call("--version") == (0, f"lmrc {lmrc.__version__}\n", "")


def test_no_command_shows_help(call):
    code, out, _ = call()
    assert code == 2
    assert "Usage: lmrc" in out


COMPLETE = {"_LMRC_COMPLETE": "complete_bash", "COMP_WORDS": "lmrc pred", "COMP_CWORD": "1"}


@pytest.mark.parametrize(
    ("words", "environment"),
    [(["--help"], {}), (["learn", "--help"], {}), (["--version"], {}), ([], COMPLETE)],
)
def test_help_and_completion_import_nothing_heavy(words, environment):
    script = (
        "import sys, atexit; from lmrc.cli import main; sys.argv[0] = 'lmrc';"
        f"atexit.register(lambda: print([m for m in {HEAVY} if m in sys.modules])); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_closed_streams_are_no_error():
    call = shlex.join([sys.executable, "-m", "lmrc", "--version"])
    both = f"{call} >&- && {call} 2>&-"
    done = subprocess.run(["sh", "-c", both], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"lmrc {lmrc.__version__}\n"


def test_shells_complete_commands():
    call = [sys.executable, "-c", "from lmrc.cli import main; main()"]
    done = subprocess.run(call, env=os.environ | COMPLETE, capture_output=True, text=True)
    assert done.stdout.split() == ["predict"]


def test_a_closed_pipe_is_no_error():
    read, write = os.pipe()
    os.close(read)
    call = [sys.executable, "-m", "lmrc", "--help"]
    done = subprocess.run(call, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_warnings_are_one_line(call, monkeypatch):
    def warning(*_, **__):
        warnings.warn("so\nand so", UserWarning, stacklevel=1)

    monkeypatch.setattr("lmrc.experiments.demo.main", warning)
    with warnings.catch_warnings(action="default"):
        assert call("demo") == (0, "", "lmrc: warning: so and so\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["demo", "--seeds", "0"], "--seeds"),
        (["demo", "--epochs", "many"], "many"),
        (["demo", "--nonsense"], "--nonsense"),
        (["dmeo"], "dmeo"),
        (["demo", "--out", __file__], Path(__file__).name),
        (["reproduce", "fig3"], "'EXPERIMENT': 'fig3' is not one of 'softmax-suppression', 'inc"),
        (["reproduce", "heads", "--order", "upwards"], "'upwards' is none of natural, per-seed"),
        (["reproduce", "rehearsal", "--memory", "20,many"], "'many' is no whole number"),
        (["reproduce", "capacity", "--epochs", "3"], "--epochs makes no sense for capacity"),
        (["reproduce", "capacity", "--dataset", "mnist"], "counts label vectors"),
        (
            ["reproduce", "incremental", "--memory", "20"],
            "it is exemplar-free; use rehearsal",
        ),
        (["reproduce", "softmax-suppression", "--tasks", "3"], "two tasks"),
        (["reproduce", "consolidation", "--methods", "ewc"], "it compares LMRC with LM"),
        (["reproduce", "rehearsal", "--from", "."], "only consolidation and heads"),
        (["reproduce", "heads", "--validate", "10"], "--validate 10 is no share between 0 and 1"),
        (["reproduce", "heads", "--set", "lambda"], "'lambda' is not NAME=VALUE"),
        (["reproduce", "heads", "--set", "epochs=3"], "use --epochs"),
        (["reproduce", "heads", "--set", "penalty_weight=3"], "none of lmrc, lwf-mt, lm takes"),
        (["reproduce", "heads", "--methods", "lm", "--set", "response_weight=3"], "none of lm "),
        (
            ["reproduce", "heads", "--methods", "lmrc+", "--set", "exemplar_repeat=3"],
            "did you mean exemplar_repeats?",
        ),
        (["reproduce", "rehearsal", "--methods", "lm,joint"], "memory_per_class=2 has no use here"),
        (
            [
                *["reproduce", "heads", "--methods", "lmrc+"],
                *["--set", "statistics=none", "--set", "predict_with=lda"],
            ],
            "statistics='none' keeps none",
        ),
        (["reproduce", "heads", "--backbone", "vgg"], "'vgg' is not known: use one of auto, id"),
        (["reproduce", "heads", "--size", "8by8"], "--size 8by8 is neither SIZE nor HEIGHTxWIDTH"),
        (["reproduce", "heads", "--set", "threshold=high"], "threshold='high' is not valid"),
        (["reproduce", "capacity", "--set", "threshold=1"], "--set makes no sense for capacity"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(call, words, told):
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
        (KeyError("a"), "lmrc: KeyError: 'a' (lmrc --debug … prints the traceback)\n"),
    ],
)
def test_failure_is_one_line_and_code_1(call, demo_fails, error, line):
    demo_fails(error)
    assert call("demo") == (1, "", line)


@pytest.mark.parametrize("words", [("--debug", "demo"), ("demo", "--debug")])
def test_debug_shows_the_traceback_and_keeps_the_code(call, demo_fails, words):
    demo_fails(ValueError("so"))
    code, _, err = call(*words)
    assert code == 1
    assert "Traceback" in err
    assert err.endswith("ValueError: so\n")
    code, _, err = call(*words, "--seeds", "0")
    assert code == 2
    assert "Traceback" in err


def test_ctrl_c_is_one_line_and_code_130(call, demo_fails):
    demo_fails(KeyboardInterrupt())
    assert call("demo") == (130, "", "lmrc: interrupted\n")


@pytest.mark.skipif(os.name != "posix", reason="there are no such signals")
@pytest.mark.parametrize("second", ["while the first is dealt with", "while Python ends"])
def test_two_interrupts_end_like_one(second):
    script = """if True:
        import os, signal, sys
        from lmrc import cli, interrupts

        class Interrupt:
            how = os.kill, os.getpid(), signal.SIGINT

            def __call__(self, *_, **__):
                kill, *whom = self.how
                kill(*whom)

            __del__ = __call__

        signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, too
        ignore, interrupt = interrupts.ignore_further, Interrupt()
        if sys.argv[1] == "while the first is dealt with":
            interrupts.ignore_further = lambda: (interrupt(), ignore())
        sys.kept = cli.app = interrupt  # until the very end
        cli.main()
    """
    done = subprocess.run([sys.executable, "-c", script, second], capture_output=True, text=True)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr


def test_demo_passes_its_options_on(monkeypatch, call):
    requested = {}
    monkeypatch.setattr(
        "lmrc.experiments.demo.main", lambda out, **rest: requested.update(out=out, **rest)
    )
    assert call("demo", "--out", "here", "--seeds", "3", "--quiet")[0] == 0
    assert requested == {"out": Path("here"), "seeds": 3, "epochs": 12, "quiet": True}


@pytest.fixture
def requested(monkeypatch):
    """Replace experiments by a function that records their options in this dict."""
    requested = {}

    def main(experiment, dataset, out, **rest):
        given = {name: value for name, value in rest.items() if value is not None}
        requested.update(experiment=experiment, dataset=dataset, out=out, **given)

    monkeypatch.setattr("lmrc.experiments.reproduce.main", main)
    return requested


def test_reproduce_passes_its_options_on(call, requested):
    words = (
        "--dataset cifar100 --methods lmrc,ewc --methods joint --memory 20,50 --order 1993 "
        "--validate 0.1 --set response-weight=3 --set halve_at=[5,6] --set precision=bf16 "
        "--keep-models"
    )
    assert call("reproduce", "rehearsal", *words.split(), "--out", "here")[0] == 0
    assert requested == {
        "experiment": "rehearsal",
        "dataset": "cifar100",
        "out": Path("here"),
        "methods": ["lmrc", "ewc", "joint"],
        "memory": [20, 50],
        "order": 1993,
        "validate": 0.1,
        "settings": {"response_weight": 3, "halve_at": [5, 6], "precision": "bf16"},
        "device": "auto",
        "keep_models": True,
        "quiet": False,
    }


@pytest.mark.parametrize(
    "words",
    [
        "rehearsal --methods lmrc ewc joint --memory 20 50",
        "--memory 20 --memory 50 --methods lmrc,ewc joint rehearsal",
    ],
)
def test_several_values_may_follow_an_option(call, requested, words):
    assert call("reproduce", *words.split())[0] == 0
    assert requested["experiment"] == "rehearsal"
    assert requested["methods"] == ["lmrc", "ewc", "joint"]
    assert requested["memory"] == [20, 50]


def test_exemplars_may_be_counted_in_total(call, requested):
    words = ("--memory-total", "2000", "500", "--set", "exemplars=herding")
    assert call("reproduce", "rehearsal", *words)[0] == 0
    assert (requested["memory"], requested["total"]) == ([2000, 500], True)
    for wrong in (("rehearsal", "--memory", "20"), ("incremental",)):
        assert call("reproduce", *wrong, *words)[0] == 2


@pytest.mark.parametrize("order", [[3, 1, 2], [["a", "b"], ["b"]]])
def test_an_order_may_be_a_file(call, requested, tmp_path, order):
    (tmp_path / "order.json").write_text(json.dumps(order))
    words = ("--order", str(tmp_path / "order.json"), "--blurry", "0.1", "--disjoint", "0.5")
    assert call("reproduce", "incremental", *words)[0] == 0
    assert (requested["order"], requested["blurry"], requested["disjoint"]) == (order, 0.1, 0.5)


@pytest.mark.parametrize("text", ["3 1 2", "[]", "[[1], []]", "[1, [2]]", "[1.5]", "[true]", "{}"])
def test_an_invalid_order_file_is_refused(call, requested, tmp_path, text):
    (tmp_path / "order.json").write_text(text)
    code, _, error = call("reproduce", "incremental", "--order", str(tmp_path / "order.json"))
    assert code == 2
    assert "must hold a JSON list of labels" in error
    assert not requested
    code, _, error = call("reproduce", "incremental", "--order", "no.json")
    assert code == 2
    assert "'no.json' is none of natural, per-seed, a seed such as 1993, or a JSON file" in error


def test_heads_may_read_another_run(call, requested):
    assert call("reproduce", "heads", "--from", "there", "--order", "natural")[0] == 0
    assert (requested["source"], requested["order"], requested["dataset"]) == (
        Path("there"),
        "natural",
        None,
    )


def test_report_rebuilds_the_page_and_prints_the_table(call, tmp_path):
    folder = tmp_path / "run"
    words = "--dataset digits --limit 5 --epochs 1 --seeds 1 --methods lm --quiet --out"
    first = call("reproduce", "incremental", *words.split(), str(folder))
    page = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    assert call("report", str(folder)) == first
    assert "| LM |" in first[1]
    assert (folder / "report.html").read_bytes() == page


@pytest.mark.parametrize("wrong", [("--methods", "lmcr"), ("--dataset", "cifar10")])
def test_unknown_methods_and_data_sets_are_wrong_usage(wrong, call, tmp_path):
    code, _, err = call("reproduce", "incremental", *wrong, "--out", str(tmp_path / "runs"))
    assert (code, wrong[1] in err) == (2, True)
    assert not (tmp_path / "runs").exists()
