"""Weight gradients found beside the backward pass are those that autograd finds."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lmrc import EWCClassifier, LMRCClassifier
from lmrc.nets.backbones import ResNet
from lmrc.nets.network import Encoder, Network
from lmrc.training import compiling, convolution
from lmrc.training import delayed as delaying
from lmrc.training.batches import Batches
from lmrc.training.convolution import DelayedConv2d
from lmrc.training.delayed import Delayed, delayed
from lmrc.training.device import Execution
from lmrc.training.loop import Optimisation, train

CPU = torch.device("cpu")


def small_resnet():
    """A ResNet of two blocks."""
    torch.manual_seed(0)
    backbone = ResNet((3, 8, 8), (1, 1, 1, 1))
    backbone.layer3 = backbone.layer4 = nn.Identity()
    backbone.width_before = 128
    return backbone


def network(backbone=None):
    backbone = backbone or small_resnet()
    return Network(Encoder(backbone, torch.zeros(3, 1, 1), torch.ones(3, 1, 1)), nn.Linear(128, 4))


def gradients(trained, x, weights=None, bf16=False):
    """The gradients of a loss that uses weights beside their layers, too, as EWC's does."""
    trained.zero_grad(set_to_none=True)
    if weights:
        weights.begin()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = trained(x).float().square().mean()
    penalty = sum(p.square().sum() for p in trained.parameters() if p.ndim == 4)
    (loss + 0.01 * penalty).backward()
    if weights:
        weights.join()
    return {name: p.grad for name, p in trained.named_parameters()}


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_those_of_autograd(bf16, layout):
    plain, fast = (network().to(memory_format=layout) for _ in range(2))
    x = torch.rand(3, 3, 4, 4)
    expected = gradients(plain, x, bf16=bf16)
    with torch.no_grad():
        for p in fast.parameters():
            p.add_(torch.randn_like(p), alpha=0.1)
    with delayed(fast, bf16) as weights:
        assert len(weights.weights) == 5  # all but the stem's, whose input has no gradient
        gradients(fast, x, weights, bf16)  # a step with other weights leaves nothing behind
        fast.load_state_dict(plain.state_dict())
        got = gradients(fast, x, weights, bf16)
    # Without bfloat16 nothing is rounded on the way; with it, sums may come in another order.
    off = 1e-2 if bf16 else 1e-5
    for name, gradient in expected.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(got[name], gradient, rtol=0, atol=off * scale, msg=name)
        assert got[name].dtype == torch.float32
        assert got[name].stride() == dict(fast.named_parameters())[name].stride()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("bf16", [False, True])
def test_gradients_in_compiled_code_are_those_of_autograd(bf16):
    x = torch.rand(3, 3, 4, 4)
    expected = gradients(network(), x, bf16=bf16)
    for _ in range(2):  # the second network takes the code of the first, and its own weights
        fast = network()
        with delayed(fast, bf16) as weights:
            fast.encoder.compile(backend="aot_eager", dynamic=False)
            got = gradients(fast, x, weights, bf16)
        off = 2e-2 if bf16 else 1e-5
        for name, gradient in expected.items():
            scale = gradient.abs().max().item()
            torch.testing.assert_close(got[name], gradient, rtol=0, atol=off * scale, msg=name)


@pytest.mark.parametrize(
    ("stride", "padding", "kernel"), [(1, 1, 3), (2, 0, 1), ((2, 1), (0, 2), (3, 5))]
)
def test_a_weights_gradient_is_that_of_torchs_own_convolution(stride, padding, kernel, monkeypatch):
    layer = nn.Conv2d(3, 4, kernel, stride, padding, bias=False)
    x = torch.rand(2, 3, 7, 9, requires_grad=True)
    own = torch.autograd.grad(layer(x).square().sum(), [x, layer.weight])
    found = []
    monkeypatch.setattr(convolution, "left_to", lambda place, *how: found.append((place, *how)))
    layer.__class__ = DelayedConv2d
    layer.dtype, layer.used, layer.place = torch.float32, layer.weight.detach(), 7
    out = layer(x)
    torch.testing.assert_close(out, F.conv2d(x, layer.weight, None, stride, padding))
    (of_x,) = torch.autograd.grad(out.square().sum(), [x])
    torch.testing.assert_close(of_x, own[0])
    ((place, *how),) = found
    assert place == 7
    torch.testing.assert_close(convolution.weight_gradient(*how), own[1])


def test_a_network_is_as_it_was_afterwards():
    fast = network()
    before = copy.deepcopy(fast.state_dict())
    with delayed(fast, True):
        assert fast.state_dict().keys() == before.keys()
    assert {type(m) for m in fast.modules() if isinstance(m, nn.Conv2d)} == {nn.Conv2d}
    assert vars(fast.encoder.backbone.layer1[0].conv1).keys() == vars(nn.Conv2d(1, 1, 1)).keys()
    copy.deepcopy(fast)(torch.zeros(2, 3, 8, 8)).sum().backward()  # by autograd alone
    with delayed(fast, True) as weights:
        assert weights is not None


def test_of_two_networks_that_begin_at_once_one_does_without(monkeypatch):
    """As in two threads: gradients of one would go to the other's weights."""
    began = []

    class BeganMeanwhile(Delayed):
        def __init__(self, *args):
            monkeypatch.undo()
            with delayed(network(), False) as weights:
                began.append(weights)
            super().__init__(*args)

    monkeypatch.setattr(delaying, "Delayed", BeganMeanwhile)
    with delayed(network(), False) as weights:
        assert isinstance(weights, BeganMeanwhile)
    assert began == [None]


