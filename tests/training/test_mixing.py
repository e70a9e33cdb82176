"""Images with pieces of others: which pieces, and that both classes are learnt by their shares."""

import numpy as np
import pytest
import torch

from lmrc import EWCClassifier, FineTuneClassifier, LMRCClassifier, LMRCPlusClassifier
from lmrc.nets.network import Network, Trunk
from lmrc.statistics.gather import gather
from lmrc.training.augment import flips
from lmrc.training.batches import Batches, MiniBatch
from lmrc.training.mixing import mixed, turned_round
from lmrc.training.pieces import Pieces
from lmrc.training.ranks import ALONE, Ranks
from lmrc.training.weighting import weighted

CPU = torch.device("cpu")


def numbered(n, copies=1):
    """Images all of whose pixels are their number."""
    numbers = torch.arange(copies * n, dtype=torch.uint8)
    return numbers[:, None, None, None].expand(-1, 3, 20, 20).contiguous()


def drawn(sizes, ranks=ALONE, seed=0):
    pieces = Pieces(sizes, ranks, CPU)
    pieces.draw(torch.Generator().manual_seed(seed))
    return pieces


@pytest.mark.parametrize("copies", [1, 4])
def test_a_piece_is_of_the_image_as_far_from_the_end(copies):
    n, pieces = 5, drawn([5] * 40)
    shares = []
    for start in range(0, 200, n):
        x, share = pieces(numbered(n, copies), torch.arange(start, start + n), copies)
        for i, image in enumerate(x):
            other = copies * n - 1 - i
            assert set(image.unique().tolist()) <= {i, other}
            if i != other:
                assert (image[0] == other).float().mean() == pytest.approx(float(share[i]))
            (where,) = np.nonzero((image[0] == other).any(0).numpy())
            assert len(where) == np.ptp(where) + 1 if len(where) else True  # in one piece
        assert (share == share[0]).all()
        shares.append(float(share[0]))
    assert 10 < sum(share == 0 for share in shares) < 30  # about half of the mini-batches are whole
    assert max(shares) > 0.5


def test_the_area_of_a_piece_is_uniform():
    """Of a side √a, 1 − √a / 4 lies inside on average: the mean of (√a − a / 4)² is 0.32."""
    pieces, n = drawn([2] * 4000), 8000
    _, share = pieces(torch.zeros(n, 1, 64, 64), torch.arange(n), 1)
    assert float(share[share > 0].mean()) == pytest.approx(0.5 - 0.2 + 1 / 48, abs=0.02)


def test_pieces_of_several_mini_batches_at_once_are_those_of_each():
    pieces, x = drawn([4] * 6), numbered(24)
    at_once, shares = pieces(x, torch.arange(24), 1)
    for i in range(0, 24, 4):
        alone, share = pieces(x[i : i + 4], torch.arange(i, i + 4), 1)
        assert torch.equal(at_once[i : i + 4], alone)
        assert torch.equal(shares[i : i + 4], share)


def test_each_rank_takes_pieces_from_its_own_share():
    for rank in range(3):
        ranks = Ranks(rank, 3)
        pieces, share = drawn([10] * 20, ranks), ranks.share(10)
        n = share.stop - share.start
        for start in range(0, 200, 10):
            x, _ = pieces(numbered(n), start + torch.arange(share.start, share.stop), 1)
            for i, image in enumerate(x):
                assert set(image.unique().tolist()) <= {i, n - 1 - i}


def test_pieces_are_by_seed_and_inputs_may_stay_in_the_hosts_memory():
    chance = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (23, 3, 16, 16), dtype=torch.uint8, generator=chance)

    def epoch(seed, resident, augment="mixed"):
        batches = Batches(
            x,
            torch.arange(23) % 4,
            n_known=2,
            batch_size=4,
            augment=augment,
            device=CPU,
            resident=resident,
        )
        batches.draw(torch.Generator().manual_seed(seed))
        return torch.cat([batches.at(positions).x.clone() for _, positions in batches.shares()])

    one = epoch(1, True)
    assert torch.equal(one, epoch(1, False))
    assert not torch.equal(one, epoch(2, True))
    # Up to the pieces, images are those of "strong".
    assert 0.3 < (one == epoch(1, True, "strong")).float().mean() < 1


def batch(share=0.25, n=6):
    return MiniBatch(
        torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(1)),
        torch.arange(n) % 4,
        torch.arange(n) % 4 < 2,
        torch.arange(n) % 3,
        torch.full((4,), 10),
        torch.full((n,), share),
    )


def test_both_classes_are_learnt_by_their_shares_and_a_penalty_once():
    whole = batch()

    def losses(batch):
        return {"new": batch.y + 10.0 * batch.known + 100 * batch.turn, "penalty": torch.ones(())}

    found = mixed(losses)(whole)
    own, other = losses(whole)["new"], losses(turned_round(whole))["new"]
    assert torch.equal(other, own.flip(0))
    torch.testing.assert_close(found["new"], 0.75 * own + 0.25 * other)
    assert found["penalty"] == 1


def test_class_weights_are_those_of_both_classes():
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    losses = weighted(lambda batch: {"new": torch.ones(6)}, weights)
    whole = batch()
    expected = 0.75 * weights[whole.y] + 0.25 * weights[whole.y.flip(0)]
    torch.testing.assert_close(mixed(losses)(whole)["new"], expected)


class Asked(torch.nn.Module):
    """A backbone that counts how often it is asked."""

    def __init__(self):
        super().__init__()
        self.norm, self.times = torch.nn.BatchNorm2d(3), 0

    def forward(self, x):
        self.times += 1
        return self.norm(x).flatten(1)


