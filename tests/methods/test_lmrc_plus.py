"""LMRC+ on small images: rotations, statistics, and all that a model must do besides."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from lmrc import CapacityError, CapacityWarning, LMRCClassifier, LMRCPlusClassifier, load
from lmrc.checks import blobs
from lmrc.methods import base, lmrc_plus, prediction
from lmrc.methods.declared import switched_off
from lmrc.methods.persistence import model_from
from lmrc.methods.state import pack
from lmrc.nets import auto
from lmrc.nets.network import Frozen
from lmrc.statistics import covariances, gather
from lmrc.statistics.prediction_rules import RULES
from lmrc.store import folder
from lmrc.training.batches import MiniBatch
from lmrc.training.loop import TrainingError
from lmrc.training.objective import Objective

N = 12


def photographs():
    """Six classes, each of a colour with a bright corner that shows its rotation."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(6), N)
    colours = rng.integers(0, 200, (6, 1, 1, 3))
    X = colours[y] + rng.integers(-40, 40, (len(y), 8, 8, 3))
    X[:, :3, :3] += 90
    return np.clip(X, 0, 255).astype(np.uint8), y


#: Those of a model that learns all of them, but for the one that needs networks of earlier tasks.
USUAL = [rule for rule in RULES if rule not in ("snapshots", "ridge")]
X, Y = photographs()
TASKS = [(X[rows], Y[rows]) for rows in ((i == Y // 2) for i in range(3))]


def plus(**settings):
    quick = {"backbone": "mlp", "epochs": 2, "first_epochs": None, "batch_size": 16}
    quick |= {"first_learning_rate": None, "predict_with": "lda", "test_time_flip": False}
    return LMRCPlusClassifier(**quick | {"random_state": 0} | settings)


def taught(n_tasks=3, **settings):
    model = plus(**settings)
    for part in TASKS[:n_tasks]:
        model.partial_fit(*part)
    return model


def same(one, other):
    assert one.history_ == other.history_
    np.testing.assert_array_equal(one.similarities(X), other.similarities(X))
    for name in ("statistics_", "classifiers_", "earlier_"):
        mine, its = getattr(one, name), getattr(other, name)
        assert mine.keys() == its.keys()
        assert all(torch.equal(mine[key], its[key]) for key in mine)


@pytest.mark.parametrize("rotations", ["one", "all"])
def test_each_head_has_a_mapping_of_its_own(rotations):
    model = taught(rotations=rotations)
    vectors = model.label_vectors_
    assert vectors.shape == (6, 4, 100)
    for head in range(3):
        own = vectors[2 * head : 2 * head + 2].reshape(8, 100)
        cosines = own @ own.T
        assert (cosines[~np.eye(8, dtype=bool)] <= 0.15 + 1e-5).all()
    np.testing.assert_array_equal(taught(2, rotations=rotations).label_vectors_, vectors[:4])


def test_a_full_mapping_is_counted_for_each_head():
    """Eight vectors do not fit in R⁸ at 0.05; two heads of one class do, four vectors each."""
    tight = {"label_dim": 8, "threshold": 0.05, "max_tries": 3000, "on_full": "raise"}
    tight |= {"predict_with": "wta", "statistics": "none", "epochs": 1}
    with pytest.raises(CapacityError, match="of the 8 label vectors"):
        plus(**tight | {"label_dim": 4}).partial_fit(*TASKS[0])
    model = plus(**tight)
    for c in range(6):
        model.partial_fit(X[c == Y], Y[c == Y])
    assert model.label_vectors_.shape == (6, 4, 8)


def test_scores_without_statistics_are_the_mean_over_turns():
    model = taught(statistics="none", predict_with="wta")
    x = torch.from_numpy(X[:5]).permute(0, 3, 1, 2)
    with torch.no_grad():
        answers = [model.network_(torch.rot90(x, r, dims=(2, 3))).numpy() for r in range(4)]
    for c in range(6):
        cosines = [o[:, c // 2] @ model.label_vectors_[c, r] for r, o in enumerate(answers)]
        got = model.similarities(X[:5])[:, c]
        np.testing.assert_allclose(got, np.mean(cosines, axis=0), atol=1e-5)


def test_the_old_heads_are_held_on_the_rotated_images():
    model = taught(1)
    x, zeros = torch.from_numpy(X[:6]).permute(0, 3, 1, 2), torch.zeros(6, dtype=torch.long)
    batch = MiniBatch(x, zeros, torch.tensor([6, 0]), 2, True, rotation=zeros)
    old = Frozen(model.network_)
    seen = []
    old.encoder.register_forward_hook(lambda module, inputs, out: seen.append(inputs[0]))
    terms = Objective(model, model.network_, old)(batch)
    assert seen[0] is x
    torch.testing.assert_close(terms["response"], torch.full((6,), -3.0))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rotations": "one", "statistics": "shared"},
        {
            "statistics": "full",
            "objective": "both",
            "memory_per_class": 3,
            "augment": "jitter+cutout",
        },
    ],
    ids=str,
)
def test_a_saved_model_predicts_and_continues_the_same(tmp_path, settings):
    model = taught(2, **settings)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert type(again) is LMRCPlusClassifier
    same(again, model)
    for one in (model, again):
        one.partial_fit(*TASKS[2]).partial_fit(X[Y == 1], Y[Y == 1])
    same(again, model)
    assert model.statistics_["counts"].tolist() == [N, 2 * N, N, N, N, N]


def test_a_model_goes_on_with_the_rank_that_it_was_saved_with(tmp_path, monkeypatch):
    with monkeypatch.context() as then:
        then.setattr(covariances, "RANK", 24)
        model = taught(2)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    same(again, model)
    again.partial_fit(*TASKS[2])
    assert again.statistics_["factors"].shape == (6, 4 * 256, 24)


def test_tuned_heads_are_by_seed_saved_and_used_for_prediction_alone(tmp_path):
    model, again = taught(2, predict_with="ensemble"), taught(2, predict_with="ensemble")
    same(model, again)
    lda = taught(2)
    for one, other in zip(model.network_.parameters(), lda.network_.parameters(), strict=True):
        assert torch.equal(one, other)
    model.save(tmp_path / "m")
    for way in ("wta", "lda", "finetuned", "ensemble", "linear", "ncm"):
        loaded = load(tmp_path / "m").set_params(predict_with=way)
        expected = model.set_params(predict_with=way).similarities(X)
        np.testing.assert_array_equal(loaded.similarities(X), expected)
    told = r"for predict_with='finetuned'.* to 'wta' or 'lda' or 'ncm', or"
    with pytest.raises(ValueError, match=told):
        lda.set_params(predict_with="finetuned").predict(X)


@pytest.mark.parametrize(
    ("settings", "ways"),
    [
        ({"predict_with": "ensemble"}, USUAL),
        ({"predict_with": "linear", "test_time_flip": True, "augment": "crop+flip"}, USUAL),
        ({"predict_with": "lda", "rotations": "none"}, ["wta", "lda", "ncm"]),
        ({"predict_with": "wta", "statistics": "none"}, ["wta"]),
    ],
    ids=str,
)
def test_one_look_serves_all_ways_to_predict(settings, ways, monkeypatch):
    model = taught(2, **settings)
    expected = {way: model.set_params(predict_with=way).similarities(X) for way in ways}
    seen = []
    monkeypatch.setattr(
        model.network_.encoder,
        "forward",
        lambda x, f=model.network_.encoder.forward: seen.append(x) or f(x),
    )
    got = model.similarities_by_rule(X)
    assert list(got) == ways
    for way in ways:
        np.testing.assert_array_equal(got[way], expected[way])
    assert len(seen) == 1


def test_features_of_many_images_are_summed_up_part_by_part(monkeypatch):
    monkeypatch.setattr(gather, "AT_A_TIME", 5)
    whole = taught(statistics="full", augment="crop", memory_per_class=2)
    monkeypatch.setattr(gather, "TOGETHER", 2)
    parts = taught(statistics="full", augment="crop", memory_per_class=2)
    assert parts.statistics_["counts"].tolist() == [N] * 6
    for name, value in whole.statistics_.items():
        torch.testing.assert_close(parts.statistics_[name], value, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("predict_with", ["lda", "ensemble"])
def test_rotations_are_joined_in_statistics_and_nowhere_else(predict_with, tmp_path):
    settings = {"rotations": "all", "calibration_share": 0.1, "predict_with": predict_with}
    model, separate = (taught(2, **settings, join_rotations=joins) for joins in (True, False))
    weights = separate.network_.state_dict()
    assert all(torch.equal(t, weights[name]) for name, t in model.network_.state_dict().items())
    width = separate.statistics_["means"].shape[2]
    assert model.statistics_["means"].shape == (4, 1, 4 * width)
    assert model.statistics_["factors"].shape == (4, 4 * width, 12)
    assert taught(1, statistics="full").statistics_["means"].shape == (2, 4, width)
    assert not np.allclose(model.similarities(X), separate.similarities(X))
    model.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    same(model, loaded)
    np.testing.assert_array_equal(model.predict_proba(X), loaded.predict_proba(X))
    for one in (model, loaded):
        one.partial_fit(*TASKS[2])
        one.partial_fit(*TASKS[0])  # known classes again
    same(model, loaded)
    model.forget(0)
    assert 0 not in model.predict(X)
    assert model.statistics_["means"].shape[0] == 5
    assert np.isfinite(model.unknown_scores(X)).all()


def test_networks_of_earlier_tasks_are_kept_for_drift_compensation_alone(tmp_path):
    model, without = (taught(keep_encoders=keeps) for keeps in (True, False))
    weights = without.network_.state_dict()
    assert all(torch.equal(t, weights[name]) for name, t in model.network_.state_dict().items())
    assert not without.earlier_
    assert model.earlier_["tasks"].tolist() == [0, 0, 1, 1, 2, 2]
    assert {name.split(".")[0] for name in model.earlier_} == {"means", "tasks", "0", "1"}
    moved, others = model.statistics_["means"], without.statistics_["means"]
    assert not torch.allclose(moved[:2], others[:2], atol=1e-4)  # of the first task
    torch.testing.assert_close(moved[2:], others[2:])  # others have had one step at most
    model.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    same(model, loaded)
    for one in (model, loaded):
        one.partial_fit(*TASKS[0])  # known classes again
    same(model, loaded)
    assert model.earlier_["tasks"].tolist() == [3, 3, 1, 1, 2, 2]
    assert not any(name.startswith("0.") for name in model.earlier_)
    model.forget(2)
    assert model.earlier_["tasks"].tolist() == [3, 3, 1, 2, 2]
    loaded.set_params(keep_encoders=False).partial_fit(*TASKS[1])
    assert not loaded.earlier_
    assert not taught(statistics="none", predict_with="wta").earlier_


class Huge(nn.Module):
    """Numbers that half precision cannot hold, and tensors of other types."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(8 * 8 * 3, 6), nn.BatchNorm1d(6)
        self.register_buffer("mask", torch.tensor([-1e9]))
        self.register_buffer("steps", torch.tensor([2**40]))

    def forward(self, x):
        return self.norm(1e4 * self.first(x.flatten(1))).maximum(self.mask)


@pytest.mark.parametrize("backbone", [Huge, nn.Flatten])
def test_any_backbone_may_be_kept(backbone, tmp_path):
    model = taught(backbone=backbone())
    assert all(t.isfinite().all() for t in model.earlier_.values())
    model.save(tmp_path / "m")
    again = load(tmp_path / "m", backbone=backbone())
    for one in (model, again):
        one.partial_fit(*TASKS[0])
    same(model, again)


def test_a_model_that_kept_none_begins_to_keep_encoders():
    model = taught(2, keep_encoders=False).set_params(keep_encoders=True)
    model.partial_fit(*TASKS[2])
    assert model.earlier_["tasks"].tolist() == [1, 1, 1, 1, 2, 2]
    model.partial_fit(*TASKS[0])
    assert model.score(X, Y) > 0.5


def test_a_model_of_before_rotations_were_joined_goes_on_without():
    description, tensors = pack(taught(2, join_rotations=False, keep_encoders=False))
    for name in ("join_rotations", "keep_encoders"):
        del description["settings"][name]
    again = model_from("m", description, tensors)
    again.partial_fit(*TASKS[2])
    assert again.statistics_["means"].shape == (6, 4, 256)


def test_a_forgotten_class_leaves_no_statistics():
    model = taught(predict_with="ensemble")
    model.forget(2).forget(3).forget(0)  # the second head goes with its last class
    assert model.classes_.tolist() == [1, 4, 5]
    assert model.label_vectors_.shape == (3, 4, 100)
    assert {len(model.statistics_[k]) for k in ("counts", "means", "factors", "variance")} == {3}
    assert model.classifiers_["lda_weight"].shape[1] == 3
    assert len(model.classifiers_["head_weight"]) == len(model.network_.head) == 2
    model.check_saved()
    assert set(model.predict(X)) <= {1, 4, 5}
    model.partial_fit(*TASKS[1])
    assert model.classes_.tolist() == [1, 4, 5, 2, 3]


def test_exemplars_may_lack_a_class_and_may_be_dropped():
    model = taught(2, predict_with="ensemble", memory_per_class=3).forget(1)
    model.partial_fit(*TASKS[2])  # the exemplars are of 0, 2 and 3
    assert model.history_[-1]["balanced"] > 0
    model.partial_fit(X[Y == 2], Y[Y == 2])  # known classes alone
    assert np.bincount(model.memory_.y).tolist() == [3] * 5
    model.set_params(memory_per_class=0).partial_fit(*TASKS[0])
    assert model.memory_ is None
    model.set_params(memory_per_class=3).partial_fit(X[Y == 4], Y[Y == 4])  # without exemplars
    assert sorted(model.classes_) == list(range(6))
    assert np.isfinite(model.similarities(X)).all()


def test_exemplars_come_as_often_as_exemplar_repeats_says_and_are_stored_once(monkeypatch):
    served = []

    class Noted(base.Batches):
        def __init__(self, x, y, **settings):
            served.append(np.bincount(y).tolist())
            super().__init__(x, y, **settings)

    monkeypatch.setattr(base, "Batches", Noted)
    model = taught(memory_per_class=3, exemplar_repeats=2)
    assert served == [[N, N], [6, 6, N, N], [6, 6, 6, 6, N, N]]
    assert np.bincount(model.memory_.y).tolist() == [3] * 6
    model.set_params(memory_per_class=1).partial_fit(*TASKS[0])
    assert served[-1] == [N + 2, N + 2, 2, 2, 2, 2]
    model.set_params(memory_per_class=0).partial_fit(*TASKS[1])  # nothing is stored any more
    assert served[-1] == [0, 0, N, N]


def test_statistics_of_an_old_model_are_left_alone_by_a_batch_that_fails():
    model = taught(1)
    before = {name: tensor.clone() for name, tensor in model.statistics_.items()}
    with pytest.raises(ValueError, match=r"NaN|finite"):
        model.partial_fit(np.full((4, 8, 8, 3), np.nan), [7, 7, 8, 8])
    assert all(torch.equal(before[name], model.statistics_[name]) for name in before)


@pytest.mark.parametrize("rotations", ["one", "all"])
def test_what_cannot_be_rotated_is_refused(rotations):
    vectors, y = blobs()[0]
    with pytest.raises(ValueError, match="rotations='none'"):
        plus(rotations=rotations).fit(vectors, y)
    with pytest.raises(ValueError, match="square images"):
        plus(rotations=rotations).fit(X[:, :, :6], Y)


def test_statistics_choose_the_right_head_where_the_heads_alone_do_not():
    model = taught(epochs=6, augment="none")
    assert model.score(X, Y) > model.set_params(predict_with="wta").score(X, Y)


def test_mirror_images_are_looked_at_where_they_were_learnt_and_nowhere_else():
    flipping = taught(2, predict_with="wta", augment="crop+flip", test_time_flip=True)
    assert_near(flipping.similarities(X), flipping.similarities(X[:, :, ::-1]))
    alone = flipping.set_params(test_time_flip=False).similarities(X)
    assert np.abs(alone - flipping.similarities(X[:, :, ::-1])).max() > 0.01
    expected = (alone + flipping.similarities(X[:, :, ::-1])) / 2
    assert_near(flipping.set_params(test_time_flip=True).similarities(X), expected)
    cropping = taught(2, predict_with="wta", augment="crop", test_time_flip=True)
    seen = cropping.similarities(X)
    assert_near(seen, cropping.set_params(test_time_flip=False).similarities(X))


def test_rotated_and_flipped_images_count_in_the_memory_used(monkeypatch):
    monkeypatch.setattr(prediction, "PREDICT_ELEMENTS", 160 * X[0].size)
    model = taught(1, augment="crop+flip", test_time_flip=True)
    at_once = []
    model.network_.encoder.register_forward_hook(
        lambda _, inputs, __: at_once.append(len(inputs[0]))
    )
    model.predict(X)
    assert max(at_once) == 160
    assert sum(at_once) == len(X) * 4 * 2


def assert_near(one, other):
    np.testing.assert_allclose(one, other, atol=1e-5)


class TwoLayers(nn.Module):
    """A backbone that offers the features of its last two layers."""

    width_before = 5

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8 * 8 * 3, 5), nn.Linear(5, 7)

    def forward(self, x):
        return self.last_two(x)[:, 5:]

    def last_two(self, x):
        before = self.first(x.flatten(1)).relu()
        return torch.cat([before, self.second(before).relu()], dim=1)


def test_statistics_of_two_layers_are_of_both(tmp_path):
    model = taught(2, backbone=TwoLayers, predict_with="ensemble")
    assert model.statistics_["means"].shape == (4, 1, 4 * 12)
    x = torch.from_numpy(X[Y == 3]).permute(0, 3, 1, 2)  # learnt last: nothing moved since
    plain = taught(2, backbone=TwoLayers, augment="none")
    with torch.no_grad():
        expected = plain.network_.encoder.backbone.last_two(plain.network_.encoder.normalise(x))
    assert_near(plain.statistics_["means"][3, 0, :12], expected.mean(dim=0))
    model.save(tmp_path / "m")
    loaded = load(tmp_path / "m", backbone=TwoLayers)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    one_layer = taught(1, backbone=TwoLayers, feature_layers=1)
    assert one_layer.statistics_["means"].shape[-1] == 4 * 7
    with pytest.raises(ValueError, match="feature_layers"):
        one_layer.set_params(feature_layers=2).partial_fit(*TASKS[1])
    assert taught(1, backbone="mlp").statistics_["means"].shape[-1] == 4 * 256  # which offers one


def test_the_first_task_may_have_its_own_epochs_and_learning_rate():
    rates = {"learning_rate": 0.01, "first_learning_rate": 0.03, "schedule": "halving"}
    model = taught(2, epochs=1, first_epochs=2, halve_at=(), **rates)
    found = [(entry["task"], entry["learning_rate"]) for entry in model.history_]
    assert found == [(0, 0.03), (0, 0.03), (1, 0.01)]


def test_colour_images_get_cutmix_where_training_is_long(monkeypatch, tmp_path):
    short = taught(1)
    assert (short.augmentation_, "cutmix" in short.history_[-1]) == ("jitter+cutout", False)
    n_images = len(TASKS[1][1])
    monkeypatch.setattr("lmrc.methods.lmrc_plus.CUTMIX_FROM", 2)  # mini-batches
    before = taught(1, batch_size=n_images, epochs=2, first_epochs=1)
    assert before.augmentation_ == "jitter+cutout"
    after = before.partial_fit(*TASKS[1])
    assert [entry.get("cutmix") for entry in after.history_] == [None, 0.5, 0.5]
    after.save(tmp_path / "m")
    assert load(tmp_path / "m").augmentation_ == "cutmix"
    description, tensors = folder.read(tmp_path / "m")
    del description["settings"]["strong_augment"]  # as in models that are older than it
    assert model_from("m", description, tensors).augmentation_ == "cutmix"


def test_an_augmentation_that_is_set_is_used():
    assert taught(1, augment="crop").augmentation_ == "crop"
    assert taught(1, augment="cutmix", strong_augment=False).augmentation_ == "cutmix"
    grey = plus().partial_fit(X[..., 0], Y)
    assert grey.augmentation_ == "none"


def test_the_threshold_in_force_is_the_highest_of_all_heads():
    """With rotations each head has a mapping of its own: a small one after a full one."""
    model = plus(label_dim=10, max_tries=200, rotations="all")
    model.seed_ = model.n_tasks_ = 0
    with pytest.warns(CapacityWarning):
        model._new_label_vectors(6)
    relaxed = model.threshold_
    assert relaxed > 0.15
    model._new_label_vectors(1)
    assert model.threshold_ == relaxed


@pytest.mark.parametrize("memory", [0, 3])
def test_with_its_extensions_off_it_is_lmrc_bit_for_bit(memory):
    how = {"backbone": "cnn", "epochs": 2, "batch_size": 8, "memory_per_class": memory}
    how |= {"random_state": 0}
    off = LMRCPlusClassifier(**switched_off() | how)
    paper = LMRCClassifier(**how)
    for part in [*TASKS, TASKS[0]]:
        off.partial_fit(*part)
        paper.partial_fit(*part)
    assert off.history_ == paper.history_
    np.testing.assert_array_equal(off.similarities(X), paper.similarities(X))
    np.testing.assert_array_equal(off.label_vectors_, paper.label_vectors_)


@pytest.fixture(scope="module")
def photographs():
    """Small images of four colours."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 6)
    X = rng.integers(0, 90, (24, 32, 32, 3), dtype=np.uint8)
    X[np.arange(24), :, :, np.minimum(y, 2)] += 150
    return X, y


def taught_in_two(photographs, **settings):
    X, y = photographs
    model = LMRCPlusClassifier(
        backbone="efficientnet-lite0@32", epochs=1, first_epochs=1, projections=20, random_state=0
    )
    model.set_params(**settings).partial_fit(X[y < 2], y[y < 2])
    first = {name: t.clone() for name, t in model.network_.encoder.backbone.state_dict().items()}
    return model.partial_fit(X[y >= 2], y[y >= 2]), first


@pytest.mark.usefixtures("small_pretrained")
def test_a_pretrained_backbone_is_adapted_to_the_first_task_and_then_held(photographs, monkeypatch):
    """By seven parts in ten, beside the pre-trained one: else features serve its classes alone."""
    X, _ = photographs
    frozen, published = taught_in_two(photographs, freeze=True)
    same, _ = taught_in_two(photographs, freeze="later", adaptation_epochs=0)
    np.testing.assert_array_equal(same.similarities(X), frozen.similarities(X))

    used, fit = [], LMRCPlusClassifier.fit
    monkeypatch.setattr(
        LMRCPlusClassifier,
        "fit",
        lambda self, *task: used.append((self.batch_size, self.learning_rate)) or fit(self, *task),
    )
    adapted, first = taught_in_two(
        photographs, freeze="later", adaptation_epochs=1, batch_size=32, device="cpu"
    )
    n = min(32, int((photographs[1] < 2).sum()))
    assert used == [(8, 0.01 * 8 / n)]  # more would not fit into a laptop's memory
    after = adapted.network_.encoder.backbone.state_dict()
    assert all(torch.equal(after[n], first[n]) for n in first)
    assert adapted.prediction_rule_ == frozen.prediction_rule_ == "ridge"

    assert adapted.scatter_["means"].shape[1] == 2 * frozen.scatter_["means"].shape[1] - 20
    for name, tensor in published.items():
        assert torch.equal(after[f"pretrained.{name}"], tensor)

    monkeypatch.setattr(lmrc_plus, "ADAPTED_SHARE", 1.0)
    _, whole = taught_in_two(photographs, freeze="later", adaptation_epochs=1, batch_size=32)
    for name in ("_conv_stem.weight", "_bn1.running_mean"):
        alone = whole[f"adapted.{name}"]
        assert not torch.allclose(alone, published[name])
        mean = torch.lerp(published[name], alone, 0.7)
        torch.testing.assert_close(after[f"adapted.{name}"], mean)


@pytest.mark.usefixtures("small_pretrained")
@pytest.mark.parametrize("rotations", ["auto", "all"])
def test_an_adapted_model_is_saved_forgets_and_goes_on(photographs, tmp_path, rotations):
    X, y = photographs
    how = {"freeze": "later", "adaptation_epochs": 1, "rotations": rotations}
    model, _ = taught_in_two(photographs, **how)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    for one in (model, again):
        one.forget(0)
        one.partial_fit(X[y < 1], y[y < 1])
    np.testing.assert_array_equal(again.similarities(X), model.similarities(X))
    again.set_params(freeze=False, predict_with="wta")
    before = again.network_.encoder.backbone.pretrained._conv_stem.weight.clone()
    again.partial_fit(X, y)  # trained, as any backbone
    assert not torch.equal(again.network_.encoder.backbone.pretrained._conv_stem.weight, before)


@pytest.mark.usefixtures("small_pretrained")
def test_an_adaptation_that_diverges_says_what_to_do(photographs, monkeypatch):
    """A lower learning_rate would not help: that of the adaptation is fixed."""
    monkeypatch.setitem(lmrc_plus.ADAPTED_BY, "learning_rate", 1e30)
    with pytest.raises(TrainingError, match=r"adapting the backbone .* diverged: set freeze=True"):
        taught_in_two(photographs, freeze="later", adaptation_epochs=1)


@pytest.mark.usefixtures("small_pretrained")
def test_a_backbone_is_adapted_to_a_single_image(photographs):
    X, _ = photographs
    model = LMRCPlusClassifier(
        backbone="efficientnet-lite0@32", freeze="later", adaptation_epochs=1, projections=20
    )
    model.partial_fit(X[:1], ["first"]).partial_fit(X[-1:], ["last"])
    assert model.predict(X[[0, -1]]).tolist() == ["first", "last"]


@pytest.mark.usefixtures("small_pretrained")
def test_an_adapted_model_of_an_earlier_version_has_one_backbone_still(photographs):
    """Whose weights were means of the adapted and the pre-trained ones."""
    X, y = photographs
    model, _ = taught_in_two(photographs, freeze=True)
    description, tensors = pack(model)
    description["settings"]["freeze"] = "later"
    again = model_from("old", description, tensors)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    for one in (model, again):
        one.partial_fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


@pytest.fixture
def larger(photographs, monkeypatch, small_pretrained):
    """Colour images of 64 pixels a side; pre-trained networks see them at 32."""
    monkeypatch.setattr(auto, "PRETRAINED", "efficientnet-lite0@32")
    monkeypatch.setattr("lmrc.nets.backbones.pick", lambda shape: "mlp")
    X, y = photographs
    return X.repeat(2, axis=1).repeat(2, axis=2), y


def quick(**settings):
    how = {"epochs": 1, "first_epochs": 1, "projections": 20, "random_state": 0}
    return LMRCPlusClassifier(**how | settings)


def test_photographs_get_a_pretrained_backbone_and_freeze_it(larger, tmp_path):
    X, y = larger
    model = quick().partial_fit(X[y < 2], y[y < 2])
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")  # by name: what "auto" stands for may change
    assert (model.backbone, again.backbone) == ("auto", "efficientnet-lite0@32")
    named = quick(backbone="efficientnet-lite0@32", freeze=True).partial_fit(X[y < 2], y[y < 2])
    for other in (model, again, named):
        other.partial_fit(X[y >= 2], y[y >= 2])
        assert other.prediction_rule_ == "ridge"
        np.testing.assert_array_equal(other.similarities(X), model.similarities(X))


@pytest.mark.parametrize("settings", [{"freeze": False}, {"rotations": "all"}, {"backbone": "mlp"}])
def test_photographs_are_learnt_from_scratch_if_the_user_says_so(larger, settings):
    model = quick(**settings).fit(*larger)
    assert model.network_.encoder.saved is None
    assert model.prediction_rule_ == "ensemble"
    assert not model.network_.encoder.is_frozen


@pytest.mark.parametrize("cut", [lambda x: x[:, :63], lambda x: x[..., :1], lambda x: x[:, 0, 0]])
def test_small_images_grey_ones_and_vectors_get_no_pretrained_backbone(larger, cut):
    X, y = larger
    assert quick().fit(cut(X), y).network_.encoder.saved is None


@pytest.mark.parametrize("freeze", [False, True, "later"])
def test_models_of_before_photographs_had_a_pretrained_backbone_go_on_as_they_were(larger, freeze):
    X, y = larger
    model = quick(freeze=False).partial_fit(X[y < 2], y[y < 2])
    description, tensors = pack(model)
    assert description["settings"]["backbone"] == "auto"
    description["settings"]["freeze"] = freeze
    again = model_from("old", description, tensors).partial_fit(X[y >= 2], y[y >= 2])
    assert again.network_.encoder.saved is None
    assert again.network_.encoder.is_frozen == bool(freeze)


def test_ridge_for_inputs_that_get_no_pretrained_backbone_is_refused_at_once(larger):
    X, y = larger
    quick(predict_with="ridge").fit(X, y)
    with pytest.raises(ValueError, match="predict_with='ridge' needs a backbone that is frozen"):
        quick(predict_with="ridge").fit(X[:, :8], y)


def test_vectors_are_features_themselves_and_nothing_of_them_is_forgotten(tmp_path):
    X, y = load_digits(return_X_y=True)
    model, at_once = (
        LMRCPlusClassifier(epochs=1, first_epochs=1, projections=500, random_state=0)
        for _ in range(2)
    )
    for first in (0, 5):
        task = (y >= first) & (y < first + 5) & (np.arange(len(y)) % 4 > 0)
        model.partial_fit(X[task], y[task])
        model.save(tmp_path / "model")
        model = load(tmp_path / "model")
    assert model.prediction_rule_ == "ridge"
    test = np.arange(len(y)) % 4 == 0
    assert model.score(X[test], y[test]) > 0.95
    assert at_once.fit(X[~test], y[~test]).score(X[test], y[test]) > 0.95


@pytest.mark.parametrize(
    "settings", [{"freeze": False}, {"freeze": "later"}, {"predict_with": "wta"}]
)
def test_a_backbone_learns_from_vectors_if_the_user_says_so(settings):
    X, y = load_digits(return_X_y=True)
    model = LMRCPlusClassifier(epochs=1, first_epochs=1, **settings).fit(X[y < 2], y[y < 2])
    assert [*model.network_.encoder.backbone.parameters()]
    assert model.prediction_rule_ != "ridge"
