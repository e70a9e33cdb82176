"""The fast step on a CPU, where a graph is its function once more: the same as the plain step."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from lmrc.nets.network import Encoder, Frozen, Network
from lmrc.training import graphed, prefetch
from lmrc.training.batches import Batches
from lmrc.training.device import Execution
from lmrc.training.graphed import GraphedStep
from lmrc.training.loop import Optimisation, train
from lmrc.training.objective import Objective
from lmrc.training.prefetch import Prefetcher, chunk_rows

CPU = torch.device("cpu")
GRAPHED = Execution(CPU, bf16=False, graph=True, compiled=False)
SETTINGS = [
    {},
    {"rotations": "one", "augment": "crop+flip"},
    {"rotations": "all", "augment": "jitter+cutout", "n_known": 2},
    {"resident": False, "augment": "crop+flip", "n_known": 1},
    {"rotations": "all", "augment": "cutmix", "n_known": 2},
    {"augment": "cutmix"},
]


def batches(n=50, size=4, **settings):
    """Mini-batches of images of which the last one is short."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, 3, 6, 6), dtype=torch.uint8, generator=rng)
    settings = {"n_known": 0, "augment": "none"} | settings
    return Batches(x, torch.arange(n) % 4, batch_size=size, device=CPU, **settings)


def network(seed=0):
    torch.manual_seed(seed)
    backbone = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU())
    return Network(Encoder(backbone, torch.zeros(3, 1, 1), torch.ones(3, 1, 1)), nn.Linear(5, 4))


def assert_same_weights(got, expected):
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(prefetch, "MAX_INPUTS", 24)  # 6 mini-batches of 4, or 1 with 4 rotations


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.usefixtures("small_chunks")
def test_chunks_hold_the_mini_batches_of_the_epoch(settings, monkeypatch):
    if settings.get("rotations") == "all":
        monkeypatch.setattr(prefetch, "MAX_INPUTS", 48)  # of 3
    data, plain = batches(**settings), batches(**settings)
    for served in (data, plain):
        served.sample_epoch(torch.Generator().manual_seed(3))

    def prepare(positions):
        return data.at(positions).rows()

    chunks = Prefetcher(prepare, data, 4, None, None)
    assert chunks.rows == (1 if data.buffer else 3 if settings.get("rotations") == "all" else 6)
    chunks.start(0)
    for i in range(12):
        if i % chunks.rows == 0:
            chunks.swap(is_last=i + chunks.rows >= 12)
        plain.load_next()
        taken = chunks.take()
        for name, part in plain.at(torch.arange(4 * i, 4 * i + 4)).rows().items():
            assert torch.equal(taken[name], part)
            assert taken[name].stride() == part.stride()  # compiled code is made for one layout
            assert taken[name].data_ptr() % 16 == 0  # and reads 16 bytes at a time


@dataclass
class Method:
    """What a step needs of a method."""

    losses: Callable
    needs_old_outputs: bool = True
    needs_features: bool = False

    def penalty(self, network, old_network):
        return {}


def taught(graph, plan, seed=lambda epoch: epoch, **settings):
    """Train with a frozen network and a term of every part of a mini-batch."""
    trained, frozen = network(), Frozen(network(seed=1))

    def losses(outputs, old_outputs, batch):
        weight = 1.0 + (batch.y < batch.n_known) * batch.reviews
        rotated = 0.0 if batch.rotation is None else 0.1 * batch.rotation
        weight = weight if batch.lam is None else weight + batch.lam
        new = nn.functional.cross_entropy(outputs, batch.y, reduction="none")
        moved = (batch.features - batch.old_features).square().sum(1)
        old = (outputs - old_outputs).square().sum(1)
        return {"new": weight * new + rotated, "old": old, "moved": 0.1 * moved}

    objective = Objective(Method(losses, needs_features=True), trained, frozen)
    records = train(
        trained,
        objective,
        batches(**settings),
        plan,
        seed=seed,
        prepare=objective.prepare,
        execution=GRAPHED if graph else None,
    )
    return trained.state_dict(), list(records)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.usefixtures("small_chunks")
def test_the_fast_step_gives_what_the_plain_one_gives(settings):
    plan = Optimisation(5, 0.02, (3,), 0.9, 5e-4, "cosine")
    expected, records = taught(False, plan, **settings)
    got, fast_records = taught(True, plan, **settings)
    for one, other in zip(records, fast_records, strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    assert_same_weights(got, expected)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "batch_size"),
        (RuntimeError("operation not permitted when stream is capturing"), "backbone must not"),
    ],
    ids=["memory", "backbone"],
)
def test_where_a_step_cannot_be_captured_training_goes_on_and_the_word_fits(
    error, advice, monkeypatch
):
    def refuse(work, stream):
        raise error

    plan = Optimisation(2, 0.02, (), 0.9, 0.0)
    expected, _ = taught(False, plan)
    monkeypatch.setattr(graphed, "Graph", refuse)
    with pytest.warns(UserWarning, match=f"cannot be captured.*{error}.*{advice}") as caught:
        got, _ = taught(True, plan)
    assert len(caught) == 1
    assert_same_weights(got, expected)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("settings", [{}, {"resident": False}], ids=str)
