"""What every classifier does with what a user gives it."""

import copy
import pickle
import re
import weakref
from fractions import Fraction

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from torch import nn

import lmrc
from lmrc import (
    FineTuneClassifier,
    LMRCClassifier,
    LMRCPlusClassifier,
    ModelFileError,
    TrainingError,
)
from lmrc.checks import blobs
from lmrc.methods import prediction, reading
from lmrc.nets.growing import GrowingLinear

X, Y = blobs()[0]
X2, Y2 = blobs()[1]
RNG = np.random.default_rng(0)


def quick(**settings):
    return LMRCClassifier(**{"epochs": 2, "random_state": 0} | settings)


def images(shape, n=12):
    return RNG.integers(0, 256, (n, *shape), dtype=np.uint8), np.arange(n) % 3


class Distilled(FineTuneClassifier):
    def losses(self, outputs, old_outputs, batch):
        terms = super().losses(outputs, old_outputs, batch)
        if old_outputs is None:
            return terms
        old = outputs[:, : old_outputs.shape[1]]
        return {**terms, "distill": (old - old_outputs).square().mean(dim=1)}


def test_losses_of_a_derived_class_get_the_old_outputs():
    model = Distilled(epochs=1, random_state=0).partial_fit(X, Y).partial_fit(X2, Y2)
    assert "distill" in model.history_[-1]
    assert not FineTuneClassifier().needs_old_outputs  # a forward pass less


# --- Inputs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (10, 12, 3), (9, 9, 4)])
def test_images_as_arrays_tensors_bytes_floats_and_datasets_mean_the_same(shape):
    pixels, y = images(shape)
    channels_last = pixels if pixels.ndim == 4 else pixels[..., None]
    tensor = torch.from_numpy(channels_last).permute(0, 3, 1, 2)
    dataset = torch.utils.data.TensorDataset(tensor, torch.from_numpy(y))
    model = quick().partial_fit(pixels, y)
    assert model.input_shape_ == tuple(tensor.shape[1:])
    expected = model.similarities(pixels)
    for same in (tensor, pixels / 255, (pixels / 255).astype(np.float32), dataset):
        np.testing.assert_allclose(model.similarities(same), expected, atol=1e-4)
    again = quick().partial_fit(dataset)
    np.testing.assert_allclose(again.similarities(pixels), expected, atol=1e-4)


def test_images_as_lists_of_tensors_arrays_and_numbers():
    pixels, y = images((8, 6, 3))
    model = quick(backbone="cnn").fit(pixels, y)
    expected = model.similarities(pixels)
    tensors = [torch.from_numpy(image).permute(2, 0, 1) for image in pixels]
    np.testing.assert_array_equal(model.similarities(list(pixels)), expected)
    # They lie otherwise in memory, by which some processors' convolutions round.
    np.testing.assert_allclose(model.similarities(tensors), expected, rtol=0, atol=1e-5)
    grey = [[[0.5] * 6] * 8] * 2
    assert quick(backbone="cnn").fit(grey, [0, 1]).input_shape_ == (1, 8, 6)
    with pytest.raises(ValueError, match="inputs differ in shape"):
        model.predict([pixels[0], pixels[1][:5]])


@pytest.mark.parametrize("shape", [(8, 6, 3), (8, 6)])
def test_an_image_alone_is_told_from_a_wrong_shape(shape):
    pixels, y = images(shape)
    model = quick(backbone="cnn").fit(pixels, y)
    with pytest.raises(ValueError, match=r"one image alone is passed as X\[None\]"):
        model.predict(pixels[0])
    assert len(model.predict(pixels[0][None])) == 1


def test_a_loader_is_told_from_its_dataset():
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    loader = torch.utils.data.DataLoader(dataset)
    with pytest.raises(ValueError, match=r"pass its dataset \(loader\.dataset\)"):
        quick().fit(loader)
    with pytest.raises(ValueError, match=r"pass its dataset"):
        quick().fit(loader.dataset).predict(loader)


