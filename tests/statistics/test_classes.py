"""Statistics of classes: compensated for drift, in any order, at any size."""

import pytest
import torch

from lmrc.nets.multihead import MultiHead
from lmrc.statistics import classifiers, covariances
from lmrc.statistics.classes import ClassStatistics, Summary
from lmrc.statistics.covariances import COVARIANCES, RANK
from lmrc.statistics.drift import Drift, LinearMap

KINDS = list(COVARIANCES)
WIDTH = 40


def draws(seed, n=300, rotations=4, width=WIDTH, decades=3):
    """Features of a class, with directions of their own, the last so many decades shorter.

    Over three decades a low rank loses nothing; over half a one it loses much.
    """
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=generator, dtype=torch.float64) / width**0.5
    centre = torch.randn(rotations, 1, width, generator=generator, dtype=torch.float64)
    noise = torch.randn(rotations, n, width, generator=generator, dtype=torch.float64)
    scales = torch.logspace(0, -decades, width, dtype=torch.float64)
    return centre + (noise * scales) @ mix


def learnt(kind, seeds=(0, 1, 2), **form):
    statistics = ClassStatistics.empty(kind, 4, form.get("width", WIDTH))
    for row, seed in enumerate(seeds):
        features = draws(seed, **form)
        statistics = statistics.with_class(row, Summary.of(features, features.shape[1]))
    return statistics


def assert_near(one, other, tolerance=1e-4):
    torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_means_and_covariances_are_those_of_the_features(kind, monkeypatch):
    monkeypatch.setattr(covariances, "RANK", WIDTH)  # a low rank is exact where it is none
    statistics = learnt(kind)
    matrices = []
    for row in range(3):
        features = draws(row)
        assert_near(statistics.means[row].double(), features.mean(dim=1))
        centred = (features - features.mean(dim=1, keepdim=True)).flatten(0, 1)
        matrices.append(centred.T @ centred / len(centred))
    mean = torch.stack(matrices).mean(dim=0)
    assert_near(statistics.covariances.mean().diagonal(), mean.diagonal())
    if kind != "shared":
        for row, matrix in enumerate(matrices):
            assert_near(statistics.covariances.matrix(row), matrix)


@pytest.mark.parametrize("kind", KINDS)
def test_a_linear_drift_is_followed(kind):
    """Fitted on other classes' features, the map carries the statistics to where they belong."""
    generator = torch.Generator().manual_seed(9)
    rotation = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator).double()).Q
    weight = rotation + 0.1 * torch.eye(WIDTH)
    bias = torch.randn(WIDTH, generator=generator).double()
    seen = 3 * torch.randn(4000, WIDTH, generator=generator).double() @ rotation + 1
    drift = Drift(WIDTH).add(seen[:1000], seen[:1000] @ weight + bias)
    found = drift.add(seen[1000:], seen[1000:] @ weight + bias).fit()
    compensated = learnt(kind).mapped(found)
    compensated.check(3, 4, WIDTH)
    exact = LinearMap(weight, bias)
    for row in range(3):
        assert_near(compensated.means[row].double(), exact(draws(row).mean(dim=1)), 0.08)
    assert_near(
        compensated.covariances.mean(), weight.T @ learnt(kind).covariances.mean() @ weight, 0.01
    )


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_drift_nothing_moves(kind):
    before = learnt(kind, decades=0.5)
    seen = draws(7).flatten(0, 1)
    after = before
    for _ in range(5):
        after = after.mapped(Drift(WIDTH).add(seen, seen).fit())
    assert_near(after.means, before.means, 1e-5)
    for row in range(3):
        assert_near(after.covariances.matrix(row), before.covariances.matrix(row), 1e-5)


def test_the_drift_is_a_ridge_regression_towards_the_identity():
    old, new = draws(7, decades=1)[0], 3 + draws(8, decades=1)[0]
    g = old.T.cov(correction=0)
    h = (old - old.mean(dim=0)).T @ (new - new.mean(dim=0)) / len(old)
    ridge = 0.01 * g.diagonal().mean() * torch.eye(WIDTH)
    weight = torch.linalg.solve(g + ridge, h + ridge)
    for scale in (1.0, 1e-3):  # the unit of the features makes no difference
        found = Drift(WIDTH).add(scale * old, scale * new).fit()
        assert_near(found.weight, weight)
        assert_near(found(scale * old).mean(dim=0) / scale, new.mean(dim=0))


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_covariance_is_the_mean_of_the_classes(kind):
    found = learnt(kind, decades=0.5).covariances
    mean = torch.stack([found.matrix(row) for row in range(3)]).mean(dim=0)
    assert_near(found.mean(), mean, 1e-6)


