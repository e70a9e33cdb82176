"""Joined rotations and kept encoders, or neither: small, for a CPU.

    python results/search/joined.py DATA SEED >> FILE

Fifty classes of CIFAR-100 in five tasks, at 16×16 pixels, 200 training images of each, scored on
100 others of its training images; a narrow ResNet, one random rotation. All have the same network.
Prints a JSON line for each task: accuracy on all classes so far by prediction rule.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lmrc import LMRCPlusClassifier, load_dataset
from lmrc.experiments.environment import hardware, versions
from lmrc.nets.backbones import ResNet

TASKS, CLASSES, TRAINED = 5, 10, 200


def narrow(input_shape: tuple[int, ...]) -> nn.Module:
    """Return a ResNet of 96 features in its third stage, and 192 in its last."""
    return ResNet(input_shape, (1, 1, 1, 1), channels=24)


def main(data_dir: str, seed: int) -> None:
    """Learn all tasks with either statistics."""
    torch.set_num_threads(1)
    data = load_dataset("cifar100", data_dir=data_dir)
    images = torch.tensor(data.X_train).permute(0, 3, 1, 2).float()
    x = F.avg_pool2d(images, 2).round().byte().permute(0, 2, 3, 1).numpy()
    order = np.random.RandomState(seed).permutation(100)[: TASKS * CLASSES]
    rows = [np.flatnonzero(data.y_train == label) for label in order]
    settings: dict[str, Any] = {
        "rotations": "one",
        "first_epochs": 40,
        "epochs": 20,
        "augment": "crop+flip",
        "random_state": seed,
    }
    how = {"versions": versions(), "hardware": hardware(torch.device("cpu"))}
    for joins, keeps in ((False, False), (True, False), (True, True)):
        ways: dict[str, Any] = {"join_rotations": joins, "keep_encoders": keeps}
        model = LMRCPlusClassifier(backbone=narrow, device="cpu", **ways, **settings)
        for k in range(0, TASKS * CLASSES, CLASSES):
            learnt = np.concatenate([row[:TRAINED] for row in rows[k : k + CLASSES]])
            model.partial_fit(x[learnt], data.y_train[learnt])
            scored = np.concatenate([row[400:] for row in rows[: k + CLASSES]])
            line: dict[str, Any] = {"seed": seed, "task": k // CLASSES + 1, **ways}
            for rule, scores in model.similarities_by_rule(x[scored]).items():
                right = model.classes_[scores.argmax(1)] == data.y_train[scored]
                line[rule] = round(100 * float(right.mean()), 2)
            print(json.dumps(line | {"settings": settings} | how), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], int(sys.argv[2]))