def test_vectors_as_lists_tensors_and_frames(tmp_path):
    import pandas as pd

    expected = quick().fit(X, Y).similarities(X)
    for same in (X.tolist(), list(X), torch.from_numpy(X), X.astype(np.float32)):
        np.testing.assert_array_equal(quick().fit(same, Y).similarities(same), expected)
    assert quick().fit(torch.from_numpy(X).bfloat16(), Y).input_shape_ == (8,)
    frame = pd.DataFrame(X, columns=list("abcdefgh"))
    fitted = quick().fit(frame, Y)
    fitted.save(tmp_path / "table")
    for model in (fitted, lmrc.load(tmp_path / "table")):
        assert model.n_features_in_ == 8
        assert model.feature_names_in_.tolist() == list("abcdefgh")
        with pytest.raises(ValueError, match="feature names"):
            model.predict(frame.rename(columns={"a": "z"}))
    quick(backbone="mlp").fit(*images((8, 8))).save(tmp_path / "images")
    assert not hasattr(lmrc.load(tmp_path / "images"), "n_features_in_")


def test_normalisation_is_the_first_batchs_for_good():
    model = quick().partial_fit(X, Y)
    mean = model.network_.encoder.mean.clone()
    np.testing.assert_allclose(mean, X.mean(0), rtol=1e-5)
    model.partial_fit(X2 + 100, Y2)
    assert torch.equal(model.network_.encoder.mean, mean)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: (X2[:, :5], Y2), "5 features, but LMRCClassifier is expecting 8 features"),
        (lambda: images((8, 8)), "images of 8×8 pixels.*fitted on vectors of 8 features"),
        (lambda: (X2, Y2[:-1]), "40 in X, 39 in y"),
        (lambda: (X2[:0], Y2[:0]), "0 sample"),
        (lambda: ([], []), "X is empty"),
        (lambda: (np.where(X2 > 3, np.nan, X2), Y2), "NaN"),
        (lambda: (X2, [f"{label}" for label in Y2]), "keep to one kind"),
        (lambda: (X2, None), "requires y"),
    ],
)
def test_a_wrong_batch_is_refused_and_changes_nothing(wrong, words):
    model = quick().partial_fit(X, Y)
    before, answers = dict(vars(model)), model.similarities(X)
    with pytest.raises(ValueError, match=words):
        model.partial_fit(*wrong())
    assert vars(model) == before
    np.testing.assert_array_equal(model.similarities(X), answers)


def test_a_wrong_first_batch_leaves_an_unfitted_estimator():
    model = quick()
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(np.where(X > 3, np.nan, X), Y)
    assert not hasattr(model, "classes_")
    assert not hasattr(model, "n_features_in_")


def test_announced_classes_only_validate():
    model = quick().partial_fit(X, Y, classes=[0, 1, 2, 3])
    assert model.classes_.tolist() == [0, 1]
    with pytest.raises(ValueError, match="classes="):
        model.partial_fit(X2, Y2, classes=[0, 1])


class Items(torch.utils.data.Dataset):
    """Vectors that are made when they are read; no more than so many are alive at a time."""

    def __init__(self, x):
        self.x, self.alive, self.most = x, 0, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        item = torch.from_numpy(self.x[i].copy())
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(item, self.gone)
        return item

    def gone(self):
        self.alive -= 1


def test_a_dataset_is_predicted_part_by_part(monkeypatch):
    model = quick().fit(X, Y)
    many = np.tile(X, (5, 1)).astype(np.float32)
    monkeypatch.setattr(reading, "AT_A_TIME", 16)
    items = Items(many)
    np.testing.assert_array_equal(model.predict(items), model.predict(many))
    assert items.most <= 2 * 16
    np.testing.assert_array_equal(model.predict_topk(items, 2), model.predict_topk(many, 2))
    with pytest.raises(ValueError, match="empty"):
        model.predict(Items(many[:0]))


