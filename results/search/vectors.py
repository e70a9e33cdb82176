"""Vectors: class statistics of the vectors themselves, or an MLP that learns.

    python results/search/vectors.py --out results/search/vectors.jsonl

LMRC+ on scikit-learn's iris, wine and digits, and on the first principal components of the digits;
one or two classes at a time, every fourth sample for testing. Adds a JSON line for each run, and
prints the accuracy on all classes after the last task: the mean over seeds, which also permute the
classes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.decomposition import PCA
from torch import nn
from torch.nn import functional as F

from lmrc import LMRCPlusClassifier
from lmrc.experiments.environment import hardware, versions

SETS = {
    "iris": datasets.load_iris(return_X_y=True),
    "wine": datasets.load_wine(return_X_y=True),
    "digits": (digits := datasets.load_digits(return_X_y=True)),
    **{
        f"digits-{n}": (PCA(n, random_state=0).fit_transform(digits[0]), digits[1])
        for n in (5, 7, 9)
    },
}


class Constant(nn.Flatten):
    """As "homogeneous", with another constant."""

    def __init__(self, constant: float) -> None:
        super().__init__()
        self.constant = constant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features of shape (batch, inputs + 1)."""
        return F.pad(super().forward(x), (0, 1), value=self.constant)


WAYS: dict[str, dict[str, Any]] = {
    "identity": {"backbone": "identity"},
    "homogeneous": {"backbone": "homogeneous"},
    "constant-1": {"backbone": Constant(1.0), "freeze": True},
    "constant-2": {"backbone": Constant(2.0), "freeze": True},
    "mlp": {"backbone": "mlp", "freeze": False},
}


def main() -> None:
    """Measure each data set in both ways."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--classes", type=int, nargs="+", default=[1, 2], help="of a task")
    options = parser.parse_args()
    how = {"versions": versions(), "hardware": hardware(torch.device("cpu"))}
    for name in options.sets:
        for n in options.classes:
            print(f"{name}, {n} at a time:", end="")
            for way in options.ways:
                last = []
                for seed in range(options.seeds):
                    X, y = SETS[name]
                    found = accuracies(X, y, n, seed, WAYS[way])
                    last.append(found[-1])
                    line = {"data": name, "classes": n, "backbone": way, "seed": seed}
                    with options.out.open("a") as file:
                        file.write(json.dumps(line | {"accuracy": found} | how) + "\n")
                print(f"  {way} {100 * np.mean(last):.1f}", end="", flush=True)
            print()


def accuracies(X: Any, y: Any, n: int, seed: int, settings: dict[str, Any]) -> list[float]:
    """Return the accuracy on all classes seen, after each task of n classes."""
    model = LMRCPlusClassifier(random_state=seed, device="cpu", **settings)
    classes = np.random.default_rng(seed).permutation(np.unique(y))
    test, found = np.arange(len(y)) % 4 == 0, []
    for start in range(0, len(classes), n):
        task = np.isin(y, classes[start : start + n]) & ~test
        model.partial_fit(X[task], y[task])
        seen = np.isin(y, classes[: start + n]) & test
        found.append(float(model.score(X[seen], y[seen])))
    return found


if __name__ == "__main__":
    main()
