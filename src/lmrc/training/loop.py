"""The only optimisation loop: SGD over the epochs of one task."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lmrc.training import cutmix
from lmrc.training.batches import Batches, MiniBatch
from lmrc.training.checkpoint import NO_CHECKPOINT, Checkpoint
from lmrc.training.device import Execution, compiled, uncompiled
from lmrc.training.distributed import DistributedStep
from lmrc.training.graphed import GraphedStep
from lmrc.training.step import LossFunction, Step

EpochRecord = dict[str, float]

WARM_UP = 1  # epochs of warm-up in the cosine schedule,
MAX_WARM_UP = 0.2  # but at most this share of all


class TrainingError(ArithmeticError):
    """Training diverged: the loss is not finite."""


@dataclass(frozen=True)
class Optimisation:
    """Hyper-parameters of SGD for one task."""

    epochs: int
    learning_rate: float
    halve_at: Sequence[float]
    momentum: float
    weight_decay: float
    schedule: str = "halving"

    def rate(self, at: float) -> float:
        """Learning rate after ``at`` epochs.

        >>> plan = Optimisation(70, 0.08, (50 / 70, 60), 0.9, 5e-4)
        >>> [plan.rate(epoch) for epoch in (0, 49, 50, 60)]
        [0.08, 0.08, 0.04, 0.02]
        """
        if self.schedule == "cosine":
            return self.learning_rate * cosine(at, self.epochs)
        return self.learning_rate * halving(at, self.epochs, self.halve_at)

    def rates(self, epoch: int, n_steps: int) -> list[float]:
        """Learning rate of each step of an epoch: that of the step's middle."""
        return [self.rate(epoch + (step + 0.5) / n_steps) for step in range(n_steps)]


def halving(at: float, epochs: int, milestones: Sequence[float]) -> float:
    """Return the factor of the rate after ``at`` epochs: halved at each milestone.

    Milestones are epochs (ints) or fractions of them (floats).

    >>> [halving(at, 70, (50 / 70, 60)) for at in (0, 49.5, 50, 60)]
    [1.0, 1.0, 0.5, 0.25]
    """
    passed = (m if isinstance(m, int) else round(m * epochs) for m in milestones)
    factor: float = 0.5 ** sum(at >= milestone for milestone in passed)
    return factor


def cosine(at: float, epochs: int) -> float:
    """Return the factor of the rate after ``at`` epochs: linear warm-up, then a cosine to 0.

    >>> [round(cosine(at, 11), 3) for at in (0, 0.5, 1, 6, 11)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    warm_up = min(WARM_UP, MAX_WARM_UP * epochs)
    if at < warm_up:
        return at / warm_up
    return 0.5 + 0.5 * math.cos(math.pi * (at - warm_up) / (epochs - warm_up))


def train(
    network: nn.Module,
    losses: LossFunction,
    batches: Batches,
    optimisation: Optimisation,
    *,
    seed: Callable[[int], int],
    execution: Execution | None = None,
    old: nn.Module | None = None,
    prepare: Callable[[MiniBatch], MiniBatch] | None = None,
    checkpoint: Checkpoint = NO_CHECKPOINT,
) -> Iterator[EpochRecord]:
    """Train a network in place; yield the mean loss terms after each epoch.

    `losses` maps a mini-batch to the terms of the loss, which may use the `old` network; `prepare`
    adds to a mini-batch what can be computed before its step. `seed` maps an epoch to the seed of
    everything random in it: order, augmentation, dropout. The checkpoint restores the state to
    resume from, and saves it after each epoch; the records of epochs that are done are yielded
    again.
    """
    execution = execution or Execution(batches.device, bf16=False, graph=False, compiled=False)
    optimiser = _sgd(network, optimisation, batches.device)
    with compiled(network, old) if execution.compiled else nullcontext():
        step: Step
        if batches.ranks.is_distributed:
            step = DistributedStep(network, losses, batches, optimiser, bf16=execution.bf16)
        elif execution.graph:
            step = GraphedStep(
                *(losses, batches, optimiser),
                bf16=execution.bf16,
                **({"prepare": prepare} if prepare else {}),
            )
        else:
            step = Step(losses, batches, optimiser, bf16=execution.bf16)
        yield from _epochs(step, network, optimisation, seed, checkpoint)
    optimiser.zero_grad(set_to_none=True)
    if not _outputs_are_finite(network, batches, seed(optimisation.epochs)):
        raise TrainingError(
            "the network's outputs are not finite after the last epoch: lower learning_rate "
            f"(now {optimisation.learning_rate:g})"
        )


def _epochs(
    step: Step,
    network: nn.Module,
    optimisation: Optimisation,
    seed: Callable[[int], int],
    checkpoint: Checkpoint,
) -> Iterator[EpochRecord]:
    """Run all epochs; yield their records."""
    batches, optimiser = step.batches, step.optimiser
    records = checkpoint.restore(network, optimiser)
    yield from records
    for epoch in range(len(records), optimisation.epochs):
        rates = optimisation.rates(epoch, len(batches.sizes))
        step.sample_epoch(seed(epoch))
        network.train()
        with torch.enable_grad(), seeded_rng(seed(epoch), batches):
            next_seed = seed(epoch + 1) if epoch + 1 < optimisation.epochs else None
            means = step.epoch(rates, next_seed)
        if not math.isfinite(sum(means.values())):
            raise TrainingError(
                f"the loss is not finite in epoch {epoch + 1} ({means}): "
                f"lower learning_rate (now {optimisation.learning_rate:g})"
            )
        record = {"epoch": epoch, "learning_rate": optimisation.rate(epoch + 0.5)}
        if batches.cutmix:
            record["cutmix"] = cutmix.PROBABILITY
        records.append({**record, **means, "loss": sum(means.values())})
        checkpoint.save(records, network, optimiser)
        yield records[-1]
    step.end()


def _sgd(
    network: nn.Module, optimisation: Optimisation, device: torch.device
) -> torch.optim.Optimizer:
    on_gpu = device.type == "cuda"
    # On a GPU the rate is a tensor, so that captured steps see it change.
    rate = torch.tensor(optimisation.learning_rate, device=device) if on_gpu else None
    return torch.optim.SGD(
        [p for p in network.parameters() if p.requires_grad],
        lr=optimisation.learning_rate if rate is None else rate,
        momentum=optimisation.momentum,
        weight_decay=optimisation.weight_decay,
        fused=on_gpu,
    )


def _outputs_are_finite(network: nn.Module, batches: Batches, seed: int) -> bool:
    """Run the network on a mini-batch: the last step may have made it diverge.

    No loss shows that, and the model would be saved.
    """
    batches.sample_epoch(torch.Generator().manual_seed(seed))
    _, positions = next(iter(batches.shards()))
    with torch.no_grad(), uncompiled():
        outputs = tree_leaves(network.eval()(batches.at(positions).x))
        return all(bool(part.isfinite().all()) for part in outputs if isinstance(part, Tensor))


@contextmanager
def seeded_rng(seed: int, batches: Batches) -> Iterator[None]:
    """Seed torch's global generators, which dropout uses, for an epoch; restore them after it.

    Each rank has its own seed, as it has its own samples.
    """
    on_gpu = batches.device.type == "cuda"
    with torch.random.fork_rng(devices=[batches.device] if on_gpu else []):
        torch.default_generator.manual_seed(seed + batches.ranks.rank)
        if on_gpu:
            with torch.cuda.device(batches.device):  # which may not be the current one
                torch.cuda.manual_seed(seed + batches.ranks.rank)
        yield
