"""Whether the map for feature drift should be fitted on exemplars, too.

    python results/search/exemplars.py DATA ORDER --out FILE [--small] [--tasks 10]

LMRC+ with 20 exemplars per class and snapshots, on 450 training images of each class of CIFAR-100,
scored on the other 50. One training, and three versions of the class statistics: "all" fits the map
on new images and exemplars, as LMRC+ does; "new" on new images alone; "true" has the statistics of
all images so far, and tells what better ones would bring; it has no snapshots. Exemplars' features
take part in fine-tuning in each. A JSON line for each task and version: accuracy by prediction
rule.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import numpy as np
import torch
from compensation import PER_TASK, narrow
from torch.nn import functional as F

from lmrc import LMRCPlusClassifier, load_dataset
from lmrc.experiments.environment import hardware, versions
from lmrc.methods import class_statistics
from lmrc.statistics import update
from lmrc.statistics.drift import Drift

STATE = ("statistics_", "classifiers_", "earlier_", "snapshots_")
VERSIONS = ("true", "new", "all")  # the last one is the model's own
states: dict[str, dict[str, Any]] = {version: {} for version in VERSIONS}


class OfNew(Drift):
    """A map that is fitted on new images alone."""

    off = False

    def add(self, old: torch.Tensor, new: torch.Tensor) -> Self:
        """Take images into account, but for exemplars."""
        return self if OfNew.off else super().add(old, new)


class Exemplars:
    """A buffer; while it is read, no map is fitted."""

    def __init__(self, memory: Any) -> None:
        self.memory, self.y, self.x = memory, memory.y, memory.x

    def __len__(self) -> int:
        return len(self.memory)

    def of_class(self, row: int) -> Any:
        """Return a class; it is the last thing that is done with the task."""
        OfNew.off = True
        return self.memory.of_class(row)


def on_new_images(before: Any, old: Any, new: Any, task: Any, exemplars: Any, **how: Any) -> Any:
    """Update statistics by a map of new images."""
    OfNew.off = False
    with patch.object(update, "Drift", OfNew):
        buffer: Any = Exemplars(exemplars)
        return update.update_statistics(before, old, new, task, buffer, **how)


def on_all_images(before: Any, old: Any, new: Any, task: Any, exemplars: Any, **how: Any) -> Any:
    """Return the statistics of all images so far."""
    if how.pop("earlier", ()) or old is not None:
        task = seen[-1].joined(task.x, task.y)
    seen.append(task)
    how.pop("by_earlier", None)
    return update.update_statistics(before.emptied(), None, new, task, exemplars, **how)


UPDATES = {"all": update.update_statistics, "new": on_new_images, "true": on_all_images}
seen: list[Any] = []


class Three(LMRCPlusClassifier):
    """Updates each version of the statistics."""

    def _update(self, *args: Any) -> Any:
        for version in VERSIONS:
            self.__dict__.update(states[version])
            with patch.object(class_statistics, "update_statistics", UPDATES[version]):
                found = super()._update(*args)
            states[version] = {name: getattr(self, name) for name in STATE}
        return found


def main() -> None:
    """Learn, and score each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("order", type=int)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    data = load_dataset("cifar100", data_dir=given.data)
    images, labels, trained_on = np.asarray(data.X_train), np.asarray(data.y_train), 450
    settings: dict[str, Any] = {"memory_per_class": 20, "predict_with": "snapshots"}
    settings |= {"random_state": 0, "backbone": "resnet18", "compile": True}
    if given.small:
        torch.set_num_threads(1)
        x = F.avg_pool2d(torch.tensor(images).permute(0, 3, 1, 2).float(), 2).round().byte()
        images, trained_on = x.permute(0, 2, 3, 1).contiguous().numpy(), 250
        settings |= {"backbone": narrow, "augment": "crop+flip", "rotations": "one"}
        settings |= {"compile": False, "first_epochs": 30, "epochs": 20, "learning_rate": 0.05}
    order = np.random.RandomState(given.order).permutation(100)[: given.tasks * PER_TASK]
    rows = [
        np.random.RandomState(1000 + int(label)).permutation(np.flatnonzero(labels == label))
        for label in order
    ]
    model = Three(**settings)
    for t in range(given.tasks):
        began = time.monotonic()
        new = range(PER_TASK * t, PER_TASK * (t + 1))
        learnt = np.concatenate([rows[c][:trained_on] for c in new])
        scored = np.concatenate([rows[c][450:] for c in range(PER_TASK * (t + 1))])
        model.partial_fit(images[learnt], labels[learnt])
        for version in VERSIONS:
            model.__dict__.update(states[version])
            found = {
                rule: round(100 * float((model.classes_[s.argmax(1)] == labels[scored]).mean()), 2)
                for rule, s in model.similarities_by_rule(images[scored]).items()
            }
            record = {"order": given.order, "after": t + 1, "fitted on": version, "found": found}
            record |= {"seconds": round(time.monotonic() - began), "versions": versions()}
            record |= {"settings": {k: str(v) for k, v in settings.items()}}
            record |= {"hardware": hardware(model.network_.encoder.mean.device)}
            with given.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(t + 1, version, json.dumps(found), record["seconds"], flush=True)


if __name__ == "__main__":
    main()
