import pytest
from torch import nn


@pytest.fixture
def uninitialised(monkeypatch):
    """Leave weights as they are, where only their shapes matter: large networks have many."""
    for name in ("kaiming_uniform_", "kaiming_normal_"):
        monkeypatch.setattr(nn.init, name, lambda weight, *_, **__: weight)
