"""CutMix: which rectangles of whom, and that both classes are learnt by their areas."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lmrc import (
    FineTuneClassifier,
    LMRCClassifier,
    LwFClassifier,
)
from lmrc.nets.network import Encoder
from lmrc.statistics.gather import gather
from lmrc.training.augment import flips
from lmrc.training.batches import Batches, MiniBatch
from lmrc.training.cutmix import CutMix
from lmrc.training.ranks import SINGLE_PROCESS, Ranks

CPU = torch.device("cpu")


def numbered(n, copies=1):
    """Images all of whose pixels are their number."""
    numbers = torch.arange(copies * n, dtype=torch.uint8)
    return numbers[:, None, None, None].expand(-1, 3, 20, 20).contiguous()


def sampled(sizes, ranks=SINGLE_PROCESS, seed=0):
    cutmix = CutMix(sizes, ranks, CPU)
    cutmix.sample_epoch(torch.Generator().manual_seed(seed))
    return cutmix


@pytest.mark.parametrize("copies", [1, 4])
def test_a_partner_is_as_far_from_the_end(copies):
    n, cutmix = 5, sampled([5] * 40)
    shares = []
    for start in range(0, 200, n):
        x, lam = cutmix(numbered(n, copies), torch.arange(start, start + n), copies)
        for i, image in enumerate(x):
            other = copies * n - 1 - i
            assert set(image.unique().tolist()) <= {i, other}
            if i != other:
                assert (image[0] == other).float().mean() == pytest.approx(1 - float(lam[i]))
            (where,) = np.nonzero((image[0] == other).any(0).numpy())
            assert len(where) == np.ptp(where) + 1 if len(where) else True  # one rectangle
        assert (lam == lam[0]).all()
        shares.append(1 - float(lam[0]))
    assert 10 < sum(share == 0 for share in shares) < 30  # about half of the mini-batches are whole
    assert max(shares) > 0.5


def test_the_area_of_a_rectangle_is_uniform():
    """Of a side √a, 1 − √a / 4 lies inside on average: the mean of (√a − a / 4)² is 0.32."""
    cutmix, n = sampled([2] * 4000), 8000
    _, lam = cutmix(torch.zeros(n, 1, 64, 64), torch.arange(n), 1)
    assert float((1 - lam)[lam < 1].mean()) == pytest.approx(0.5 - 0.2 + 1 / 48, abs=0.02)


def test_cutmix_of_several_mini_batches_at_once_is_that_of_each():
    cutmix, x = sampled([4] * 6), numbered(24)
    at_once, lams = cutmix(x, torch.arange(24), 1)
    for i in range(0, 24, 4):
        alone, lam = cutmix(x[i : i + 4], torch.arange(i, i + 4), 1)
        assert torch.equal(at_once[i : i + 4], alone)
        assert torch.equal(lams[i : i + 4], lam)


def test_each_rank_takes_partners_from_its_own_part():
    for rank in range(3):
        ranks = Ranks(rank, 3)
        cutmix, share = sampled([10] * 20, ranks), ranks.shard(10)
        n = share.stop - share.start
        for start in range(0, 200, 10):
            x, _ = cutmix(numbered(n), start + torch.arange(share.start, share.stop), 1)
            for i, image in enumerate(x):
                assert set(image.unique().tolist()) <= {i, n - 1 - i}


def test_rectangles_are_by_seed_and_inputs_may_stay_in_the_hosts_memory(epoch):
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (23, 3, 16, 16), dtype=torch.uint8, generator=rng)

    def images(seed, resident=True, augment="cutmix"):
        served = epoch(x, torch.arange(23) % 4, seed=seed, augment=augment, resident=resident)
        return torch.cat([batch.x for batch in served])

    one = images(1)
    assert torch.equal(one, images(1, resident=False))
    assert not torch.equal(one, images(2))
    # Up to the rectangles, images are those of "jitter+cutout".
    assert 0.3 < (one == images(1, augment="jitter+cutout")).float().mean() < 1


def batch(lam=0.75, n=6):
    return MiniBatch(
        torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(1)),
        torch.arange(n) % 4,
        torch.full((4,), 10),
        n_known=2,
        reviews=True,
        rotation=torch.arange(n) % 3,
        lam=torch.full((n,), lam),
    )


def test_targets_are_of_both_classes_by_their_areas():
    whole = batch()
    own = torch.zeros(6, 16)
    own[range(6), (4 * whole.y + whole.rotation).tolist()] = 1
    assert torch.equal(replace(whole, lam=None).targets, own)
    assert torch.equal(replace(whole, lam=torch.ones(6)).targets, own)
    torch.testing.assert_close(whole.targets, 0.75 * own + 0.25 * own.flip(0))
    plain = replace(whole, rotation=None)
    assert plain.targets.shape == (6, 4)
    torch.testing.assert_close(plain.targets.sum(dim=1), torch.ones(6))


def test_statistics_are_of_whole_images():
    encoder = Encoder(torch.nn.Flatten(), torch.zeros(3, 1, 1), torch.ones(3, 1, 1)).eval()
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (30, 3, 8, 8), dtype=torch.uint8, generator=rng)
    found = [
        next(
            gather(
                [encoder],
                x,
                layers=1,
                augment=augment,
                rotated=False,
                generator=torch.Generator().manual_seed(5),
            )
        )[0]
        for augment in ("cutmix", "jitter+cutout")
    ]
    assert torch.equal(*found)


def test_a_step_of_a_classifier_runs_the_network_once_and_learns_both_classes():
    seen = []

    class Watched(FineTuneClassifier):
        def losses(self, outputs, old_outputs, batch):
            seen.append(batch)
            return super().losses(outputs, old_outputs, batch)

    X = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3), dtype=np.uint8)
    backbone = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Flatten())
    model = Watched(backbone=backbone, epochs=2, batch_size=8, augment="cutmix", random_state=0)
    model.fit(X, np.arange(24) % 4)
    assert len(seen) == 2 * 3
    assert int(model.network_.encoder.backbone[0].num_batches_tracked) == 2 * 3
    assert any((batch.lam < 1).any() for batch in seen)


@pytest.mark.parametrize("method", [FineTuneClassifier, LwFClassifier, LMRCClassifier])
def test_losses_with_soft_targets_are_the_mixed_losses(method):
    """Of all terms, those of the old network's outputs included: they do not see the targets."""
    model = method(label_dim=5) if method is LMRCClassifier else method()
    model.heads_, model.classes_ = [np.array([0, 1]), np.array([2, 3])], np.arange(4)
    model.memory_ = None
    rng = torch.Generator().manual_seed(0)
    shape = (6, 2, 5) if method is LMRCClassifier else (6, 4)
    outputs = torch.nn.functional.normalize(torch.randn(shape, generator=rng), dim=-1)
    if method is LMRCClassifier:
        vectors = torch.nn.functional.normalize(torch.randn(4, 5, generator=rng), dim=1)
        model.labels_ = {"vectors": vectors}
    whole = replace(batch(), rotation=None)
    own = replace(whole, lam=None)
    partner = replace(own, y=own.y.flip(0))
    mixed, ours, theirs = (
        model.losses(outputs, outputs[:, : shape[1] // 2], part) for part in (whole, own, partner)
    )
    assert mixed.keys() == ours.keys()
    assert len(mixed) > (method is not FineTuneClassifier)
    for name, term in mixed.items():
        torch.testing.assert_close(term, 0.75 * ours[name] + 0.25 * theirs[name])


def test_a_rank_has_partners_and_targets_of_its_part():
    x, y = numbered(40), torch.arange(40)

    def served(augment):
        batches = Batches(
            x, y, n_known=0, batch_size=10, augment=augment, device=CPU, ranks=Ranks(1, 3)
        )
        batches.sample_epoch(torch.Generator().manual_seed(3))
        return [batches.at(positions) for _, positions in batches.shards()]

    assert any(batch.lam[0] < 1 for batch in served("cutmix"))
    for mix, whole in zip(served("cutmix"), served("jitter+cutout"), strict=True):
        assert torch.equal(mix.y, whole.y)
        same = (mix.x == whole.x) | (mix.x == whole.x.flip(0))
        assert same.all()


def test_cutmix_includes_flips():
    assert flips("cutmix")