@pytest.mark.parametrize(("method", "values"), [(LMRCClassifier, 200), (FineTuneClassifier, 4)])
def test_what_is_held_at_a_time_is_bounded_and_no_graph_is_built(monkeypatch, method, values):
    # Of LMRC that is what two heads answer, of others what four classes score.
    model = method(epochs=2, random_state=0).partial_fit(X, Y).partial_fit(X2, Y2)
    many = np.tile(X, (40, 1))
    expected = model.predict(many)
    parts = []
    scores = model.scores

    def watched(network, x):
        out = scores(network, x)
        parts.append(out.shape)
        assert not out.requires_grad
        return out

    monkeypatch.setattr(model, "scores", watched)
    monkeypatch.setattr(prediction, "MAX_OUTPUTS", 100 * values)
    np.testing.assert_array_equal(model.predict(many), expected)
    assert sum(rows for rows, _ in parts) == len(many)
    assert max(rows for rows, _ in parts) == 100


def test_predict_refuses_other_shapes_and_unfitted_models():
    pixels, y = images((8, 8))
    model = quick().partial_fit(pixels, y)
    with pytest.raises(ValueError, match=r"images of 9×8 pixels and 1 channel, .*8×8"):
        model.predict(np.zeros((2, 9, 8), dtype=np.uint8))
    with pytest.raises(ValueError, match="vectors of 64 features"):
        model.predict(pixels.reshape(len(pixels), -1))
    with pytest.raises(NotFittedError):
        quick().predict(X)
    with pytest.raises(NotFittedError):
        quick().save("nowhere")


# --- Classes --------------------------------------------------------------------------------------


def test_classes_are_in_order_of_arrival_sorted_within_a_batch():
    model = quick()
    for labels in (["pig", "cow"], ["ant", "cow", "elk"], ["bee"]):
        X = RNG.standard_normal((4 * len(labels), 8))
        model.partial_fit(X, np.repeat(labels, 4))
    assert model.classes_.tolist() == ["cow", "pig", "ant", "elk", "bee"]
    assert [head.tolist() for head in model.heads_] == [["cow", "pig"], ["ant", "elk"], ["bee"]]
    assert model.similarities(X).shape == (4, 5)
    assert set(model.predict(X)) <= set(model.classes_)


def test_known_and_new_classes_in_one_batch():
    model = quick(epochs=30).partial_fit(X, Y)
    both_X, both_y = np.concatenate([X, X2]), np.concatenate([Y, Y2])
    model.partial_fit(both_X, both_y)
    assert [head.tolist() for head in model.heads_] == [[0, 1], [2, 3]]
    assert "review" in model.history_[-1]
    assert model.score(both_X, both_y) > 0.95


def test_one_class_and_one_sample_are_enough():
    model = quick().partial_fit(X[:1], Y[:1])
    assert model.predict(X).tolist() == [0] * len(X)
    assert model.decision_function(X).shape == (len(X), 1)
    model.partial_fit(X2[:1], Y2[:1])
    assert model.similarities(X).shape == (len(X), 2)
    assert model.decision_function(X).shape == (len(X),)


def test_one_sample_is_enough_for_batch_normalisation():
    backbone = nn.Sequential(nn.Linear(X.shape[1], 8), nn.BatchNorm1d(8), nn.ReLU())
    model = quick(backbone=backbone).partial_fit(X[:1], Y[:1]).partial_fit(X2[:1], Y2[:1])
    assert np.isfinite(model.similarities(X)).all()


def test_two_classes_follow_scikit_learns_convention():
    model = quick(epochs=10).fit(X, Y)
    scores, decision = model.similarities(X), model.decision_function(X)
    np.testing.assert_allclose(decision, scores[:, 1] - scores[:, 0])
    np.testing.assert_array_equal(model.predict(X), (decision > 0).astype(int))
    assert scores.dtype == np.float32


def test_topk_is_best_first_and_cut_to_the_classes_there_are():
    model = quick().partial_fit(X, Y).partial_fit(X2, Y2)
    top = model.predict_topk(X, k=3)
    assert top.shape == (len(X), 3)
    np.testing.assert_array_equal(top[:, 0], model.predict(X))
    ranks = np.argsort(-model.similarities(X), axis=1)
    np.testing.assert_array_equal(top, model.classes_[ranks[:, :3]])
    assert model.predict_topk(X).shape == (len(X), 4)
    with pytest.raises(ValueError, match="k=0"):
        model.predict_topk(X, 0)


