"""Learning without Forgetting: the old network's answers to the new data are learnt along."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lmrc.methods import parameters as legal
from lmrc.methods.base import IncrementalClassifier
from lmrc.methods.finetune import FineTuneClassifier
from lmrc.methods.parameters import Legal
from lmrc.nets.network import Network
from lmrc.training.batches import MiniBatch
from lmrc.training.step import Losses


class LwFClassifier(FineTuneClassifier):
    """Learning without Forgetting (Li and Hoiem, 2017), with one softmax layer or one per batch.

    ``heads="single"`` is LwF.MC: one softmax over all classes, whose answers for the old ones are
    distilled from the old network. ``heads="multi"`` is LwF.MT: a softmax for each task,
    each distilled on its own; at prediction the highest probability over all heads wins.

    Parameters are those of `FineTuneClassifier`, and:

    Parameters
    ----------
    heads : {"single", "multi"}, default="single"
        LwF.MT, ``"multi"``, takes no ``memory_per_class``: a head knows the classes of its own
        task alone, so pooled samples of others have nothing to teach it.
    distillation_weight : float, default=1.0
        Weight λ of the distillation.
    temperature : float, default=2.0
        Temperature of the distilled softmax; predictions are made at temperature 1.
    """

    shaping_parameters: ClassVar[tuple[str, ...]] = ("backbone", "heads")
    legal_values: ClassVar[dict[str, Legal]] = IncrementalClassifier.legal_values | {
        "heads": legal.one_of("single", "multi"),
        "distillation_weight": legal.real(0),
        "temperature": legal.real(0, closed=False),
    }

    def __init__(
        self,
        *,
        heads: Literal["single", "multi"] = "single",
        distillation_weight: float = 1.0,
        temperature: float = 2.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.heads = heads
        self.distillation_weight = distillation_weight
        self.temperature = temperature

    @property
    def needs_old_outputs(self) -> bool:  # type: ignore[override]
        """Whether there is anything to distil."""
        return self.distillation_weight > 0

    def losses(self, outputs: Tensor, old_outputs: Tensor | None, batch: MiniBatch) -> Losses:
        """Return the cross-entropy and the distillation of the old network's outputs."""
        terms = {"new": -(batch.targets * self.log_softmax(outputs)).sum(dim=1)}
        if old_outputs is not None:
            teacher = self.log_softmax(old_outputs / self.temperature).exp()
            student = self.log_softmax(outputs[:, : teacher.shape[1]] / self.temperature)
            terms["distillation"] = -self.distillation_weight * (teacher * student).sum(dim=1)
        return terms

    def log_softmax(self, logits: Tensor) -> Tensor:
        """Return log-probabilities: over all classes at hand, or within each head."""
        if self.heads == "single":
            return logits.log_softmax(dim=1)
        parts, start = [], 0
        for head in self.heads_:
            if start == logits.shape[1]:
                break  # the frozen network has fewer heads
            parts.append(logits[:, start : start + len(head)].log_softmax(dim=1))
            start += len(head)
        return torch.cat(parts, dim=1)

    def scores(self, network: Network, x: Tensor) -> Tensor:
        """Return probabilities: over all classes, or within each head."""
        return self.log_softmax(network(x)).exp()

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.heads == "multi":
            self._refuse_pool("with heads='multi' (LwF.MT) a head knows its own classes alone")
