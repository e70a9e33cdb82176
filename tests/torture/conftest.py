"""Fault injection: a few trials in the tests, thousands with ``make torture``.

`docs/reliability.md` has the results.
"""

import platform
import shutil
import signal
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lmrc

FAST = ("--backbone", "mlp", "--label-dim", "16", "--epochs", "2", "--device", "cpu")
LEARN = (
    ("learn", "m", "week1", "-q", "--checkpoint-every", "0", "--memory-per-class", "1", *FAST),
    ("learn", "m", "week2", "-q", "--checkpoint-every", "0"),
)
TIMEOUT = 600  # seconds; most trials take less than one

_tally = defaultdict(lambda: [0, []])  # by fault: number of trials, and those not survived


@pytest.fixture
def is_full(request):
    """Whether to run all trials, as ``make torture`` does."""
    return request.config.getoption("torture")


@pytest.fixture
def trial():
    """Return a context manager for one trial; a failed one does not stop the others."""
    failures = []

    def give_up(*_):
        raise TimeoutError("timed out")

    @contextmanager
    def try_one(fault, what, timeout=TIMEOUT):
        _tally[fault][0] += 1
        before = signal.signal(signal.SIGALRM, give_up)
        signal.alarm(timeout)
        try:
            yield
        except Exception as error:
            failures.append(f"{fault}, {what}: {type(error).__name__}: {error}")
            _tally[fault][1].append(what)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    yield try_one
    if failures:
        pytest.fail(f"{len(failures)} not survived:\n" + "\n".join(failures[:20]), pytrace=False)


def pytest_terminal_summary(terminalreporter, config):
    if not config.getoption("torture"):
        return
    rows = [f"| {fault} | {n:,} | {n - len(bad):,} |" for fault, (n, bad) in _tally.items()]
    head = [f"{platform.system()} {platform.machine()}, Python {platform.python_version()}", ""]
    table = [*head, "| fault | trials | survived |", "| --- | ---: | ---: |", *rows]
    terminalreporter.write_sep("=", "torture")
    terminalreporter.write("\n".join([*table, ""]))
    if path := config.getoption("torture_table"):
        Path(path).write_text("\n".join([*table, ""]), "utf-8")


def save_noise(folder, n, seed):
    folder.mkdir(parents=True)
    noise = np.random.default_rng(seed).integers(0, 256, (n, 6, 6), dtype=np.uint8)
    for i, image in enumerate(noise):
        Image.fromarray(image).save(folder / f"{i}.png")


@pytest.fixture(scope="session")
def trained(tmp_path_factory, run_jobs):
    """A folder with very small images of two tasks, and the model after each: 1 and 2."""
    root = tmp_path_factory.mktemp("trained")
    for seed, name in enumerate(("week1/a", "week1/b", "week2/c", "week2/d")):
        save_noise(root / name, 4, seed)
    for stage, words in enumerate(LEARN, start=1):
        (done,) = run_jobs({"words": words, "place": str(root)})
        assert done["code"] == 0, done["said"]
        shutil.copytree(root / "m", root / str(stage))
    return root


@pytest.fixture
def place(tmp_path, monkeypatch, trained):
    """The current folder, with a copy of `trained`."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def outputs_of(path):
    """Return a model's classes and similarities; None if there is no model."""
    if not (path / "manifest.json").exists():
        return None
    images = np.random.default_rng(9).integers(0, 256, (5, 6, 6), dtype=np.uint8)
    model = lmrc.load(path, device="cpu")
    return model.classes_.tolist(), model.similarities(images).tolist()


@pytest.fixture
def outputs(place):
    """Return a function for the classes and similarities of the model ``m``, or None."""
    return lambda: outputs_of(Path("m"))


class Stages:
    """A model before, between and after two tasks.

    Attributes
    ----------
    learn : pair of commands
        From each stage to the next.
    known : list
        The model's classes and similarities at each.
    """

    learn = LEARN

    def __init__(self):
        self.known = [None, outputs_of(Path("1")), outputs_of(Path("2"))]

    def go_back(self, stage):
        """Reset ``m`` to this stage."""
        shutil.rmtree("m", ignore_errors=True)
        if stage:
            shutil.copytree(str(stage), "m")


@pytest.fixture
def stages(place):
    """The model ``m`` after two tasks, which can be reset to earlier stages."""
    return Stages()
