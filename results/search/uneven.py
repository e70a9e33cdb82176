"""Twenty classes at first, then two at a time: settings for small tasks after a large one.

    python results/search/uneven.py DATA SEED SETTING …

Small, for a CPU: 30 classes of CIFAR-100 at 16×16 pixels, 250 training images of each, scored on
100 others of its training images, a narrow residual network, one random rotation. Prints a JSON
line for each setting and task: accuracy in per cent on all classes, on the first twenty and on the
others, by prediction rule.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmrc import LMRCPlusClassifier, load_dataset
from lmrc.nets.backbones import BasicBlock

FIRST, NEW, STEPS, TRAINED = 20, 2, 5, 250

#: What is set from the second task on. "fixed": BatchNorm's statistics stay; "classes": the
#: Response Loss of a head is weighted by the ratio of its classes to the new head's.
SETTINGS: dict[str, dict[str, Any]] = {
    "base": {},
    "classes": {},
    "fixed": {},
    "short": {"epochs": 6},
    "slow": {"learning_rate": 0.004},
    "ratio": {"learning_rate": 0.002},
    "freeze": {"freeze": True},
}


class Narrow(nn.Module):
    """A residual network with more features than label vectors have dimensions."""

    fixed = False

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16))
        self.a, self.b = BasicBlock(16, 16, 1), BasicBlock(16, 32, 2)
        self.c = BasicBlock(32, 160, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (batch, 160)."""
        out: Tensor = self.c(self.b(self.a(torch.relu(self.stem(x))))).mean(dim=(2, 3))
        return out

    def train(self, mode: bool = True) -> Self:
        """Set training mode, but not that of BatchNorm where it is fixed."""
        super().train(mode)
        for module in self.modules():
            if self.fixed and isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


class Weighted(LMRCPlusClassifier):
    """LMRC+ that may weight the Response Loss by classes."""

    by_classes = False

    def losses(self, outputs: Any, old_outputs: Any, batch: Any) -> Any:
        """Return the terms of LMRC+, the Response Loss weighted."""
        terms = dict(super().losses(outputs, old_outputs, batch))
        if old_outputs is not None and self.by_classes:
            k = old_outputs.shape[1]
            similarity = (outputs[:, :k] * old_outputs).sum(-1)
            weight = torch.tensor(self._head_sizes[:k]) / self._head_sizes[k]
            terms["response"] = -self.response_weight * (similarity * weight).sum(1)
        return terms


def main(data_dir: str, seed: int, *settings: str) -> None:
    """Learn the first task once, then continue with each setting."""
    data = load_dataset("cifar100", data_dir=data_dir)
    images = torch.tensor(data.X_train).permute(0, 3, 1, 2).float()
    x = F.avg_pool2d(images, 2).round().byte().permute(0, 2, 3, 1).numpy()
    order = np.random.RandomState(seed).permutation(100)[: FIRST + NEW * STEPS]
    rows = [np.flatnonzero(data.y_train == label) for label in order]
    ends = [FIRST + NEW * k for k in range(STEPS + 1)]

    def learn(model: Any, begin: int, end: int) -> None:
        at = np.concatenate([row[:TRAINED] for row in rows[begin:end]])
        model.partial_fit(x[at], data.y_train[at])

    def score(model: Any, setting: str, k: int) -> None:
        at = np.concatenate([row[400:] for row in rows[: ends[k]]])
        line: dict[str, Any] = {"seed": seed, "setting": setting, "task": k}
        for name, scores in model.similarities_by_rule(x[at]).items():
            correct = 100 * (model.classes_[scores.argmax(1)] == data.y_train[at])
            parts = [correct, correct[: 100 * FIRST], correct[100 * FIRST :]]
            line[name] = [round(float(part.mean()), 1) for part in parts if len(part)]
        print(json.dumps(line), flush=True)

    torch.set_num_threads(1)
    first = Weighted(
        backbone=Narrow,
        label_dim=40,
        rotations="one",
        first_epochs=30,
        epochs=25,
        augment="crop+flip",
        device="cpu",
        random_state=seed,
    )
    learn(first, 0, FIRST)
    score(first, "first", 0)
    for setting in settings:
        model = copy.deepcopy(first).set_params(**SETTINGS[setting])
        model.by_classes = setting == "classes"
        model.network_.encoder.backbone.fixed = setting == "fixed"
        for k in range(1, STEPS + 1):
            learn(model, ends[k - 1], ends[k])
            score(model, setting, k)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
