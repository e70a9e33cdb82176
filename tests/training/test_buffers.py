import torch

from lmrc.training.buffers import fits


def test_memory_that_torch_keeps_for_later_counts_as_free(monkeypatch):
    """That of the task before: else the next one's inputs would be left outside."""
    for name, size in {"memory_reserved": 700, "memory_allocated": 100}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, size=size: size)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (400, 1200))
    gpu = torch.device("cuda")
    assert fits(torch.zeros(500, dtype=torch.uint8), gpu)
    assert not fits(torch.zeros(501, dtype=torch.uint8), gpu)