def test_there_are_no_probabilities():
    assert not hasattr(quick(), "predict_proba")
    assert "predict_proba" in LMRCClassifier.__doc__


def test_fit_forgets_everything():
    model = quick().partial_fit(X, Y).fit(X2, Y2)
    assert model.classes_.tolist() == [2, 3]
    assert model.n_tasks_ == 1
    np.testing.assert_array_equal(model.similarities(X), quick().fit(X2, Y2).similarities(X))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(X > 3, np.nan, X), Y)
    assert model.classes_.tolist() == [2, 3], "a failed fit keeps the model, too"


# --- Parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"epochs": 2.5},
        {"batch_size": 1},
        {"learning_rate": 0},
        {"learning_rate": float("nan")},
        {"momentum": 1.0},
        {"weight_decay": -1},
        {"halve_at": 5},
        {"halve_at": (0.5, 1.5)},
        {"augment": "blur"},
        {"precision": "fp8"},
        {"compile": "yes"},
        {"memory_per_class": -1},
        {"memory_per_class": True},
        {"label_dim": 1},
        {"threshold": 1.0},
        {"max_tries": 0},
        {"on_full": "stop"},
        {"response_weight": -0.5},
        {"backbone": "vgg"},
        {"device": "abacus"},
        {"device": "meta"},
        {"device": 10**30},
        {"learning_rate": 1e300},
        {"weight_decay": 10**30},
        {"memory_per_class": 10**30},
        {"label_dim": 10**30},
        {"class_weight": {(0, 1): 2.0}},
        {"class_weight": {None: 2.0}},
    ],
)
def test_a_wrong_parameter_is_named_with_its_value(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r}")):
        quick(**wrong).fit(X, Y)


def test_the_smallest_values_are_taken_and_messages_name_none_where_it_may_be():
    quick(max_tries=1, threshold=0.9, epochs=1).fit(X, Y)
    with pytest.raises(ValueError, match="max_tries"):
        quick(max_tries=0).fit(X, Y)
    with pytest.raises(ValueError, match=r"first_learning_rate.* or None"):
        quick(first_learning_rate=-1.0).fit(X, Y)
    with pytest.raises(ValueError, match=r"learning_rate=(?!.* or None)"):
        quick(learning_rate=-1.0).fit(X, Y)


@pytest.mark.parametrize("change", [{"backbone": "cnn"}, {"label_dim": 50}])
@pytest.mark.parametrize("loaded", [False, True])
def test_what_shapes_the_network_is_fixed_by_the_first_batch(change, loaded, tmp_path):
    ((name, value),) = change.items()
    model = quick().partial_fit(X, Y)
    if loaded:
        model.save(tmp_path / "m")
        model = lmrc.load(tmp_path / "m")
    model.set_params(**change)
    with pytest.raises(ValueError, match=f"{name} was .* is now {value!r}.*call fit"):
        model.partial_fit(X2, Y2)
    model.set_params(**{name: "auto" if name == "backbone" else 100}).partial_fit(X2, Y2)


def test_other_parameters_may_change_between_tasks():
    model = quick().partial_fit(X, Y).set_params(epochs=4, learning_rate=0.01)
    model.partial_fit(X2, Y2)
    assert [r["learning_rate"] for r in model.history_] == [0.05, 0.025, 0.01, 0.01, 0.01, 0.0025]


@pytest.fixture
def fallen_back():
    """Where a CPU has no bf16 of its own, torch leaves oneDNN for good: let other tests have it."""
    before = torch.backends.mkldnn.enabled
    yield
    torch._C._set_mkldnn_enabled(before)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.usefixtures("fallen_back")
def test_bf16_trains_and_stays_close_to_fp32():
    exact = quick(epochs=8).fit(X, Y)
    rough = quick(epochs=8, precision="bf16").fit(X, Y)
    assert rough.network_.head.weight.dtype == torch.float32
    assert rough.score(X, Y) == exact.score(X, Y) == 1
    scores = rough.similarities(X)
    assert not np.array_equal(scores, exact.similarities(X))
    rounded = torch.from_numpy(scores).bfloat16().float().numpy()
    assert (scores != rounded).mean() > 0.9  # they are float32, though the network is bf16


