"""Vectors: class statistics of the vectors themselves, or an MLP that learns.

    python results/search/vectors.py --out results/search/vectors.jsonl

LMRC+ on scikit-learn's iris, wine and digits, two classes at a time, every fourth sample for
testing. Writes a JSON line for each run, and prints the accuracy on all classes after the last
task: the mean over seeds, which also permute the classes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets

from lmrc import LMRCPlusClassifier
from lmrc.experiments.environment import hardware, versions

SETS = {"iris": datasets.load_iris, "wine": datasets.load_wine, "digits": datasets.load_digits}
WAYS: dict[str, dict[str, Any]] = {
    "identity": {"backbone": "identity"},
    "mlp": {"backbone": "mlp", "freeze": False},
}


def main() -> None:
    """Measure each data set in both ways."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    how = {"versions": versions(), "hardware": hardware(torch.device("cpu"))}
    lines = []
    for name, load in SETS.items():
        print(name, end="")
        for way, settings in WAYS.items():
            last = []
            for seed in range(options.seeds):
                X, y = load(return_X_y=True)
                found = accuracies(X, y, seed, settings)
                last.append(found[-1])
                line = {"data": name, "backbone": way, "seed": seed, "accuracy": found}
                lines.append(line | how)
            print(f"  {way} {100 * np.mean(last):.1f}", end="", flush=True)
        print()
    options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


def accuracies(X: Any, y: Any, seed: int, settings: dict[str, Any]) -> list[float]:
    """Return the accuracy on all classes seen, after each task."""
    model = LMRCPlusClassifier(random_state=seed, device="cpu", **settings)
    classes = np.random.default_rng(seed).permutation(np.unique(y))
    test, found = np.arange(len(y)) % 4 == 0, []
    for start in range(0, len(classes), 2):
        task = np.isin(y, classes[start : start + 2]) & ~test
        model.partial_fit(X[task], y[task])
        seen = np.isin(y, classes[: start + 2]) & test
        found.append(float(model.score(X[seen], y[seen])))
    return found


if __name__ == "__main__":
    main()
