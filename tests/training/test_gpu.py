"""The fast path against the plain one, where there is a GPU: in float32 both give one result."""

import gc
import os
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from lmrc import EWCClassifier, LMRCClassifier, LMRCPlusClassifier, LwFClassifier
from lmrc.methods.declared import extensions_off
from lmrc.nets.network import Frozen
from lmrc.training import buffers, prefetch
from lmrc.training.checkpoint import Checkpoint, pack_training, unpack_training

# cuBLAS reads it when it is first used, which is before the test that needs it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here"),
    # What torch 2.11 says of itself when it compiles.
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
    pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def full_float32():
    """TF32, PyTorch's default for convolutions, would hide a difference of a thousandth."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def images(n_classes, per_class=30, seed=0):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(n_classes), per_class)
    colour = rng.integers(0, 256, (n_classes, 1, 1, 3))
    noise = rng.integers(-60, 60, (len(y), 16, 16, 3))
    return np.clip(colour[y] + noise, 0, 255).astype(np.uint8), y


def taught(method=LMRCClassifier, backbone="cnn", learning_rate=0.01, **settings):
    """Three tasks, the last mini-batch of an epoch short: every path of the step."""
    x, y = images(6)
    model = method(
        backbone=backbone,
        epochs=4,
        first_epochs=4,
        batch_size=16,
        learning_rate=learning_rate,
        first_learning_rate=learning_rate,
        random_state=0,
        **{"precision": "fp32", **settings},
    )
    for first in (0, 2, 4):
        rows = (y == first) | (y == first + 1)
        model.partial_fit(x[rows], y[rows])
    return model, model.decision_function(x)


def assert_learns_alike(method, *, tolerance=1e-3, **settings):
    """Check that captured steps give what eager ones give; return both models."""
    plain, expected = taught(method, compile=False, **settings)
    fast, got = taught(method, **settings)
    np.testing.assert_allclose(got, expected, atol=tolerance)
    for one, other in zip(plain.history_, fast.history_, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=tolerance, abs=tolerance)
    return plain, fast


@pytest.mark.parametrize("method", [LMRCClassifier, LwFClassifier, EWCClassifier])
@pytest.mark.parametrize("backbone", ["cnn", "resnet18"])
def test_a_captured_step_gives_what_the_eager_one_gives(method, backbone):
    # BatchNorm over 16 images blows rounding up from step to step: small steps for a ResNet.
    rate, tolerance = (0.01, 1e-3) if backbone == "cnn" else (1e-4, 0.1)
    assert_learns_alike(method, backbone=backbone, learning_rate=rate, tolerance=tolerance)


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_the_folded_network_has_the_same_outputs(dtype, off):
    model, _ = taught(backbone="resnet18", learning_rate=1e-3)
    network, x = model.network_, torch.from_numpy(images(6)[0]).permute(0, 3, 1, 2).cuda()
    with torch.no_grad():
        expected = network(x)
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            got = Frozen(network, bf16=dtype == torch.bfloat16)(x)
    torch.testing.assert_close(got, expected, atol=off, rtol=0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "rotations": "one",
            "objective": "both",
            "augment": "jitter+cutout",
            "memory_per_class": 3,
        },
        {"statistics": "shared"},
        {"augment": "cutmix", "memory_per_class": 3},
    ],
    ids=str,
)
def test_a_captured_step_of_lmrc_plus_gives_what_the_eager_one_gives(settings):
    plain, fast = assert_learns_alike(LMRCPlusClassifier, **{"predict_with": "wta", **settings})
    np.testing.assert_allclose(
        fast.statistics_["means"].numpy(), plain.statistics_["means"].numpy(), atol=1e-2
    )


def test_lmrc_plus_predicts_by_statistics_on_a_gpu_as_on_a_cpu():
    _, expected = taught(LMRCPlusClassifier, device="cpu")
    _, got = taught(LMRCPlusClassifier)
    assert (got.argmax(1) == expected.argmax(1)).mean() > 0.95


def test_graphs_of_earlier_tasks_that_python_clears_away_do_not_spoil_a_capture():
    before = gc.get_threshold()
    gc.set_threshold(1)  # at every allocation
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # as a capture that fails ends in one
            model, _ = taught()
        assert model.execution_.graph
    finally:
        gc.set_threshold(*before)


def test_other_threads_may_use_the_gpu_while_a_step_is_captured():
    """As the one does that brings inputs from disk: it would fail, or the capture."""
    is_done, failed = threading.Event(), []

    def busy():
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        try:
            while not is_done.is_set():
                event.record(stream)
                event.query()  # which no thread may where captures are for all threads
        except RuntimeError as error:
            failed.append(error)

    beside = threading.Thread(target=busy)
    beside.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # as a capture that fails ends in one
            taught()
    finally:
        is_done.set()
        beside.join()
    assert not failed


@pytest.mark.parametrize("backbone", ["cnn", "resnet18"])
def test_a_compiled_backbone_gives_what_the_eager_one_gives(backbone):
    rate, tolerance = (0.01, 1e-3) if backbone == "cnn" else (1e-4, 3e-2)
    _, expected = taught(backbone=backbone, learning_rate=rate, compile=False)
    _, got = taught(backbone=backbone, learning_rate=rate, compile=True)
    np.testing.assert_allclose(got, expected, atol=tolerance)


@pytest.mark.parametrize("inputs", [1, 40, 160])
@pytest.mark.parametrize("rotations", ["none", "one", "all"])
def test_chunks_of_any_length_give_what_the_eager_step_gives(rotations, inputs, monkeypatch):
    monkeypatch.setattr(prefetch, "MAX_INPUTS", inputs)  # 10 mini-batches, 2 with four rotations
    settings = extensions_off() | {"rotations": rotations, "memory_per_class": 5}
    settings |= {"class_weight": "balanced", "augment": "crop+flip"}
    assert_learns_alike(LMRCPlusClassifier, **settings)


@pytest.mark.parametrize("compiled", ["auto", True])
def test_in_bfloat16_weights_stay_float32_and_losses_are_about_those_of_the_eager_step(compiled):
    settings = {"backbone": "resnet18", "learning_rate": 1e-3, "precision": "bf16"}
    plain, _ = taught(**settings, compile=False)
    fast, _ = taught(**settings, compile=compiled)
    for one, other in zip(plain.history_, fast.history_, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=0.03, abs=0.03)
    floats = [t for t in fast.network_.state_dict().values() if t.is_floating_point()]
    assert {t.dtype for t in floats} == {torch.float32}


class Begun(Checkpoint):
    """Keeps the weights that a training begins with."""

    def restore(self, network, optimiser):
        self.weights = {n: p.detach().clone() for n, p in network.named_parameters()}
        return []


def moves(**settings):
    """How far six steps move each weight of a ResNet's convolutions; the last four are replayed."""
    model = LMRCClassifier(
        backbone="resnet18",
        epochs=2,
        batch_size=16,
        learning_rate=1e-4,
        random_state=0,
        precision="fp32",
        **settings,
    )
    model.checkpoint = Begun()
    model.partial_fit(*images(2, per_class=24))
    after = dict(model.network_.named_parameters())
    return {n: after[n] - p for n, p in model.checkpoint.weights.items() if p.ndim == 4}


