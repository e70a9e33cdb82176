"""Faults, tried for real: a few in the tests, thousands with ``make torture``.

`docs/reliability.md` has the figures.
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
HANGS = 120  # seconds; most of what is tried here takes less than one

_tally = defaultdict(lambda: [0, []])  # by kind: how many were tried, and what did not survive


@pytest.fixture
def is_full(request):
    """Whether to try everything, as ``make torture`` does."""
    return request.config.getoption("torture")


@pytest.fixture
def trial():
    """Return a context in which to try one fault; one that is not survived stops no other."""
    failures = []

    def give_up(*_):
        raise TimeoutError("it hangs")

    @contextmanager
    def try_one(kind, what, hangs=HANGS):
        _tally[kind][0] += 1
        before = signal.signal(signal.SIGALRM, give_up)
        signal.alarm(hangs)
        try:
            yield
        except Exception as error:
            failures.append(f"{kind}, {what}: {type(error).__name__}: {error}")
            _tally[kind][1].append(what)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    yield try_one
    if failures:
        pytest.fail(f"{len(failures)} not survived:\n" + "\n".join(failures[:20]), pytrace=False)


def pytest_terminal_summary(terminalreporter, config):
    if not config.getoption("torture"):
        return
    rows = [f"| {kind} | {n:,} | {n - len(bad):,} |" for kind, (n, bad) in _tally.items()]
    head = [f"{platform.system()} {platform.machine()}, Python {platform.python_version()}", ""]
    table = [*head, "| what | tried | survived |", "| --- | ---: | ---: |", *rows]
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
def made_once(tmp_path_factory, run_jobs):
    """A folder with very small images of two tasks, and a model after each: 1 and 2."""
    made = tmp_path_factory.mktemp("made")
    for seed, name in enumerate(("week1/a", "week1/b", "week2/c", "week2/d")):
        save_noise(made / name, 4, seed)
    for stage, words in enumerate(LEARN, start=1):
        (done,) = run_jobs({"words": words, "place": str(made)})
        assert done["code"] == 0, done["said"]
        shutil.copytree(made / "m", made / str(stage))
    return made


@pytest.fixture
def place(tmp_path, monkeypatch, made_once):
    """A folder to be in, with all that was made once."""
    shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(path):
    """Return what a model knows and answers; None if there is none."""
    if not (path / "manifest.json").exists():
        return None
    images = np.random.default_rng(9).integers(0, 256, (5, 6, 6), dtype=np.uint8)
    model = lmrc.load(path, device="cpu")
    return model.classes_.tolist(), model.similarities(images).tolist()


@pytest.fixture
def answers(place):
    """Return what the model ``m`` knows and answers; None if there is none."""
    return lambda: ask(Path("m"))


class Stages:
    """A model before, between and after two tasks.

    Attributes
    ----------
    learn : pair of commands
        From each stage to the next.
    known : list
        What the model answers at each.
    """

    learn = LEARN

    def __init__(self):
        self.known = [None, ask(Path("1")), ask(Path("2"))]

    def go_back(self, stage):
        """Let ``m`` be at this stage."""
        shutil.rmtree("m", ignore_errors=True)
        if stage:
            shutil.copytree(str(stage), "m")


@pytest.fixture
def stages(place):
    """The model ``m`` after two tasks, which can go back to those before."""
    return Stages()
