"""Elastic Weight Consolidation: a penalty keeps important weights near their old values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from lmrc.data.inputs import Inputs
from lmrc.methods.finetune import FineTuneClassifier
from lmrc.methods.parameters import parameter, real
from lmrc.methods.rng import STATISTICS
from lmrc.nets.network import Network
from lmrc.training.memory import Memory
from lmrc.training.step import Losses

# Gradient values in memory at a time, as each sample has its own gradient. A GPU is faster with
# more of them (an H200 twice), up to a sixteenth of its memory.
CHUNK_ELEMENTS, ON_GPU = 2**28, 2**30


class EWCClassifier(FineTuneClassifier):
    """Fine-tuning with Elastic Weight Consolidation (Kirkpatrick et al., 2017).

    Adds ½ λ Σᵢ Fᵢ (θᵢ − θᵢ*)² to the cross-entropy: θ* are the weights after the last task,
    F the diagonal of the Fisher information, summed over all tasks so far. One penalty in place of
    one for each task: Huszár, "Note on the quadratic penalties in elastic weight consolidation",
    2018.

    Attributes
    ----------
    fisher_ : dict of Tensor
        F by the name of the weight.
    """

    saved_tensors: ClassVar[tuple[str, ...]] = ("fisher_",)

    penalty_weight: float = parameter(
        default=1000.0, constraint=real(0), help="Strength λ of the penalty."
    )

    def after_task(self, network: Network, samples: Memory) -> None:
        """Add this task's Fisher information to that of the earlier ones."""
        generator = torch.Generator().manual_seed(self._seed(STATISTICS))
        fisher = fisher_diagonal(network, samples.x, generator)
        for name, earlier in getattr(self, "fisher_", {}).items():
            if name in fisher:
                before_growth(fisher[name], earlier.shape).add_(earlier.to(fisher[name]))
            else:  # this task was learnt on features
                fisher[name] = earlier
        self.fisher_: dict[str, Tensor] = fisher

    def init_network(self, frozen: Network | None, x: Inputs) -> Network:
        """Return the network to train; move the Fisher information to its device.

        After loading it is on the CPU, from which a captured training step cannot read.
        """
        if frozen is not None:
            # Tasks learnt on features have no Fisher information of the backbone.
            self.fisher_ = {
                name: self.fisher_.get(name, torch.zeros_like(p)).to(p)
                for name, p in frozen.named_parameters()
            }
        return super().init_network(frozen, x)

    def penalty(self, network: Network, old_network: Network) -> Losses:
        """Return ½ λ Σ F (θ − θ*)², over the weights that were there before."""
        if self.penalty_weight == 0:
            return {}
        old = {name: p.detach() for name, p in old_network.named_parameters()}
        both = zip(old.values(), network.parameters(), strict=True)
        new = [before_growth(p, o.shape) for o, p in both]
        # With a curvature above 1 / learning rate a step of SGD overshoots, and with a few times
        # that it diverges. A weight with such a penalty hardly moves anyway.
        fisher = flat(self.fisher_[name] for name in old)
        curvature = (self.penalty_weight * fisher).clamp(max=1 / self.learning_rate)
        return {"ewc": 0.5 * (curvature * (flat(new) - flat(old.values())).square()).sum()}

    def check_saved(self) -> None:
        """Refuse Fisher information that does not fit the network's weights."""
        found = {name: t.shape for name, t in self.fisher_.items()}
        wanted = {name: p.shape for name, p in self.network_.named_parameters()}
        heads = {name: shape for name, shape in wanted.items() if name.startswith("head.")}
        if found not in (wanted, heads):  # of a frozen backbone, the head's alone
            raise ValueError("the Fisher information is not of the network's weights")


def before_growth(weights: Tensor, shape: torch.Size) -> Tensor:
    """Return the part of weights that was there before: a classifier's first rows, or all."""
    return weights if weights.shape == shape else weights[: shape[0]]


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """Return all values of tensors in one row, so that one operation does for all."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def fisher_diagonal(network: Network, x: Inputs, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the mean over samples of the squared gradient of log p(y | x), for each weight.

    One gradient per sample, squared, then averaged: the square of the mean gradient would be about
    zero at a minimum. The label y is sampled from the network's output, as the Fisher information
    asks; with the true labels of training samples it would vanish as they are learnt.
    """
    weights = {name: p.detach() for name, p in network.named_parameters()}
    others = {name: b.detach() for name, b in network.named_buffers()}

    def log_likelihood(weights: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(network, (weights, others), (sample[None],))
        return -F.cross_entropy(logits, label[None])

    per_sample = vmap(grad(log_likelihood), in_dims=(None, 0, 0))
    fisher = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    device = network.encoder.mean.device
    held = CHUNK_ELEMENTS
    if device.type == "cuda":
        held = min(ON_GPU, torch.cuda.get_device_properties(device).total_memory // (4 * 16))
    chunk = max(1, held // sum(weight.numel() for weight in weights.values()))
    network.eval()
    for start in range(0, len(x), chunk):
        part = x[start : start + chunk].to(device)
        with torch.no_grad():
            outputs = network(part).softmax(dim=1).cpu()
        labels = torch.multinomial(outputs, 1, generator=generator)[:, 0].to(device)
        for name, gradients in per_sample(weights, part, labels).items():
            fisher[name] += gradients.square().sum(dim=0)
    return {name: total / len(x) for name, total in fisher.items()}
