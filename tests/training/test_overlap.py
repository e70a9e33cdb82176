"""Weight gradients that are overlapped with the backward pass are those of autograd."""

import copy
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional as F

from lmrc import EWCClassifier, LMRCClassifier
from lmrc.nets.backbones import ResNet
from lmrc.nets.network import Encoder, Network
from lmrc.training import compiling
from lmrc.training.batches import Batches
from lmrc.training.device import Execution
from lmrc.training.loop import Optimisation, train
from lmrc.training.overlap import OverlappedGradients, overlapped

CPU = torch.device("cpu")


def small_resnet():
    """A ResNet of two blocks."""
    torch.manual_seed(0)
    backbone = ResNet((3, 8, 8), (1, 1, 1, 1), channels=8)
    backbone.layer3 = backbone.layer4 = nn.Identity()
    backbone.width_before = 16
    return backbone


def network(backbone=None):
    backbone = backbone or small_resnet()
    return Network(Encoder(backbone, torch.zeros(3, 1, 1), torch.ones(3, 1, 1)), nn.Linear(16, 4))


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


def assert_near(got, expected, off=1e-5):
    """See that gradients are the same, up to a share of the largest value of each."""
    for name, gradient in expected.items():
        atol = off * gradient.abs().max().item()
        torch.testing.assert_close(got[name], gradient, rtol=0, atol=atol, msg=name)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_those_of_autograd(bf16, layout):
    plain, fast = (network().to(memory_format=layout) for _ in range(2))
    x = torch.rand(3, 3, 4, 4)
    expected = gradients(plain, x, bf16=bf16)
    with torch.no_grad():
        for p in fast.parameters():
            p.add_(torch.randn_like(p), alpha=0.1)
    with overlapped(fast, bf16) as weights:
        assert len(weights.weights) == 5  # all but the stem's, whose input has no gradient
        gradients(fast, x, weights, bf16)  # a step with other weights leaves nothing behind
        fast.load_state_dict(plain.state_dict())
        got = gradients(fast, x, weights, bf16)
    # Without bfloat16 nothing is rounded on the way; with it, sums may come in another order.
    assert_near(got, expected, 1e-2 if bf16 else 1e-5)
    for name in expected:
        assert got[name].dtype == torch.float32
        assert got[name].stride() == dict(fast.named_parameters())[name].stride()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("bf16", [False, True])
def test_gradients_in_compiled_code_are_those_of_autograd(bf16):
    x = torch.rand(3, 3, 4, 4)
    expected = gradients(network(), x, bf16=bf16)
    torch.compiler.reset()
    counters.clear()
    for _ in range(2):
        fast = network()
        with overlapped(fast, bf16) as weights:
            fast.encoder.compile(backend="aot_eager", dynamic=False)
            got = gradients(fast, x, weights, bf16)
        assert_near(got, expected, 2e-2 if bf16 else 1e-5)
    assert counters["stats"]["unique_graphs"] == 1  # the second network uses the code of the first


def test_a_network_is_as_it_was_afterwards():
    fast = network()
    before = copy.deepcopy(fast.state_dict())
    with overlapped(fast, True):
        assert fast.state_dict().keys() == before.keys()
    copy.deepcopy(fast)(torch.zeros(2, 3, 8, 8)).sum().backward()  # by autograd alone
    with overlapped(fast, True) as weights:
        assert weights is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("compiled", [False, True])
def test_two_networks_are_trained_at_the_same_time(compiled):
    """As in two threads: the gradients of one do not go to the other's weights."""
    x = torch.rand(3, 3, 4, 4)
    expected = gradients(network(), x)
    one, two = network(), network()
    with overlapped(one, False) as first, overlapped(two, False) as second:
        if compiled:
            for fast in (one, two):
                fast.encoder.compile(backend="aot_eager", dynamic=False)
        first.begin()
        loss = one(x).square().mean()
        other = gradients(two, 2 * x, second)
        penalty = sum(p.square().sum() for p in one.parameters() if p.ndim == 4)
        (loss + 0.01 * penalty).backward()
        first.join()
    for name, p in one.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-4, atol=1e-6, msg=name)
        assert not torch.equal(other[name], p.grad)


def test_a_backward_pass_after_the_training_is_an_error():
    fast = network()
    with overlapped(fast, False):
        out = fast(torch.rand(2, 3, 8, 8))
    with pytest.raises(RuntimeError, match="is over"):
        out.sum().backward()


def adversarial(trained, batch):
    """Train on inputs that were moved along their gradient."""
    inputs = batch.x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(trained(inputs), batch.y), [inputs])
    harder = batch.x + 0.01 * gradient.sign()
    return {"new": F.cross_entropy(trained(harder), batch.y, reduction="none")}


def gradient_penalty(trained, batch):
    """Penalise the gradient of the inputs: its own gradient is needed."""
    inputs = batch.x.clone().requires_grad_()
    new = F.cross_entropy(trained(inputs), batch.y, reduction="none")
    (gradient,) = torch.autograd.grad(new.sum(), [inputs], create_graph=True)
    return {"new": new, "penalty": gradient.square().sum()}


def weight_gradients(trained, batch):
    """Weigh the loss by the gradient of a layer's weight."""
    new = F.cross_entropy(trained(batch.x), batch.y, reduction="none")
    weight = trained.encoder.backbone.layer2[0].conv1.weight
    (gradient,) = torch.autograd.grad(new.sum(), [weight], retain_graph=True)
    return {"new": new * gradient.detach().norm().tanh()}


