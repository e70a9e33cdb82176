"""Scores for unknown samples among vectors: LMRC+ with weights of the residual.

    python results/search/unknown_vectors.py --mnist DATA --features flowers12=FILE --out FILE

Scikit-learn's digits and wine without every fourth sample, pixels of MNIST's training images, and
features of photographs: files of ``unknown.py --cache``, 60 images of each class. Half of the
classes are known, and of them so many samples are learnt; the others are scored, and all samples of
the unknown classes, 300 of a class at most. Writes a JSON line for each set and score: the AUROC of
each draw of the known classes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets

from lmrc import LMRCPlusClassifier
from lmrc.data.datasets import load_dataset
from lmrc.evaluation.trust import separation
from lmrc.experiments.environment import hardware, versions
from lmrc.statistics import calibration

Array = np.ndarray[Any, Any]
WEIGHTS = ((2.0, 0.0), (2.0, 0.5), (3.0, 0.0))  # as `calibration.Weights` has them
EACH, MOST = 60, 300  # images of a class in a file of features; samples of a class to score


def sets(given: argparse.Namespace) -> Iterator[tuple[str, Array, Array, list[int]]]:
    """Yield name, samples, classes, and how many samples of a class are learnt."""
    for name, load, train in (
        ("digits", datasets.load_digits, 120),
        ("wine", datasets.load_wine, 30),
    ):
        x, y = load(return_X_y=True)
        kept = np.arange(len(y)) % 4 != 0
        yield name, x[kept], y[kept], [train]
    for text in given.features:
        name, _, file = text.partition("=")
        views = np.load(file)
        each = [np.hstack([0.1 * views[f"{v}_blocks"], views[f"{v}_last"]]) for v in VIEWS]
        x = np.mean(each, axis=0)[:, -WIDTH:]
        yield name, x, np.arange(len(x)) // EACH, [40]
    if given.mnist:
        data = load_dataset("mnist", data_dir=given.mnist)
        x, y = np.asarray(data.X_train).reshape(len(data.y_train), -1), np.asarray(data.y_train)
        yield "mnist", x.astype(np.float32) / 255, y, [50, 300]


VIEWS, WIDTH = ("plain", "flip"), 192 + 320 + 1280  # of the last two blocks, and the last layer


def aurocs(x: Array, y: Array, train: int, seed: int) -> Iterator[tuple[str, float]]:
    """Yield the AUROC of each score, for a draw of the known classes."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation(y.max() + 1)
    known = -(-len(classes) // 2)
    rows = [rng.permutation(np.flatnonzero(y == c)) for c in classes]
    learnt = np.concatenate([r[:train] for r in rows[:known]])
    others = np.concatenate([r[train:][:MOST] for r in rows[:known]])
    unknown = np.concatenate([r[:MOST] for r in rows[known:]])
    for i, weights in enumerate(WEIGHTS):
        calibration.USUAL = calibration.Weights(*weights)
        model = LMRCPlusClassifier(random_state=0, device="cpu", backbone="identity")
        model.partial_fit(x[learnt], y[learnt])
        one, other = model.outputs(x[others]), model.outputs(x[unknown])
        if not i:
            highest = -one.similarities.max(axis=1), -other.similarities.max(axis=1)
            yield "maximum similarity", separation(*highest).auroc
        yield "weight {:g}, relative {:g}".format(*weights), separation(*one[2:], *other[2:]).auroc


def main() -> None:
    """Write a line for each set and score; print the means."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--features", nargs="*", default=[], metavar="NAME=FILE")
    parser.add_argument("--mnist", type=Path, help="folder of MNIST")
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    how = {"versions": versions(), "hardware": hardware(torch.device("cpu"))}
    with given.out.open("w", encoding="utf-8") as out:
        for name, x, y, trained in sets(given):
            for train in trained:
                found: dict[str, list[float]] = {}
                for seed in range(given.draws):
                    for score, auroc in aurocs(x, y, train, seed):
                        found.setdefault(score, []).append(auroc)
                for score, values in found.items():
                    print(f"{name}, {train}: {score}: {np.mean(values):.3f}", flush=True)
                    line = {"data": name, "train": train, "score": score, "auroc": values}
                    print(json.dumps(line | how), file=out, flush=True)


if __name__ == "__main__":
    main()
