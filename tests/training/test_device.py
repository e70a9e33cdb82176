import pytest
import torch

from lmrc.training.device import pick_device


@pytest.mark.parametrize("asked", ["auto", "cuda", torch.device("cuda")])
def test_a_gpu_has_its_number_as_tensors_on_it_have(asked, monkeypatch):
    # Else a network there would seem to be on another device, and be copied each class batch.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert pick_device(asked) == torch.device("cuda", 1)


def test_the_gpu_that_is_asked_for_is_taken(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("cuda:3") == torch.device("cuda", 3)