# --- Own backbones --------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", [False, True])
def test_a_module_is_trained_as_a_copy(factory):
    mine = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    before = mine[0].weight.clone()
    model = quick(backbone=(lambda: mine) if factory else mine).fit(X, Y)
    assert torch.equal(mine[0].weight, before)
    assert not torch.equal(model.network_.encoder.backbone[0].weight, mine[0].weight)
    assert model.network_.head.weight.shape == (1, 100, 16)


# --- Randomness -----------------------------------------------------------------------------------


def test_random_state_none_and_generator_objects():
    one, other = quick(random_state=None).fit(X, Y), quick(random_state=None).fit(X, Y)
    assert not np.array_equal(one.similarities(X), other.similarities(X))
    same = [
        quick(random_state=np.random.RandomState(3)).fit(X, Y).similarities(X) for _ in range(2)
    ]
    np.testing.assert_array_equal(*same)


@pytest.mark.parametrize("method", [LMRCClassifier, FineTuneClassifier])
def test_learning_and_loading_leave_the_users_generators_alone(method, tmp_path):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002  # the one that users seed
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    model = method(epochs=1, random_state=0).fit(X, Y).partial_fit(X2, Y2)
    model.predict(X)
    model.save(tmp_path / "m")
    lmrc.load(tmp_path / "m")
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 20}, "lower learning_rate"),
        ({"epochs": 1, "batch_size": 1000}, "outputs are not finite"),  # its one loss is a number
    ],
)
def test_training_that_diverges_changes_nothing(settings, words):
    model = FineTuneClassifier(epochs=2, random_state=0).partial_fit(X, Y)
    answers = model.decision_function(X)
    model.set_params(learning_rate=1e30, **settings)
    with pytest.raises(TrainingError, match=words):
        model.partial_fit(X2, Y2)
    assert model.classes_.tolist() == [0, 1]
    np.testing.assert_array_equal(model.decision_function(X), answers)


def test_a_task_whose_statistics_are_no_numbers_leaves_the_model_as_it_was(monkeypatch):
    model = LMRCPlusClassifier(
        epochs=1, first_epochs=1, rotations="none", predict_with="lda", random_state=0
    ).fit(X, Y)
    before = model.similarities(X)
    after_task = LMRCPlusClassifier.after_task

    def spoil(self, network, samples):
        after_task(self, network, samples)
        self.classifiers_["lda_bias"][0] = np.nan

    monkeypatch.setattr(LMRCPlusClassifier, "after_task", spoil)
    with pytest.raises(TrainingError, match=r"diverged, lda_bias .* lower learning_rate"):
        model.partial_fit(X2, Y2)
    np.testing.assert_array_equal(model.similarities(X), before)


def test_what_is_random_after_a_task_is_seeded():
    class Own(FineTuneClassifier):
        def after_task(self, network, samples):
            drawn.append(torch.rand(1).item())

    drawn = []
    for seed in (0, 0, 1):
        Own(epochs=1, random_state=seed).fit(X, Y)
    assert drawn[0] == drawn[1] != drawn[2]


def test_scores_of_a_wrong_shape_are_named():
    class Own(FineTuneClassifier):
        def scores(self, network, x):
            return network(x)[:, :1]

    with pytest.raises(ValueError, match=r"Own\.scores returned the shape \(40, 1\) for 40 inputs"):
        Own(epochs=1, random_state=0).fit(X, Y).predict(X)


# --- On disk --------------------------------------------------------------------------------------


def test_what_another_has_learnt_meanwhile_is_not_overwritten(tmp_path):
    path = tmp_path / "m"
    quick().partial_fit(X, Y).save(path)
    mine, other = lmrc.load(path), lmrc.load(path)
    other.partial_fit(X2, Y2).save(path)
    other.partial_fit(X2, Y2 + 2).save(path)  # what it wrote itself may be replaced
    mine.partial_fit(X2, Y2 + 7)
    with pytest.raises(ModelFileError, match="has changed since"):
        mine.save(path)
    assert lmrc.load(path).classes_.tolist() == [0, 1, 2, 3, 4, 5]
    mine.save(tmp_path / "elsewhere")
    quick().partial_fit(X, Y).save(path)  # it has nothing to do with the folder
    assert lmrc.load(path).classes_.tolist() == [0, 1]