def test_a_low_rank_is_kept_through_a_drift_and_variances_are_exact():
    """Features that spread nearly alike in all directions, so that many are cut."""
    generator = torch.Generator().manual_seed(0)
    even = torch.randn(1, 5000, WIDTH, generator=generator, dtype=torch.float64)
    even[..., 0] *= 4  # one direction that stands out
    before = ClassStatistics.empty("low-rank", 1, WIDTH).with_class(0, Summary.of(even, 5000))
    assert_near(before.covariances.matrix(0).diagonal(), even[0].var(dim=0, correction=0))
    weight = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator).double()).Q
    after = before.mapped(LinearMap(weight, torch.zeros(WIDTH).double()))
    assert after.covariances.tensors()["factors"].shape == (1, WIDTH, RANK)
    exact, found = weight.T @ before.covariances.matrix(0) @ weight, after.covariances.matrix(0)
    assert_near(found.diagonal(), exact.diagonal())
    drawn = before.covariances.sampler(1, generator)(20_000)[0].double()
    assert_near(drawn.var(dim=0), even[0].var(dim=0), 0.05)
    along = weight[0]  # where the one direction lies now
    assert_near(along @ found @ along, along @ exact @ along, 0.01)


def test_drift_compensation_gives_the_same_bits_with_any_number_of_threads():
    statistics, threads = learnt("low-rank", width=200), torch.get_num_threads()
    drift = LinearMap(torch.eye(200).double() + 0.01, torch.zeros(200).double())
    compensated = []
    for n in (1, 3):
        torch.set_num_threads(n)
        compensated.append(statistics.mapped(drift).tensors())
    torch.set_num_threads(threads)
    assert all(torch.equal(compensated[0][name], compensated[1][name]) for name in compensated[0])


def test_directions_never_seen_to_move_stay():
    seen = draws(7).flatten(0, 1)
    seen[:, 5] = 0.3  # a feature that does not vary
    found = Drift(WIDTH).add(seen, seen).fit()
    assert_near(found.weight, torch.eye(WIDTH).double(), 1e-8)
    still = torch.ones(3, WIDTH).double()
    assert_near(Drift(WIDTH).add(still, still + 1).fit()(still), still + 1, 1e-8)


