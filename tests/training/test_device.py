import os

import pytest
import torch

from lmrc.training.device import Execution, deterministic_algorithms, pick_device
from lmrc.training.graphed import _fastest_algorithms


@pytest.mark.parametrize("device", ["auto", "cuda", torch.device("cuda")])
def test_a_gpu_has_an_index_as_its_tensors_have(device, monkeypatch):
    # Else a network there would seem to be on another device, and be copied each task.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert pick_device(device) == torch.device("cuda", 1)


def test_a_given_gpu_is_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("cuda:3") == torch.device("cuda", 3)


@pytest.fixture
def a_gpu(monkeypatch):
    """Make believe that there is one, for what does not compute on it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr("lmrc.training.device.has_triton", lambda: True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")  # to be as it was, in the end


@pytest.mark.usefixtures("a_gpu")
def test_a_deterministic_gpu_does_not_benchmark():
    work = 1e10
    assert Execution.pick("cuda", "bf16", "auto", work).compiled
    with deterministic_algorithms(True):
        how = Execution.pick("cuda", "bf16", "auto", work)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        with _fastest_algorithms():
            assert not torch.backends.cudnn.benchmark
    assert (how.graph, how.compiled) == (True, False)
    assert how.described()["deterministic"] is True
    with _fastest_algorithms():
        assert torch.backends.cudnn.benchmark


@pytest.mark.usefixtures("a_gpu")
def test_torchs_switches_are_as_they_were_even_after_an_error():
    def fail():
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), deterministic_algorithms(True):
        fail()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.usefixtures("a_gpu")
def test_deterministic_errors_of_the_user_stay_errors():
    torch.use_deterministic_algorithms(True)
    try:
        with deterministic_algorithms(True):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_cpu_is_deterministic_anyway():
    with deterministic_algorithms(True):
        assert torch.are_deterministic_algorithms_enabled() == torch.cuda.is_available()
        assert "deterministic" not in Execution.pick("cpu", "fp32", True).described()