def test_a_device_that_is_not_there_is_no_fault_of_the_file(tmp_path):
    quick().partial_fit(X, Y).save(tmp_path / "m")
    with pytest.raises(ValueError, match=r"^device='nonsense' is not known"):
        lmrc.load(tmp_path / "m", device="nonsense")


def test_everything_said_of_a_model_comes_back(tmp_path):
    model = quick(halve_at=(1, 0.5), memory_per_class=2).partial_fit(X, Y).partial_fit(X2, Y2)
    model.save(tmp_path / "m")
    loaded = lmrc.load(tmp_path / "m")
    assert loaded.get_params() == model.get_params()
    assert loaded.history_ == model.history_
    assert loaded.threshold_ == model.threshold_
    assert [head.tolist() for head in loaded.heads_] == [[0, 1], [2, 3]]
    np.testing.assert_array_equal(loaded.label_vectors_, model.label_vectors_)
    assert torch.equal(loaded.memory_.x, model.memory_.x)
    with pytest.raises(ValueError, match="5 features"):
        loaded.predict(X[:, :5])


def test_a_custom_backbone_is_brought_again(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 12)

        def forward(self, x):
            return self.layer(x).relu()

    model = quick(backbone=Net).fit(X, Y)
    model.save(tmp_path / "m")
    with pytest.raises(ModelFileError, match=r"backbone=…"):
        lmrc.load(tmp_path / "m")
    for same in (Net, Net()):
        loaded = lmrc.load(tmp_path / "m", backbone=same)
        np.testing.assert_array_equal(loaded.similarities(X), model.similarities(X))
        loaded.partial_fit(X2, Y2)
    with pytest.raises(ModelFileError, match=r"layer\.weight"):
        lmrc.load(tmp_path / "m", backbone=nn.Linear(8, 12))
    quick().fit(X, Y).save(tmp_path / "n")
    with pytest.raises(ModelFileError, match="leave backbone= out"):
        lmrc.load(tmp_path / "n", backbone=Net)


def test_pickling_and_deep_copies_go_on_alike():
    model = quick(memory_per_class=2).partial_fit(X, Y)
    twins = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
    expected = model.partial_fit(X2, Y2).similarities(X)
    for twin in twins:
        np.testing.assert_array_equal(twin.partial_fit(X2, Y2).similarities(X), expected)


# --- What the losses see --------------------------------------------------------------------------


class Watched(FineTuneClassifier):
    """Keeps the mini-batches it was trained on, in a list that a test lends it."""

    seen: list

    def losses(self, outputs, old_outputs, batch):
        self.seen.append(batch)
        return super().losses(outputs, old_outputs, batch)


def watch(X, y, **settings):
    Watched.seen = []
    Watched(**{"epochs": 2, "random_state": 0, "backbone": "mlp"} | settings).fit(X, y)
    return Watched.seen


class TwoOutputs(FineTuneClassifier):
    """Its head returns logits and features."""

    class Head(GrowingLinear):
        def forward(self, features):
            return super().forward(features), features

    def make_head(self, width, n_heads=0, n_classes=0):
        return self.Head(width, n_classes)

    def losses(self, outputs, old_outputs, batch):
        logits, features = outputs
        return super().losses(logits, None, batch) | {"size": 0.01 * features.square().mean()}

    def scores(self, network, x):
        return network(x)[0]


def test_a_head_may_return_several_tensors():
    model = TwoOutputs(epochs=20, random_state=0).partial_fit(X, Y)
    assert model.score(X, Y) == 1
    model.set_params(learning_rate=1e30, epochs=1, batch_size=1000)
    with pytest.raises(TrainingError, match="outputs are not finite"):
        model.partial_fit(X2, Y2)


def test_every_epoch_has_an_order_of_its_own():
    first, second = watch(X, Y)
    assert not torch.equal(first.x, second.x)
    assert torch.equal(first.x.sort(0).values, second.x.sort(0).values)


