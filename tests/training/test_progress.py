import io
import sys

import numpy as np
import pytest

from lmrc import LMRCClassifier

X, Y = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32), np.arange(12) % 3


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("verbose", "stream"), [(0, Terminal()), (1, io.StringIO())])
def test_progress_is_shown_if_verbose_and_on_a_terminal_only(verbose, stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    LMRCClassifier(epochs=2, verbose=verbose).fit(X, Y)
    assert stream.getvalue() == ""


def test_epochs_their_losses_and_what_comes_after_them_are_shown(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    seen = []

    class Slow(LMRCClassifier):
        def after_task(self, network, samples):
            super().after_task(network, samples)
            seen.append(stream.getvalue())

    model = Slow(epochs=2, verbose=1, random_state=0).fit(X, Y)
    epochs, _, kept = seen[0].partition("statistics")
    assert "task 1" in epochs
    assert "2/2" in epochs
    assert f"loss {model.history_[-1]['loss']:.3f}" in epochs
    assert "0:00:0" in kept  # how long it has been going on