def network():
    trunk = Trunk(Asked(), torch.zeros(3, 1, 1), torch.ones(3, 1, 1))
    return Network(trunk, torch.nn.Linear(192, 4))


@pytest.mark.parametrize("scalar", [False, True])
def test_features_are_found_once_and_both_classes_have_a_gradient(scalar):
    trained, frozen = network(), network().eval()

    def losses(batch):
        with torch.no_grad():  # to look first is no harm
            trained(batch.x)
        log_p = trained(batch.x).log_softmax(1)
        with torch.no_grad():
            before = frozen.trunk(batch.x)
        kept = (trained.trunk(batch.x) - before).square().mean(1)
        new = -log_p.gather(1, batch.y[:, None])[:, 0]
        return {"new": new.mean() if scalar else new, "kept": kept}

    def gradient(term):
        return torch.autograd.grad(term.mean(), [trained.head.weight])[0]

    whole = batch()
    found = gradient(mixed(losses, trained, frozen, None)(whole)["new"])
    assert (trained.trunk.backbone.times, frozen.trunk.backbone.times) == (3, 1)
    assert int(trained.trunk.backbone.norm.num_batches_tracked) == 3
    own, other = (gradient(losses(part)["new"]) for part in (whole, turned_round(whole)))
    torch.testing.assert_close(found, 0.75 * own + 0.25 * other)
    assert not torch.allclose(own, other)
    assert trained.trunk.backbone.times == 9  # behind the losses nothing is noted


def test_features_of_one_input_are_not_given_for_another():
    """Where the losses of the second label look at something else than those of the first."""
    trained, whole = network().eval(), batch()

    def losses(batch):
        return {"new": trained.trunk(batch.x * (1 + batch.y[:, None, None, None])).square().sum(1)}

    own, other = (losses(part)["new"] for part in (whole, turned_round(whole)))
    torch.testing.assert_close(mixed(losses, trained)(whole)["new"], 0.75 * own + 0.25 * other)


def test_nothing_is_noted_any_more_where_losses_fail():
    asked = network()

    def losses(batch):
        asked(batch.x)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mixed(losses, asked)(batch())
    for _ in range(2):
        asked(batch().x)
    assert asked.trunk.backbone.times == 3


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        (torch.ones(6), "losses returned a Tensor: return a dict"),
        ({"new": torch.ones(6, 1)}, r"'new' has the shape \(6, 1\)"),
        ({"new": torch.ones(5)}, r"'new' has the shape \(5,\)"),
    ],
)
def test_what_losses_may_not_return_is_refused_with_the_same_words(terms, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        mixed(lambda _: terms)(batch())


def test_statistics_are_of_whole_images():
    class Mean(torch.nn.Module):
        def forward(self, x):
            return x.flatten(1)

    trunk = Trunk(Mean(), torch.zeros(3, 1, 1), torch.ones(3, 1, 1)).eval()
    chance = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (30, 3, 8, 8), dtype=torch.uint8, generator=chance)
    found = [
        next(
            gather(
                [trunk],
                x,
                layers=1,
                augment=augment,
                rotated=False,
                generator=torch.Generator().manual_seed(5),
            )
        )[0]
        for augment in ("mixed", "strong")
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (LMRCClassifier, {}),
        (LMRCClassifier, {"class_weight": "balanced", "memory_per_class": 2}),
        (EWCClassifier, {}),
        (LMRCPlusClassifier, {"memory_per_class": 3, "first_epochs": 3, "predict_with": "lda"}),
    ],
)
def test_methods_learn_mixed_images_the_same_each_time(method, settings):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    y = np.arange(40) % 4

    def taught(augment):
        model = method(
            backbone="cnn", epochs=3, batch_size=8, augment=augment, random_state=0, **settings
        )
        for now in (y < 2, y >= 2):
            model.partial_fit(X[now], y[now])
        return model

    one, again, whole = (taught(augment) for augment in ("mixed", "mixed", "strong"))
    assert one.history_ == again.history_
    np.testing.assert_array_equal(one.predict(X), again.predict(X))
    assert one.history_ != whole.history_


def test_each_step_of_a_classifier_learns_both_labels():
    seen = []

    class Watched(FineTuneClassifier):
        def losses(self, network, frozen, batch):
            seen.append(batch)
            return super().losses(network, frozen, batch)

    X = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3), dtype=np.uint8)
    model = Watched(backbone=Asked(), epochs=2, batch_size=8, augment="mixed", random_state=0)
    model.fit(X, np.arange(24) % 4)
    assert len(seen) == 2 * 2 * 3
    assert int(model.network_.trunk.backbone.norm.num_batches_tracked) == 2 * 3
    for own, other in zip(seen[::2], seen[1::2], strict=True):
        assert own.x is other.x
        assert torch.equal(own.y, other.y.flip(0))


def test_a_share_of_a_mini_batch_has_pieces_and_labels_of_that_share():
    x, y = numbered(40), torch.arange(40)

    def served(augment):
        batches = Batches(
            x, y, n_known=0, batch_size=10, augment=augment, device=CPU, ranks=Ranks(1, 3)
        )
        batches.draw(torch.Generator().manual_seed(3))
        return [batches.at(positions) for _, positions in batches.shares()]

    assert any(batch.share[0] > 0 for batch in served("mixed"))
    for mix, whole in zip(served("mixed"), served("strong"), strict=True):
        assert torch.equal(mix.y, whole.y)
        same = (mix.x == whole.x) | (mix.x == whole.x.flip(0))
        assert same.all()


def test_mixed_images_were_learnt_mirrored_too():
    assert flips("mixed")