@pytest.mark.parametrize("compiled", ["auto", True])
def test_weights_move_as_in_the_eager_step(compiled):
    """A missing or late gradient hardly shows in outputs; in its weight it does."""
    expected, got = moves(compile=False), moves(compile=compiled)
    for name, move in expected.items():
        # Rounding comes to 0.03, a missing gradient to 1, one of the step before to 0.25 and more.
        assert (got[name] - move).norm() < 0.15 * move.norm(), name


class Kept(Checkpoint):
    """Keeps the state after the second epoch of a task, in memory."""

    def __init__(self):
        self.tensors, self.records = {}, []

    def save(self, records, network, optimiser):
        if len(records) == 2:
            self.tensors = {n: t.clone() for n, t in pack_training(network, optimiser).items()}
            self.records = list(records)

    def restore(self, network, optimiser):
        if self.records:
            unpack_training(self.tensors, network, optimiser)
        return list(self.records)


@pytest.mark.parametrize(("precision", "off"), [("fp32", 3e-2), ("bf16", 0.1)])
def test_a_captured_training_goes_on_from_where_it_was(precision, off):
    x, y = images(2)
    kept, outputs = Kept(), []
    for _ in range(2):  # the second time from the second epoch on
        model = LMRCClassifier(
            backbone="resnet18",
            epochs=6,
            batch_size=16,
            learning_rate=1e-4,
            precision=precision,
            random_state=0,
        )
        model.checkpoint = kept
        model.partial_fit(x, y)
        outputs.append(model.decision_function(x))
        assert len(model.history_) == 6
    np.testing.assert_allclose(*outputs, atol=off)
    assert all(t.dtype == torch.float32 for n, t in kept.tensors.items() if "momentum" in n)


def test_dropout_in_a_captured_step_is_by_seed_alone():
    drops = nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * 3, 32), nn.ReLU(), nn.Dropout(0.5))
    _, one = taught(backbone=drops)
    _, other = taught(backbone=drops)
    np.testing.assert_allclose(one, other, atol=1e-4)


def test_inputs_that_do_not_fit_stay_in_host_memory_and_it_says_so(monkeypatch):
    _, expected = taught()
    monkeypatch.setattr(buffers, "MEMORY_SHARE", 0.0)
    with pytest.warns(UserWarning, match="stay in host memory"):
        _, got = taught()
    np.testing.assert_allclose(got, expected, atol=1e-3)


class AsksForValues(nn.Module):
    """A backbone that no graph can hold: it reads a value from the GPU."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16 * 16 * 3, 32)

    def forward(self, x):
        x = self.layer(x.flatten(1))
        return torch.relu(x) if x.abs().max().item() > 0 else x


def test_what_cannot_be_captured_runs_eagerly_with_a_warning():
    backbone = AsksForValues()
    _, expected = taught(backbone=backbone, compile=False)
    with pytest.warns(UserWarning, match="cannot be captured"):
        _, got = taught(backbone=backbone)
    np.testing.assert_allclose(got, expected, atol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        taught(compile="auto")  # and the GPU is as it was


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "method", [LMRCClassifier, LMRCPlusClassifier, LwFClassifier, EWCClassifier]
)
def test_deterministic_training_gives_the_same_bits_each_time(method, precision):
    settings = {"backbone": "resnet18", "precision": precision, "memory_per_class": 5}
    (one, found), (other, again) = (
        taught(method, deterministic=True, **settings) for _ in range(2)
    )
    np.testing.assert_array_equal(found, again)
    for name, weight in one.network_.state_dict().items():
        assert torch.equal(weight, other.network_.state_dict()[name]), name
