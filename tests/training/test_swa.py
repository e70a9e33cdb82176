import pytest
import torch
from torch import nn

from lmrc import LMRCClassifier
from lmrc.checks import blobs
from lmrc.training.batches import Batches
from lmrc.training.checkpoint import Checkpoint, pack_training, unpack_training
from lmrc.training.loop import Optimisation, train


class Remembers(Checkpoint):
    """Keeps every epoch's state, and can go on from one of them."""

    def __init__(self, kept=None):
        self.kept, self.all = kept, []

    def restore(self, network, optimiser):
        if self.kept is None:
            return []
        unpack_training(self.kept[1], network, optimiser)
        return list(self.kept[0])

    def save(self, records, network, optimiser):
        tensors = {n: t.clone() for n, t in pack_training(network, optimiser).items()}
        self.all.append((list(records), tensors))


def trained(swa_epochs, checkpoint):
    torch.manual_seed(0)
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    batches = Batches(x, y, n_known=0, batch_size=5, augment="none", device=torch.device("cpu"))
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    plan = Optimisation(5, 0.1, (), 0.9, 0.0, swa_epochs=swa_epochs)
    losses = lambda batch: {"new": (network(batch.x)[:, 0] - batch.y).square()}  # noqa: E731
    list(train(network, losses, batches, plan, seed=lambda e: e, checkpoint=checkpoint))
    return network, x


def test_weights_are_the_mean_of_the_last_epochs():
    kept = Remembers()
    network, x = trained(3, kept)
    ends = [tensors["network.0.weight"] for _, tensors in kept.all[-3:]]
    torch.testing.assert_close(network[0].weight, torch.stack(ends).mean(dim=0))
    # BatchNorm is of these weights, not of those on the way.
    torch.testing.assert_close(network[1].running_mean, network[0](x).mean(dim=0))
    assert network[1].momentum == 0.1


@pytest.mark.parametrize("after", [1, 3, 4])
def test_an_interrupted_average_goes_on(after):
    kept = Remembers()
    whole, _ = trained(3, kept)
    again, _ = trained(3, Remembers(kept.all[after]))
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_what_is_dropped_is_by_seed():
    """Dropout draws from torch's own generator, which is the user's."""
    X, y = blobs()[0]
    layers = [nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)]
    learnt = []
    for users in (1, 2):
        torch.manual_seed(users)
        before = torch.get_rng_state()
        backbone = nn.Sequential(*layers)  # copied, as it is
        model = LMRCClassifier(backbone=backbone, epochs=2, swa_epochs=1, random_state=0)
        learnt.append(model.fit(X, y).network_.state_dict())
        assert torch.equal(before, torch.get_rng_state())
    for name, tensor in learnt[0].items():
        assert torch.equal(tensor, learnt[1][name]), name


def test_more_epochs_than_there_are_are_all():
    X, y = blobs()[0]
    assert LMRCClassifier(epochs=2, swa_epochs=9, random_state=0).fit(X, y).score(X, y) > 0.5
