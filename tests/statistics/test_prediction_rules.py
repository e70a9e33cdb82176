import pytest
import torch
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from lmrc.nets.multihead import MultiHead
from lmrc.statistics import classifiers, prediction_rules
from lmrc.statistics.classes import ClassStatistics, Summary, concatenated
from lmrc.statistics.prediction_rules import PredictionRules

WIDTH, SIZES = 12, [2, 1, 2]


@pytest.fixture(autouse=True)
def fewer_steps(monkeypatch):
    monkeypatch.setattr(classifiers, "STEPS", 100)


def features(c, n=200, rotations=4):
    generator = torch.Generator().manual_seed(c)
    centre = 3 * torch.randn(rotations, 1, WIDTH, generator=generator)
    return (centre + torch.randn(rotations, n, WIDTH, generator=generator)).double()


def statistics():
    kept = ClassStatistics.empty("low-rank", 4, WIDTH)
    for c in range(5):
        kept = kept.with_class(c, Summary.of(features(c), 200))
    return kept


def heads():
    torch.manual_seed(0)
    head = MultiHead(WIDTH, 20)
    for _ in SIZES:
        head.add_head()
    return head


VECTORS = F.normalize(torch.randn(5, 4, 20, generator=torch.Generator().manual_seed(9)), dim=-1)


def tuned(head, kept, *, sizes=SIZES, vectors=VECTORS, non_negative=False, **settings):
    generator = torch.Generator().manual_seed(3)
    settings |= {"scale": 16.0, "non_negative": non_negative, "generator": generator}
    return classifiers.finetune(head, vectors, kept, sizes, **settings)


def wta(head, x, kept=None):
    """Return the scores of Winner-Take-All, by fine-tuned heads where there are some."""
    rule = "finetuned" if kept else "wta"
    return PredictionRules(head, VECTORS, SIZES, kept or {}).scores([rule], x)[rule]


def accuracy(score):
    right = [(score(features(c, 50).float()).argmax(dim=1) == c).float().mean() for c in range(5)]
    return torch.stack(right).mean().item()


def test_the_discriminant_is_bayes_rule_for_gaussians_of_one_covariance():
    kept = statistics()
    lda = classifiers.discriminant(kept)
    covariance = kept.covariances.mean()
    shrunk = 0.9 * covariance + 0.1 * covariance.diagonal().mean() * torch.eye(WIDTH)
    inverse = torch.linalg.inv(shrunk)
    x = features(1, 7)
    means = kept.means.double().transpose(0, 1)
    away = x[:, :, None] - means[:, None]  # (rotations, n, classes, width)
    distance = torch.einsum("tncw,wv,tncv->tnc", away, inverse, away)
    got = prediction_rules.linear(lda, "lda", x.float())
    expected = -distance.mean(dim=0) / 2
    difference = got.double() - expected  # what is the same for all classes is left out
    torch.testing.assert_close(difference, difference[:, :1].expand(-1, 5), atol=1e-3, rtol=1e-3)
    assert accuracy(lambda x: prediction_rules.linear(lda, "lda", x)) > 0.99


def test_tuned_heads_tell_all_classes_apart_where_the_heads_alone_do_not():
    head, kept = heads(), statistics()
    before = head.weight.clone()
    first = tuned(head, kept)
    assert torch.equal(head.weight, before)
    assert all(torch.equal(first[name], again) for name, again in tuned(head, kept).items())
    untuned = accuracy(lambda x: wta(head, x))
    assert accuracy(lambda x: wta(head, x, first)) > untuned + 0.3


def test_real_features_teach_what_statistics_have_wrong():
    """The statistics of two classes are not where their features are; a few real ones are."""
    head, kept = heads(), statistics()
    means = kept.means.clone()
    means[[0, 3]] = means[[0, 3]].roll(1, dims=-1)
    wrong = ClassStatistics(kept.counts, means, kept.covariances)

    def right(real):
        found = tuned(head, wrong, real=real)
        return [
            accuracy(lambda x: wta(head, x, found)),
            accuracy(lambda x: prediction_rules.linear(found, "linear", x)),
        ]

    few = {c: features(c, 6 + c).float() for c in (0, 3)}  # as many as there are
    for part in few.values():
        part[:, 0] = 0.0  # a black image, say: the others count, too
    assert max(right({})) < 0.7
    assert min(right(few)) > 0.9


