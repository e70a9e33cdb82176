"""A process that dies, or whose disk is full, leaves a model that is whole and can go on."""

import errno
import os
import shutil
import sys
import warnings

import numpy as np
import pytest

import lmrc
from lmrc import cli
from lmrc.store import unfinished

STEPS = ("fsync", "replace", "unlink")  # after each of them the disk holds something else
FAST = ("--backbone", "mlp", "--epochs", "2", "--device", "cpu", "--memory-per-class", "2")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")


def stopped_at(step, how, *words):
    """Run a command in a process of its own; tell whether it came to its n-th step of writing.

    There it is killed, or the disk is full from then on.
    """
    with warnings.catch_warnings(action="ignore"):  # of threads, which torch has one of here
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    try:
        left = step

        def counted(function, name):
            def call(*args, **settings):
                nonlocal left
                left -= 1
                if left < 0 and how == "killed":
                    os._exit(9)
                if left < 0 and name == "fsync":
                    raise OSError(errno.ENOSPC, "No space left on device")
                return function(*args, **settings)

            return call

        for name in STEPS:
            setattr(os, name, counted(getattr(os, name), name))
        sys.argv = ["lmrc", *words]
        cli.main()
    finally:
        os._exit(9 if left < 0 else 0)


def names(path):
    return sorted(p.name for p in path.iterdir())


@pytest.fixture
def answers(place):
    """Return what the model ``m`` answers; None if there is none."""
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8), dtype=np.uint8)

    def ask():
        if not (place / "m" / "manifest.json").exists():
            return None
        return lmrc.load("m").similarities(images)

    return ask


def same(a, b):
    return a is b if a is None or b is None else a.shape == b.shape and np.array_equal(a, b)


def begin_again(saved, model):
    """Put the model back to what was saved: nothing, maybe."""
    shutil.rmtree(model, ignore_errors=True)
    if saved.exists():
        shutil.copytree(saved, model)


@pytest.mark.parametrize("how", ["killed", "disk full"])
@pytest.mark.parametrize("which", ["first learn", "second learn", "forget"])
def test_a_command_stops_at_any_step(place, call, answers, which, how):
    model, saved = place / "m", place / "saved"
    command = ("learn", "m", "week1", "-q", "--checkpoint-every", "0", *FAST)
    if which != "first learn":
        assert call(*command)[0] == 0
        command = ("learn", "m", "week2", "-q", "--checkpoint-every", "0")
    if which == "forget":
        assert call(*command)[0] == 0
        command = ("forget", "m", "one", "-q")
    before = answers()
    if model.exists():
        shutil.copytree(model, saved)
    assert call(*command)[0] == 0
    after, whole = answers(), names(model)

    step, stopped = 0, True
    while stopped:
        begin_again(saved, model)
        stopped = stopped_at(step, how, *command)
        now = answers()
        assert same(now, before) or same(now, after), step
        if model.exists() and unfinished.is_there(model):
            assert call("learn", "m", "--resume", "-q")[0] == 0, step
        elif not same(now, after):
            assert call(*command)[0] == 0, step
        assert same(answers(), after), step
        step += 1
    assert step > 10
    assert names(model) == whole
