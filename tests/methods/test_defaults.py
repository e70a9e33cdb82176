"""What a user has set for all of torch is the user's, and not ours to compute with."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

import lmrc
from lmrc import EWCClassifier, LMRCClassifier, LMRCPlusClassifier, LwFClassifier
from lmrc.training.device import default_dtype_guard

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (48, 8, 8), dtype=np.uint8)
LABELS = np.arange(48) % 4


@contextmanager
def default(dtype=torch.float32, device="cpu"):
    """Let all tensors be so, unless another is named, and see that they still are in the end."""
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try:
        yield
        made = torch.zeros(1)
        assert (made.dtype, made.device.type) == (dtype, device)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


def lifetime(method, folder, **settings):
    """Learn two tasks, one of them from a file, and let a class go; return the answers."""
    old = LABELS < 2
    model = method(epochs=1, device="cpu", random_state=0, **settings)
    model.partial_fit(IMAGES[old], LABELS[old]).save(folder)
    model = lmrc.load(folder, device="cpu").partial_fit(IMAGES[~old], LABELS[~old])
    if isinstance(model, LMRCClassifier):
        if isinstance(model, LMRCPlusClassifier):
            model.similarities_by_rule(IMAGES)
        model.forget(1)
    assert len(model.predict(IMAGES)) == len(model.predict_topk(IMAGES, 2)) == len(IMAGES)
    return model.decision_function(IMAGES)


METHODS = {
    LMRCClassifier: {"memory_per_class": 2},
    LMRCPlusClassifier: {"first_epochs": 1, "memory_per_class": 2},
    EWCClassifier: {},
    LwFClassifier: {"heads": "multi"},
}


# Tensors on "meta" have no values: whoever makes one there and looks at it fails.
@pytest.mark.parametrize("other", [{"dtype": torch.float64}, {"device": "meta"}])
@pytest.mark.parametrize("method", METHODS)
def test_all_of_a_models_life_is_as_ever_under_other_defaults(method, other, tmp_path):
    expected = lifetime(method, tmp_path / "usual", **METHODS[method])
    with default(**other):
        got = lifetime(method, tmp_path / "other", **METHODS[method])
    np.testing.assert_array_equal(got, expected)


def test_threads_that_end_in_any_order_leave_the_default_as_it_was():
    torch.set_default_dtype(torch.float64)
    try:
        one, other = default_dtype_guard(), default_dtype_guard()
        one.__enter__()
        other.__enter__()  # as a second thread does meanwhile
        one.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float32  # the second is still at work
        other.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