@pytest.mark.parametrize("losses", [adversarial, gradient_penalty, weight_gradients])
def test_losses_may_call_autograd_themselves(losses):
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(12, 3, 8, 8, generator=rng)
    plan = Optimisation(2, 0.01, (), 0.9, 0.0)

    def learnt(graph):
        trained = network()
        data = Batches(x, torch.arange(12) % 4, n_known=0, batch_size=4, augment="none", device=CPU)
        execution = Execution(CPU, bf16=False, graph=graph, compiled=False)
        run = train(trained, partial(losses, trained), data, plan, seed=int, execution=execution)
        records = list(run)
        return [record["loss"] for record in records]

    assert learnt(True) == pytest.approx(learnt(False), rel=1e-3)


def test_gradients_are_overlapped_from_the_second_step_on(monkeypatch):
    trained, computed = network(), []
    compute = OverlappedGradients._compute

    def seen(self, place, *how):
        computed.append(place)
        compute(self, place, *how)

    def losses(batch):
        return {"new": F.cross_entropy(trained(batch.x), batch.y, reduction="none")}

    monkeypatch.setattr(OverlappedGradients, "_compute", seen)
    x = torch.rand(12, 3, 8, 8)
    data = Batches(x, torch.arange(12) % 4, n_known=0, batch_size=4, augment="none", device=CPU)
    execution = Execution(CPU, bf16=False, graph=True, compiled=False)
    plan = Optimisation(2, 0.01, (), 0.9, 0.0)
    list(train(trained, losses, data, plan, seed=int, execution=execution))
    assert len(computed) == 5 * (2 * 3 - 1)  # five layers, all steps but the first


@pytest.mark.parametrize(
    "change",
    [
        {"bias": nn.Parameter(torch.zeros(8))},
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
    with overlapped(fast, False) as weights:
        assert len(weights.weights) == 4
        assert layer.handle is None


def test_other_backbones_and_frozen_ones_are_left_alone():
    other = network(nn.Sequential(nn.Conv2d(3, 16, 3, bias=False)))
    frozen = network()
    frozen.encoder.freeze(True)
    for left in (other, frozen):
        with overlapped(left, False) as weights:
            assert weights is None


def test_layers_above_a_frozen_stem_have_gradients():
    """No gradient goes through the first block's input, and none is computed."""
    plain, fast = network(), network()
    for trained in (plain, fast):
        for part in (trained.encoder.backbone.conv1, trained.encoder.backbone.bn1):
            part.requires_grad_(False)
    x = torch.rand(3, 3, 4, 4)
    expected = gradients(plain, x)
    with overlapped(fast, False) as weights:
        got = gradients(fast, x, weights)
    name = "encoder.backbone.layer1.0.conv1.weight"
    torch.testing.assert_close(got[name], expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("is_large", [False, True])
def test_compiled_code_reuses_memory_only_without_overlapped_gradients(is_large, monkeypatch):
    x = torch.zeros(8, 3, 8, 8)
    data = Batches(x, torch.arange(8), n_known=0, batch_size=4, augment="none", device=CPU)
    # A large mini-batch fills the GPU by itself.
    monkeypatch.setattr(compiling, "MAX_VALUES", x[:4].numel() - is_large)
    reuse = []

    def seen(*networks, reuse_memory):
        reuse.append(reuse_memory)
        return nullcontext()

    monkeypatch.setattr(compiling, "compiled", seen)
    execution = Execution(CPU, bf16=False, graph=True, compiled=True)
    with compiling.accelerate(network(), None, data, execution) as weights:
        assert (weights is None) == is_large
    assert reuse == [is_large]


def test_the_next_step_uses_the_updated_weights():
    fast, x = network(), torch.rand(3, 3, 4, 4)
    optimiser = torch.optim.SGD(fast.parameters(), lr=0.1, momentum=0.9)
    with overlapped(fast, True) as weights:
        for _ in range(2):
            gradients(fast, x, weights, bf16=True)
            optimiser.step()
        weights.begin()
        for weight, used in zip(weights.weights, weights.used, strict=True):
            assert torch.equal(used, weight.bfloat16())


def test_a_failed_capture_leaves_no_gradients_to_the_next_step():
    """The GPU's memory may run out during a capture, in which nothing is computed."""
    fast, x = network(), torch.ones(3, 3, 4, 4)
    expected = gradients(network(), x)
    with overlapped(fast, False) as weights:
        weights.begin()
        fast(torch.rand(3, 3, 4, 4)).sum().backward()  # and then no join
        got = gradients(fast, x, weights)
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("method", [LMRCClassifier, EWCClassifier])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_learns_the_same_with_overlapped_gradients(method, compiled, monkeypatch):
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

    def on_gpu(*_):
        return Execution(CPU, bf16=False, graph=True, compiled=compiled)

    def seen(*args):
        used.append(args)
        return overlapped(*args)

    monkeypatch.setattr(Execution, "pick", on_gpu)
    monkeypatch.setattr(compiling, "overlapped", seen)
    with compiling.uncompiled():  # the same functions, without a compiler's minute
        got = taught()
    assert len(used) == 2
    for one, other in zip(expected.history_, got.history_, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
    learnt = got.network_.state_dict()
    for name, value in expected.network_.state_dict().items():
        torch.testing.assert_close(learnt[name], value, rtol=1e-3, atol=1e-3, msg=name)