def test_real_features_leave_room_for_pseudo_features():
    """As where the exemplars of all classes are black images, say: they tell nothing."""
    head, kept = heads(), statistics()
    found = tuned(head, kept, real={c: torch.zeros(4, 3, WIDTH) for c in range(5)})
    assert accuracy(lambda x: wta(head, x, found)) > 0.9


@pytest.mark.parametrize("non_negative", [True, False])
def test_pseudo_features_are_cut_at_zero_where_features_are_not_negative(non_negative, monkeypatch):
    """Of features that would all be negative nothing is left, and weights learn nothing from 0."""
    monkeypatch.setattr(classifiers, "STEPS", 3)
    head, kept = heads(), statistics()
    below = ClassStatistics(kept.counts, kept.means - 1000, kept.covariances)
    found = tuned(head, below, non_negative=non_negative)
    assert torch.equal(found["head_weight"], head.weight) is non_negative


def test_the_linear_classifier_begins_as_the_discriminant(monkeypatch):
    monkeypatch.setattr(classifiers, "STEPS", 0)
    found = tuned(heads(), statistics())
    for part in ("weight", "bias"):
        torch.testing.assert_close(found[f"linear_{part}"], found[f"lda_{part}"])


def test_the_rate_of_tuning_falls_to_nothing(monkeypatch):
    monkeypatch.setattr(classifiers, "STEPS", 20)
    rates = []

    def note(optimiser, *_):
        rates.append(optimiser.param_groups[0]["lr"])

    hook = register_optimizer_step_post_hook(note)
    try:
        tuned(heads(), statistics())
    finally:
        hook.remove()
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.01 * rates[0]


def test_a_tuned_discriminant_knows_that_classes_spread_differently(monkeypatch):
    """One covariance for all draws the border half-way; it belongs near the narrow class."""
    monkeypatch.setattr(classifiers, "STEPS", 300)
    kept = ClassStatistics.empty("full", 1, 2)
    wide, narrow = torch.tensor([4.0, 0.1]), torch.tensor([0.1, 0.1])
    for row, (middle, spread) in enumerate([(0.0, wide), (6.0, narrow)]):
        mean = torch.tensor([[middle, 0.0]], dtype=torch.float64)
        kept = kept.with_class(row, Summary(mean, spread.diag().double(), 100.0))
    head = MultiHead(2, 4, n_heads=1)
    vectors = F.normalize(torch.randn(2, 1, 4), dim=-1)
    found = tuned(head, kept, sizes=[2], vectors=vectors)
    at = torch.tensor([[[3.6, 0.0], [6.0, 0.0]]])  # beyond the half, nearer to the wide class
    assert prediction_rules.linear(found, "lda", at).argmax(dim=1).tolist() == [1, 1]
    generator, cpu = torch.Generator().manual_seed(3), torch.device("cpu")
    alone = classifiers.finetune_linear(kept, non_negative=False, generator=generator, device=cpu)
    for tuned_to in (found, alone):
        assert prediction_rules.linear(tuned_to, "linear", at).argmax(dim=1).tolist() == [0, 1]


def test_views_of_an_image_are_averaged():
    head, kept = heads(), statistics()
    found = tuned(head, kept)
    x, again = features(0, 6).float(), features(1, 6).float()

    def scores(x, **settings):
        rules = PredictionRules(head, VECTORS, SIZES, found)
        return rules.scores(("wta", "finetuned"), x, **settings)

    one, other = scores(x), scores(again)
    for way, got in scores(torch.cat([x, again], dim=1), views=2).items():
        torch.testing.assert_close(got, (one[way] + other[way]) / 2)


def test_heads_are_given_the_last_features_alone():
    head, x = heads(), features(0, 6).float()
    more = torch.cat([torch.full((4, 6, 3), 7.0), x], dim=-1)
    torch.testing.assert_close(wta(head, more), wta(head, x))


def test_winner_takes_all_is_the_mean_over_rotations_of_each_ones_own_vector():
    head, x = heads(), features(0, 6).float()
    head_of = [0, 0, 1, 2, 2]
    expected = torch.stack(
        [
            sum((head(x[r])[:, k] * VECTORS[c, r]).sum(dim=1) for r in range(4)) / 4
            for c, k in enumerate(head_of)
        ],
        dim=1,
    )
    torch.testing.assert_close(wta(head, x), expected)


