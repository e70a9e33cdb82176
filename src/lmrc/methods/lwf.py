"""Learning without Forgetting: the old network's outputs for the new data are distilled."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lmrc.methods.finetune import FineTuneClassifier
from lmrc.methods.parameters import parameter, real
from lmrc.nets.network import Network
from lmrc.training.batches import MiniBatch
from lmrc.training.step import Losses


class LwFClassifier(FineTuneClassifier):
    """Learning without Forgetting (Li and Hoiem, 2016), with one softmax layer or one per task.

    ``heads="single"`` is LwF.MC: one softmax over all classes, whose outputs for the old ones are
    distilled from the old network. ``heads="multi"`` is LwF.MT: a softmax for each task,
    each distilled on its own; at prediction the highest probability over all heads wins.

    LwF.MT takes no exemplars: a head covers the classes of its own task only, so it cannot learn
    from samples of others.
    """

    heads: Literal["single", "multi"] = parameter(
        default="single",
        help="One softmax over all classes (LwF.MC) or one per task (LwF.MT).",
        fixed=True,
    )
    distillation_weight: float = parameter(
        default=1.0, constraint=real(0), help="Weight λ of the distillation."
    )
    temperature: float = parameter(
        default=2.0,
        constraint=real(0, closed=False),
        help="Temperature of the distilled softmax; predictions are made at temperature 1.",
    )

    @property
    def needs_old_outputs(self) -> bool:  # type: ignore[override]
        """Whether there is anything to distil."""
        return self.distillation_weight > 0

    def losses(self, outputs: Tensor, old_outputs: Tensor | None, batch: MiniBatch) -> Losses:
        """Return the cross-entropy and the distillation of the old network's outputs."""
        terms = {"new": -(batch.targets * self._log_softmax(outputs)).sum(dim=1)}
        if old_outputs is not None:
            teacher = self._log_softmax(old_outputs / self.temperature).exp()
            student = self._log_softmax(outputs[:, : teacher.shape[1]] / self.temperature)
            terms["distillation"] = -self.distillation_weight * (teacher * student).sum(dim=1)
        return terms

    def _log_softmax(self, logits: Tensor) -> Tensor:
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
        return self._log_softmax(network(x)).exp()

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.heads == "multi":
            self._refuse_exemplars("with heads='multi' (LwF.MT) a head knows its own classes alone")