@pytest.mark.parametrize(
    ("shape", "augment", "changed"),
    [
        ((12, 12, 3), "auto", True),
        ((12, 12, 3), "none", False),
        ((8, 8), "auto", False),
        ((8, 8), "crop", True),
    ],
)
def test_images_are_augmented_as_set(shape, augment, changed):
    pixels, y = images(shape)
    originals = {image.tobytes() for image in pixels.reshape(12, *shape)}
    seen = watch(pixels, y, augment=augment)
    channels_last = [image.permute(1, 2, 0).contiguous() for batch in seen for image in batch.x]
    same = [image.numpy().tobytes() in originals for image in channels_last]
    assert all(same) != changed


# --- What was once wrong --------------------------------------------------------------------------


def test_a_mapping_of_any_size_is_welcome():
    assert quick(label_dim=1000, threshold=0.9).fit(X, Y).classes_.tolist() == [0, 1]


def test_joint_training_keeps_copies():
    mine = X.astype(np.float32)
    model = lmrc.JointClassifier(epochs=1, random_state=0).fit(mine, Y)
    mine[:] = 0
    assert model.memory_.x.abs().sum() > 0


def test_numbers_of_numpy_and_fractions_are_numbers(tmp_path):
    settings = {"label_dim": np.int64(50), "learning_rate": np.float32(0.05)}
    settings |= {"halve_at": (np.int64(1),), "momentum": Fraction(1, 32)}
    model = quick(**settings).fit(X, Y)
    assert [r["learning_rate"] for r in model.history_] == pytest.approx([0.05, 0.025])
    model.save(tmp_path / "m")
    again = lmrc.load(tmp_path / "m")
    assert (again.label_dim, again.momentum) == (50, 1 / 32)


@pytest.mark.parametrize(
    "labels", [Y.astype(np.uint8), 7 - 10 * Y, Y > 0, np.array(["cat", "ox"])[Y % 2]]
)
def test_labels_come_back_from_disk_as_they_were(tmp_path, labels):
    model = quick().fit(X, labels)
    model.save(tmp_path / "m")
    loaded = lmrc.load(tmp_path / "m")
    assert loaded.classes_.dtype == model.classes_.dtype
    assert loaded.predict(X).dtype.kind == labels.dtype.kind.replace("u", "i")
    assert loaded.classes_.tolist() == np.unique(labels).tolist()
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_a_shape_that_was_changed_is_told_before_prediction_and_not_saved(tmp_path):
    model = quick().fit(X, Y).set_params(label_dim=7)
    for use in (lambda: model.predict(X), lambda: model.save(tmp_path / "m")):
        with pytest.raises(ValueError, match="label_dim was 100"):
            use()
    assert not (tmp_path / "m").exists()


def test_datasets_can_be_predicted_and_scored():
    x, y = torch.from_numpy(X).float(), torch.from_numpy(Y)
    model = quick(epochs=20).fit(X, Y)
    pairs, alone = torch.utils.data.TensorDataset(x, y), torch.utils.data.TensorDataset(x)
    np.testing.assert_array_equal(model.predict(alone), model.predict(X))
    assert model.score(pairs) == model.score(X, Y) > 0.9


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"augment": "crop"}, "augment='crop' is for images"),
        ({"backbone": 5}, "backbone=5 is neither"),
        ({"backbone": nn.Linear(3, 3)}, r"inputs of shape \(batch, 8\)"),
        ({"backbone": nn.LSTM(8, 3)}, "does not map inputs"),
        ({"device": 3.5}, "device=3.5"),
    ],
)
def test_what_does_not_fit_together_is_named(settings, words):
    with pytest.raises(ValueError, match=words):
        quick(**settings).fit(X, Y)


def test_too_many_axes_are_named():
    with pytest.raises(ValueError, match="5 axes: vectors have two"):
        quick().fit(np.zeros((2, 3, 4, 5, 3)), [0, 1])


def test_code_picked_by_its_speed_does_not_go_with_the_same_bits_each_time():
    with pytest.raises(ValueError, match="set it to 'auto'"):
        quick(compile=True, deterministic=True).partial_fit(X, Y)