def test_epochs_of_one_seed_are_all_learnt_whole(settings):
    plan = Optimisation(4, 0.02, (), 0.9, 0.0)
    expected, _ = taught(False, plan, seed=lambda epoch: 0, **settings)
    got, _ = taught(True, plan, seed=lambda epoch: 0, **settings)
    assert_same_weights(got, expected)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("needed", [True, False])
def test_the_old_network_runs_a_chunk_at_a_time_and_where_it_is_needed(needed):
    sizes, old, trained = [], Frozen(network()), network()
    old.encoder.register_forward_hook(lambda module, inputs, out: sizes.append(len(inputs[0])))

    def losses(outputs, old_outputs, batch):
        assert (old_outputs is not None) == needed
        return {"old": (outputs - (old_outputs if needed else 0)).square().sum(1)}

    plan = Optimisation(1, 0.01, (), 0.0, 0.0)
    objective = Objective(Method(losses, needs_old_outputs=needed), trained, old)
    training = {"seed": lambda epoch: 0, "prepare": objective.prepare, "execution": GRAPHED}
    list(train(trained, objective, batches(n=48), plan, **training))
    # Two eager steps; a chunk to see its shape; ten steps in chunks of six.
    assert sizes == ([4, 4, 24, 24, 24] if needed else [])


class Recorded:
    """A graph as on a GPU: it does not hold on to the function that it was captured from."""

    def __init__(self, work, stream):
        of = weakref.WeakMethod(work)
        self.replay = lambda: of()()


def test_the_data_is_let_go_when_the_training_ends(monkeypatch):
    """At once, and not when Python next clears away: it fills the GPU, and more data comes."""
    for module in (prefetch, graphed):
        monkeypatch.setattr(module, "Graph", Recorded)
    plan = Optimisation(3, 0.01, (), 0.9, 0.0)
    list(train(*learner(), batches(), plan, seed=int))  # torch clears up after its first optimiser
    gc.collect()
    data = batches()
    gone = weakref.ref(data)
    gc.disable()
    try:
        list(train(*learner(), data, plan, seed=int, execution=GRAPHED))
        del data
        assert gone() is None
    finally:
        gc.enable()


def learner():
    """A network, and the loss that it learns by."""
    trained = network()

    def losses(batch):
        return {"new": nn.functional.cross_entropy(trained(batch.x), batch.y, reduction="none")}

    return trained, losses


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("n", [48, 49, 50])
def test_code_is_compiled_for_one_size_of_mini_batch_and_for_nothing_else(n):
    torch.compiler.reset()
    (trained, losses), compiled = learner(), []

    def backend(graph, inputs):
        compiled.extend(len(given) for given in inputs if given.dtype == torch.uint8)
        return graph.forward

    trained.encoder.compile(backend=backend, dynamic=False)
    plan = Optimisation(3, 0.01, (), 0.9, 0.0)
    list(train(trained, losses, batches(n), plan, seed=int, execution=GRAPHED))
    assert compiled == [4]  # not for a last one of 5 or 2


@pytest.mark.parametrize(
    ("n", "size", "settings", "rows"),
    [
        (5000, 128, {}, 8),  # 39 in 5 chunks
        (9 * 128, 128, {}, 5),  # 9 in 2 chunks, rather than 8 and 1
        (3 * 128, 128, {}, 3),
        (5000, 128, {"rotations": "all"}, 2),
        (5000, 2000, {}, 1),
        (5000, 128, {"resident": False}, 1),
    ],
)
def test_a_chunk_is_about_a_thousand_inputs(n, size, settings, rows):
    assert chunk_rows(batches(n, size, **settings), size) == rows


def test_a_chunk_of_large_images_is_smaller(monkeypatch):
    monkeypatch.setattr(prefetch, "MAX_VALUES", 3 * 128 * 3 * 6 * 6)
    assert chunk_rows(batches(3000, 128), 128) == 3


def test_the_next_epoch_is_sampled_once(monkeypatch):
    data, sampled = batches(), []
    monkeypatch.setattr(
        data, "sample_epoch", lambda generator: sampled.append(generator.initial_seed())
    )
    step = GraphedStep(lambda batch: {}, data, torch.optim.SGD(network().parameters()), bf16=False)
    step.sample_epoch(1)
    step.sample_epoch(1)
    assert sampled == [1]
    step.prefetch_epoch(2)
    step.sample_epoch(2)
    assert sampled == [1, 2]