def test_scores_of_two_classes_say_how_near_they_are_and_both_goes_by_more_than_rounding():
    """Standardised, two scores are always 1 and −1: the sum of two ways that disagree is a tie."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 100, WIDTH, generator=generator)
    kept = {
        "linear_weight": torch.randn(1, 2, WIDTH, generator=generator),
        "linear_bias": torch.zeros(1, 2),
        "head_weight": torch.randn(1, 20, WIDTH, generator=generator),
        "head_bias": torch.zeros(1, 20),
    }
    head = MultiHead(WIDTH, 20, n_heads=1)
    vectors = F.normalize(torch.randn(2, 1, 20, generator=generator), dim=-1)
    kept |= {name.replace("linear", "lda"): kept[name] for name in ("linear_weight", "linear_bias")}
    kept |= {"class_means": torch.randn(1, 2, WIDTH, generator=generator)}
    kept |= {"ridge_weight": torch.randn(2, WIDTH + 10, generator=generator)}
    kept |= {"snapshot_weight": torch.randn(3, 1, 2, WIDTH, generator=generator)}
    kept |= {"snapshot_bias": torch.zeros(3, 1, 2)}
    more = torch.cat([x, torch.randn(1, 100, 3 * WIDTH, generator=generator)], dim=-1)
    ways = PredictionRules(head, vectors, [2], kept).scores(prediction_rules.RULES[1:], more)
    assert torch.equal(ways["snapshots"], ways["ensemble"])
    for scores in ways.values():
        assert len(scores.diff(dim=1).unique()) > 50  # near and far apart are not the same
    disagree = ways["linear"].argmax(dim=1) != ways["finetuned"].argmax(dim=1)
    margins = ways["ensemble"].diff(dim=1).abs()
    assert disagree.sum() > 20
    assert margins[disagree].median() > 0.01


def test_heads_and_linear_classifier_count_alike_whatever_their_scales(monkeypatch):
    monkeypatch.setattr(classifiers, "STEPS", 20)
    head, kept = heads(), statistics()
    found = tuned(head, kept)
    ways = PredictionRules(head, VECTORS, SIZES, found).scores(
        ("finetuned", "linear", "ensemble"), features(0, 6).float()
    )
    parts = [ways["ensemble"] - ways["linear"], ways["linear"]]
    for part in parts:
        torch.testing.assert_close(part.std(dim=1, correction=0), torch.ones(6))
    torch.testing.assert_close(parts[0].argsort(dim=1), ways["finetuned"].argsort(dim=1))


@pytest.mark.parametrize("joined", [False, True])
def test_each_snapshot_has_half_a_vote_besides_the_ensemble(joined, monkeypatch):
    monkeypatch.setattr(classifiers, "STEPS", 3)
    vectors = (1, 4 * WIDTH) if joined else (4, WIDTH)
    kept = ClassStatistics.empty("low-rank", *vectors)
    for c in range(5):
        found = concatenated(features(c)) if joined else features(c)
        kept = kept.with_class(c, Summary.of(found, 200))
    head = heads()
    tuned_to = tuned(head, kept)
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(2, vectors[0], 5, vectors[1], generator=generator)
    bias = torch.randn(2, vectors[0], 5, generator=generator)
    # Of six images two views each, by three networks: the newest comes first.
    x = torch.randn(3, 4, 2 * 6, WIDTH, generator=generator)
    rules = PredictionRules(
        head, VECTORS, SIZES, {**tuned_to, "snapshot_weight": weight, "snapshot_bias": bias}
    )
    got = rules.scores(("snapshots", "ensemble", "lda"), torch.cat([*x], dim=-1), views=2)
    newest = PredictionRules(head, VECTORS, SIZES, tuned_to).scores(("ensemble", "lda"), x[0], 2)
    for rule, expected in newest.items():
        torch.testing.assert_close(got[rule], expected)

    def standardised(scores):
        return (scores - scores.mean(1, keepdim=True)) / scores.std(1, keepdim=True, correction=0)

    expected = standardised(newest["ensemble"])
    for of_one, its_weight, its_bias in zip(x[1:], weight, bias, strict=True):
        each = concatenated(of_one) if joined else of_one
        scores = torch.einsum("rnw,rcw->rnc", each, its_weight) + its_bias[:, None]
        views = scores.mean(dim=0).view(2, 6, 5)
        expected = expected + 0.5 * standardised((views[0] + views[1]) / 2)
    torch.testing.assert_close(got["snapshots"], expected, atol=1e-4, rtol=1e-4)


def test_standardised_scores_of_one_class_are_no_nan():
    assert prediction_rules.standardised(torch.ones(3, 1)).tolist() == [[0.0]] * 3
