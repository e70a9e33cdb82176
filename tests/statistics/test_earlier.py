"""Networks of earlier tasks, which help to compensate feature drift."""

import pytest
import torch
from torch import nn

from lmrc.nets.network import Encoder
from lmrc.statistics.classes import ClassStatistics, Summary
from lmrc.statistics.earlier import Earlier, Source
from lmrc.statistics.update import update_statistics
from lmrc.training.memory import Memory

WIDTH = 5


def encoder(seed):
    layer = nn.Linear(WIDTH, WIDTH)
    generator = torch.Generator().manual_seed(seed)
    layer.weight.data = torch.randn(WIDTH, WIDTH, generator=generator).half().float()
    layer.bias.data = torch.randn(WIDTH, generator=generator).half().float()
    return Encoder(layer, torch.zeros(WIDTH), torch.ones(WIDTH)).eval()


def images(seed, n=200):
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(seed)) + seed


@torch.no_grad()
def mean_by(network, x):
    return network.features(x).mean(dim=0)[None]  # of one rotation


@torch.no_grad()
def test_means_are_drawn_half_the_way_to_where_the_earlier_network_has_them():
    first, old, new = (encoder(i) for i in range(3))
    error = 3 * torch.ones(WIDTH)  # of what was carried from the first network to the old one
    before = ClassStatistics.empty("full", 1, WIDTH)
    for c in range(2):
        features = old.features(images(c)).double()[None]
        before = before.with_class(c, Summary.of(features, 200))
    before.means[0] += error
    source = Source(0, first, torch.tensor([0]), mean_by(first, images(0))[None])
    found = {}
    for sources in ([], [source]):
        found[len(sources)] = update_statistics(
            before,
            old,
            new,
            Memory(images(2), torch.full((200,), 2)),
            Memory.empty(images(2)),
            layers=1,
            augment="none",
            rotated=False,
            generator=torch.Generator(),
            finetune=False,
            earlier=sources,
        ).statistics
    off = [(found[n].means[0] - mean_by(new, images(0))).norm() for n in (0, 1)]
    assert off[0] > 1
    assert float(off[1] / off[0]) == pytest.approx(0.5, abs=0.05)
    for row in (1, 2):  # the old network taught the second, the new one the third
        torch.testing.assert_close(found[0].means[row], found[1].means[row])


def test_each_class_stays_with_the_network_that_it_was_learnt_with():
    networks = [encoder(i) for i in range(4)]
    means = torch.arange(20.0).view(4, 1, WIDTH)
    kept = Earlier.begun(means[:0], 0).learnt(None, means[:2], torch.tensor([0, 1]), 0)
    assert not kept.encoders
    kept = kept.learnt(networks[0], means[:3] + 100, torch.tensor([2]), 1)
    assert kept.tasks.tolist() == [0, 0, 1]
    torch.testing.assert_close(kept.means, torch.cat([means[:2], means[2:3] + 100]))
    (source,) = kept.sources(networks[1])
    torch.testing.assert_close(source.encoder.features(images(0)), networks[0].features(images(0)))
    assert source.rows.tolist() == [0, 1]
    torch.testing.assert_close(source.means, means[:2])
    # A known class comes again: it is with the newest network now.
    kept = kept.learnt(networks[1], means[:3] + 200, torch.tensor([0]), 2)
    assert kept.tasks.tolist() == [2, 0, 1]
    assert set(kept.encoders) == {0, 1}
    torch.testing.assert_close(kept.means[0], means[0] + 200)
    again = Earlier.from_tensors(kept.tensors())
    again.check((3, 1, WIDTH), 3, networks[3])
    # No class is left of the first network's.
    assert set(kept.without(1).encoders) == {1}
    assert set(kept.learnt(networks[2], means, torch.tensor([1, 3]), 3).encoders) == {1, 2}


def test_what_does_not_fit_is_refused():
    means, like = torch.zeros(2, 1, WIDTH), encoder(0)
    kept = Earlier.begun(means[:1], 1).learnt(encoder(1), means, torch.tensor([1]), 1)
    kept.check((2, 1, WIDTH), 2, like)
    tensors = kept.tensors()
    weight = next(name for name in tensors if name.endswith("weight"))
    for changed, message in [
        ({"means": means.double()}, "means"),
        ({"means": means[:1]}, "means"),
        ({"tasks": torch.zeros(2)}, "whole number"),
        ({"tasks": torch.tensor([0, 2])}, "learnt with"),
        ({weight: tensors[weight].double()}, "as its network is"),
        ({weight: tensors[weight][:1]}, "as its network is"),
    ]:
        with pytest.raises(ValueError, match=message):
            Earlier.from_tensors(tensors | changed).check((2, 1, WIDTH), 2, like)
    without = {name: t for name, t in tensors.items() if not name.startswith("0.")}
    with pytest.raises(ValueError, match="learnt with"):
        Earlier.from_tensors(without).check((2, 1, WIDTH), 2, like)