def test_gradients_that_a_loss_asks_for_on_its_way_are_not_those_of_the_weights():
    """As for adversarial examples: a step learns from them, and not from how they were found."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(12, 3, 8, 8, generator=rng)
    plan = Optimisation(2, 0.01, (), 0.9, 0.0)

    def learnt(graph):
        trained = network()
        data = Batches(x, torch.arange(12) % 4, n_known=0, batch_size=4, augment="none", device=CPU)

        def losses(batch):
            near = batch.x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(trained(near), batch.y), [near])
            harder = batch.x + 0.01 * slope.sign()
            return {"new": F.cross_entropy(trained(harder), batch.y, reduction="none")}

        with delayed(trained, False) if graph else nullcontext() as weights:
            training = train(trained, losses, data, plan, seed=int, graph=graph, delayed=weights)
            records = list(training)
        return [record["loss"] for record in records]

    assert learnt(True) == pytest.approx(learnt(False), rel=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        {"bias": nn.Parameter(torch.zeros(64))},
        {"groups": 2},
        {"dilation": (2, 2)},
        {"padding_mode": "reflect"},
        {"padding": "same"},
    ],
    ids=str,
)
def test_other_kinds_of_convolutions_are_left_alone(change):
    fast = network()
    layer = fast.encoder.backbone.layer1[0].conv1
    for name, value in change.items():
        setattr(layer, name, value)
    with delayed(fast, False) as weights:
        assert len(weights.weights) == 4
        assert type(layer) is nn.Conv2d


def test_other_backbones_and_frozen_ones_are_left_alone():
    other = network(nn.Sequential(nn.Conv2d(3, 128, 3, bias=False)))
    frozen = network()
    frozen.encoder.freeze(True)
    for left in (other, frozen):
        with delayed(left, False) as weights:
            assert weights is None


def test_layers_above_a_frozen_stem_have_gradients():
    """No gradient goes through the first block's input, and none is asked for."""
    plain, fast = network(), network()
    for trained in (plain, fast):
        for part in (trained.encoder.backbone.conv1, trained.encoder.backbone.bn1):
            part.requires_grad_(False)
    x = torch.rand(3, 3, 4, 4)
    expected = gradients(plain, x)
    with delayed(fast, False) as weights:
        got = gradients(fast, x, weights)
    name = "encoder.backbone.layer1.0.conv1.weight"
    torch.testing.assert_close(got[name], expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("is_large", [False, True])
def test_compiled_code_reuses_memory_only_where_no_gradient_is_delayed(is_large, monkeypatch):
    x = torch.zeros(8, 3, 8, 8)
    data = Batches(x, torch.arange(8), n_known=0, batch_size=4, augment="none", device=CPU)
    # A large mini-batch fills the GPU by itself.
    monkeypatch.setattr(compiling, "VALUES", x[:4].numel() - is_large)
    asked = []

    def seen(*networks, reuse_memory):
        asked.append(reuse_memory)
        return nullcontext()

    monkeypatch.setattr(compiling, "compiled", seen)
    execution = Execution(CPU, bf16=False, graph=True, compiled=True)
    with compiling.accelerate(network(), None, data, execution) as weights:
        assert (weights is None) == is_large
    assert asked == [is_large]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("compiled", [False, True])
def test_the_next_step_computes_with_the_weights_as_they_were_moved(compiled):
    fast, x = network(), torch.rand(3, 3, 4, 4)
    optimiser = torch.optim.SGD(fast.parameters(), lr=0.1, momentum=0.9)
    with delayed(fast, True, compiled) as weights, compiling.uncompiled():
        for _ in range(2):
            gradients(fast, x, weights, bf16=True)
            optimiser.step()
            weights.update(optimiser)
        weights.begin()
        for weight, used in zip(weights.weights, weights.used, strict=True):
            assert torch.equal(used, weight.bfloat16())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_a_capture_that_fails_leaves_no_gradient_to_the_steps_after_it():
    """The GPU's memory may give out as weights are moved: nothing in that capture was computed."""

    def moved(fails):
        fast = network()
        optimiser = torch.optim.SGD(fast.parameters(), lr=0.1, momentum=0.9)
        with delayed(fast, bf16=False, compiled=True) as weights, compiling.uncompiled():
            if fails:
                gradients(fast, torch.rand(3, 3, 4, 4), weights)
            gradients(fast, torch.ones(3, 3, 4, 4), weights)
            weights.update(optimiser)
        return [weight.detach() for weight in weights.weights]

    for one, other in zip(moved(False), moved(True), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("method", [LMRCClassifier, EWCClassifier])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_learns_the_same_with_delayed_gradients(method, compiled, monkeypatch):
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (36, 3, 8, 8), dtype=torch.uint8, generator=rng)
    y = torch.arange(36) % 4

    def taught():
        model = method(
            backbone=small_resnet(),
            epochs=2,
            batch_size=4,
            learning_rate=1e-3,
            device="cpu",
            random_state=0,
        )
        for first in (0, 2):
            rows = (y == first) | (y == first + 1)
            model.partial_fit(x[rows], y[rows])
        return model

    expected = taught()
    used = []

    def on_gpu(*asked):
        return Execution(CPU, bf16=False, graph=True, compiled=compiled)

    def seen(*asked):
        used.append(len(asked))
        return delayed(*asked)

    monkeypatch.setattr(Execution, "pick", on_gpu)
    monkeypatch.setattr(compiling, "delayed", seen)
    with compiling.uncompiled():  # the same functions, without a compiler's minute
        got = taught()
    assert len(used) == 2
    for one, other in zip(expected.history_, got.history_, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
    learnt = got.network_.state_dict()
    for name, value in expected.network_.state_dict().items():
        torch.testing.assert_close(learnt[name], value, rtol=1e-3, atol=1e-3, msg=name)