@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
@pytest.mark.parametrize("noise", [0, 1e-7])
def test_inputs_that_are_all_alike_move_no_direction(scale, noise):
    """As black images are: how their features vary is rounding, and no hint of a drift."""
    before, after = (scale * draws(seed, n=1)[0].expand(1000, -1) for seed in (0, 1))
    before, after = (x * (1 + noise * draws(9, n=1000)[0]) for x in (before, after))
    found = Drift(WIDTH).add(before, after).fit()
    assert_near(found.weight, torch.eye(WIDTH).double(), 1e-4)
    assert_near(found(before[0]) / scale, after[0] / scale, 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_classes_does_not_matter(kind):
    one, other = learnt(kind, (0, 1, 2)), learnt(kind, (2, 0, 1))
    assert_near(one.means, other.means[[1, 2, 0]], 1e-6)
    assert_near(one.covariances.mean(), other.covariances.mean(), 1e-5)
    for row, same in enumerate((1, 2, 0)):
        assert_near(one.covariances.matrix(row), other.covariances.matrix(same), 1e-5)


def test_a_class_that_comes_again_counts_by_its_images():
    whole, (first, rest) = draws(0), draws(0).split([100, 200], dim=1)
    at_once = ClassStatistics.empty("full", 4, WIDTH).with_class(0, Summary.of(whole, 300))
    in_parts = ClassStatistics.empty("full", 4, WIDTH).with_class(0, Summary.of(first, 100))
    in_parts = in_parts.with_class(0, Summary.of(rest, 200))
    assert in_parts.counts.tolist() == [300]
    assert_near(in_parts.means, at_once.means, 1e-5)
    assert_near(in_parts.covariances.matrix(0), at_once.covariances.matrix(0), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_that_comes_again_leaves_the_others_as_they_are(kind):
    before = learnt(kind)
    after = before.with_class(0, Summary.of(draws(5), 300))
    after.check(3, 4, WIDTH)
    assert_near(after.means[1:], before.means[1:], 0)
    assert after.counts.tolist() == [600, 300, 300]
    if "shared" not in kind:  # else it is shared with them
        for row in (1, 2):
            assert_near(after.covariances.matrix(row), before.covariances.matrix(row), 0)


def test_of_a_shared_covariance_a_class_that_comes_again_is_one_of_the_classes():
    often, third = learnt("shared", (0, 1)), Summary.of(draws(2), 300)
    for _ in range(3):
        often = often.with_class(1, Summary.of(draws(1), 300))
    mean = often.covariances.mean()
    assert_near(often.with_class(2, third).covariances.mean(), mean + (third.covariance - mean) / 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("width", [RANK, WIDTH])  # the narrow ones have no direction to spare
def test_fewer_images_than_features_do_no_harm(kind, n, width):
    before, after = (draws(seed, width=width)[0] for seed in (3, 4))
    statistics = learnt(kind, n=n, width=width).mapped(Drift(width).add(before, after).fit())
    deviations = statistics.covariances.sampler(3, torch.Generator().manual_seed(0))(5)
    assert deviations.shape == (3, 5, width)
    assert deviations.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_deviations_are_drawn_with_the_covariance(kind):
    generator = torch.Generator().manual_seed(9)
    map_ = torch.randn(WIDTH, WIDTH, generator=generator).double() / WIDTH**0.5
    before = learnt(kind)
    statistics = before.mapped(LinearMap(map_, map_[0]))
    for row in range(3) if kind != "low-rank" else ():  # which is cut again
        expected = map_.T @ before.covariances.matrix(row) @ map_
        assert_near(statistics.covariances.matrix(row), expected, 1e-5)
    drawn = statistics.covariances.sampler(3, torch.Generator().manual_seed(0))(20_000).double()
    for row in range(3):
        assert_near(drawn[row].T.cov(), statistics.covariances.matrix(row), 0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_does_not_decide_what_is_drawn(kind):
    """Of equal variances any directions will do, with either sign: they come as they come."""
    generator = torch.Generator().manual_seed(0)
    noise = 1e-9 * torch.randn(WIDTH, WIDTH, generator=generator).double()
    spread = torch.cat([torch.full((RANK,), 2.0), torch.ones(WIDTH - RANK)]).double().diag()
    drawn = []
    for matrix in (spread, spread + noise + noise.T):
        found = COVARIANCES[kind].empty(WIDTH).updated(0, matrix)
        drawn.append(found.sampler(1, torch.Generator().manual_seed(0))(5))
    assert_near(*drawn, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_of_other_classes_are_put_behind(kind):
    first = learnt(kind, (0,))
    behind = first.emptied()
    behind.check(0, 4, WIDTH)
    for row, seed in enumerate((1, 2)):
        behind = behind.with_class(row, Summary.of(draws(seed), 300))
    found, expected = first.extended(behind), learnt(kind)
    for name, tensor in expected.tensors().items():
        assert_near(found.tensors()[name], tensor, 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_is_taken_out(kind):
    rest = learnt(kind).without(1)
    assert_near(rest.means, learnt(kind, (0, 2)).means, 1e-6)
    assert len(rest.counts) == 2
    rest.check(2, 4, WIDTH)
    if kind != "shared":
        assert_near(rest.covariances.matrix(1), learnt(kind).covariances.matrix(2), 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_read_back(kind):
    statistics = learnt(kind)
    saved = {name: tensor.clone() for name, tensor in statistics.tensors().items()}
    again = ClassStatistics.from_tensors(kind, saved)
    assert type(again.covariances) is COVARIANCES[kind]
    assert_near(again.covariances.matrix(1), statistics.covariances.matrix(1), 0)
    assert_near(again.means, statistics.means, 0)
    assert again.counts.tolist() == [300] * 3
    again.check(3, 4, WIDTH)
    with pytest.raises(ValueError, match="is not of shape"):
        again.check(4, 4, WIDTH)
    for name, tensor in saved.items():
        wrong = ClassStatistics.from_tensors(kind, saved | {name: tensor.double()})
        with pytest.raises(ValueError, match=f"{name} is not of shape .* in float32"):
            wrong.check(3, 4, WIDTH)


@pytest.mark.parametrize("kind", KINDS)
def test_those_of_no_class_are_of_none(kind):
    empty = ClassStatistics.empty(kind, 4, WIDTH)
    empty.check(0, 4, WIDTH)  # raises nothing
    assert len(empty.counts) == len(empty.means) == 0
    with pytest.raises(ValueError, match="counts is not of shape"):
        empty.check(1, 4, WIDTH)


def test_a_low_rank_of_none_is_refused():
    saved = learnt("low-rank").tensors()
    wrong = ClassStatistics.from_tensors("low-rank", saved | {"factors": saved["factors"][..., :0]})
    with pytest.raises(ValueError, match="factors is not of shape"):
        wrong.check(3, 4, WIDTH)


def test_a_hundred_classes_take_under_ten_megabytes_with_tuned_heads_and_all(monkeypatch):
    """What a model keeps, by the shapes of it: a hundred classes are not learnt for this."""
    none = ClassStatistics.empty("low-rank", 4, 768).tensors()
    shapes = {name: (100, *tensor.shape[1:]) for name, tensor in none.items()}
    kept = {name: torch.ones(shape) for name, shape in shapes.items()}
    statistics = ClassStatistics.from_tensors("low-rank", kept)
    statistics.check(100, 4, 768)
    monkeypatch.setattr(classifiers, "STEPS", 0)
    heads = MultiHead(512, 100, n_heads=10)
    settings = {"scale": 16.0, "non_negative": True, "generator": torch.Generator()}
    kept |= classifiers.finetune(heads, torch.zeros(100, 4, 100), statistics, [10] * 10, **settings)
    assert kept.keys() >= {"factors", "lda_weight", "head_weight"}
    assert sum(tensor.nbytes for tensor in kept.values()) < 10e6
