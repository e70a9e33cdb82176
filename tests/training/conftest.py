from dataclasses import replace

import pytest
import torch

from lmrc.training.batches import Batches


@pytest.fixture
def epoch():
    """Return what serves the mini-batches of an epoch."""

    def serve(x, y, *, seed=0, **settings):
        usual = {"n_known": 0, "batch_size": 4, "augment": "none", "device": torch.device("cpu")}
        batches = Batches(x, y, **usual | settings)
        batches.sample_epoch(torch.Generator().manual_seed(seed))
        served = []
        for part in torch.arange(len(x)).split(batches.sizes):
            batches.load_next()
            batch = batches.at(part)
            served.append(replace(batch, x=batch.x.clone()))
        return served

    return serve
