"""Few photographs of each class: prediction rules on a frozen pre-trained backbone.

    python results/search/few_images.py FOLDER --out FILE [--held-out] [--adapt] [--variants]

FOLDER has train/ and test/ with a sub-folder of images for each class. A draw picks a class order
and some training images of each class; tasks have three classes. With ``--held-out``, accuracy is
on training images that were not drawn, at least a fifth of each class: for choosing a rule. Else it
is on the test images. Features are computed once; statistics and rules are those of LMRC+. With
``--adapt``, the backbone is adapted to the first task of each draw, as by ``freeze="later"``, which
takes minutes a draw. ``--variants`` adds other ridges, another shrinkage and sums of rules, and
``--size`` is another size of images. Writes a JSON line for each draw and rule, and prints average
incremental / last accuracy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmrc import Dataset, LMRCPlusClassifier, load_dataset
from lmrc.experiments.environment import hardware, versions
from lmrc.nets.network import Encoder, build_encoder
from lmrc.statistics import classifiers, prediction_rules, ridge
from lmrc.statistics.scatter import Scatter
from lmrc.statistics.update import add_task
from lmrc.training.features import extract
from lmrc.training.memory import Memory

BACKBONE, SIDE, PROJECTIONS = "efficientnet-lite0", 224, 4000
TASK, HELD_OUT = 3, 0.2
CPU = torch.device("cpu")

Rows = NDArray[np.int64]


def main() -> None:
    """Measure all draws, and print the means."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--per-class", type=int, nargs="+", default=[1, 5, 10, 0], help="0: all")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--adapt", action="store_true")
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--size", type=int, default=SIDE)
    options = parser.parse_args()
    data = load_dataset(f"folder:{options.folder}", size=options.size)
    y, y_test = np.asarray(data.y_train), np.asarray(data.y_test)
    how = {"backbone": BACKBONE, "projections": PROJECTIONS, "versions": versions()}
    how |= {"hardware": hardware(CPU), "data": data.digest, "held_out": options.held_out}
    how |= {"adapted": options.adapt, "size": options.size}
    lines: list[dict[str, Any]] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    encoder = None
    for per_class in options.per_class:
        for seed in range(options.draws):
            drawn, tasks, rest = draw(y, per_class, seed, options.held_out)
            if encoder is None or options.adapt:
                encoder = (
                    adapted(data, drawn, tasks[0], seed)
                    if options.adapt
                    else pretrained(options.size)
                )
                x = features(encoder, data.X_train)
                x_test = x if options.held_out else features(encoder, data.X_test)
            scored = rest if options.held_out else np.arange(len(y_test))
            labels = (y if options.held_out else y_test)[scored]
            by_rule = variants if options.variants else standard
            found_by = learn(x, y, drawn, tasks, x_test[scored], labels, by_rule)
            for rule, found in found_by.items():
                line: dict[str, Any] = {"per_class": per_class, "seed": seed, "rule": rule}
                lines.append(line | {"accuracy": found, **how})
            options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
        print(f"{per_class or 'all'} images of a class", end="")
        for rule in found_by:
            of = [a["accuracy"] for a in lines if (a["per_class"], a["rule"]) == (per_class, rule)]
            average, last = 100 * np.mean(of), 100 * np.mean([found[-1] for found in of])
            print(f"  {rule} {average:.1f} / {last:.1f}", end="")
        print(flush=True)


def pretrained(size: int) -> Encoder:
    """Return the backbone as it comes."""
    name = BACKBONE if size == SIDE else f"{BACKBONE}@{size}"
    encoder, _ = build_encoder(name, (3, size, size))
    return encoder.eval()


def adapted(data: Dataset, drawn: Rows, task: NDArray[Any], seed: int) -> Encoder:
    """Return the backbone adapted to a first task."""
    rows = drawn[np.isin(np.asarray(data.y_train)[drawn], task)]
    learner = LMRCPlusClassifier(
        backbone=BACKBONE, freeze="later", projections=PROJECTIONS, random_state=seed, device="cpu"
    )
    x, y = np.asarray(data.X_train)[rows], np.asarray(data.y_train)[rows]
    return learner.fit(x, y).network_.encoder


def features(encoder: Encoder, images: NDArray[Any]) -> Tensor:
    """Return the features of images, the mean over each and its horizontal flip."""
    x = torch.from_numpy(np.asarray(images)).permute(0, 3, 1, 2)
    return extract(encoder, x, 2, flip=True, bf16=False)


def draw(
    y: NDArray[Any], per_class: int, seed: int, held_out: bool
) -> tuple[Rows, list[NDArray[Any]], Rows]:
    """Return the rows of training images, the classes of each task, and the rows left over."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.unique(y))
    drawn, rest = [], []
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        most = len(rows) - held_out * round(HELD_OUT * len(rows))
        n = min(per_class or most, most)
        drawn.append(rows[:n])
        rest.append(rows[n:])
    tasks = [classes[i : i + TASK] for i in range(0, len(classes), TASK)]
    return np.concatenate(drawn), tasks, np.concatenate(rest)


def learn(
    x: Tensor,
    y: NDArray[Any],
    drawn: Rows,
    tasks: list[NDArray[Any]],
    x_test: Tensor,
    y_test: NDArray[Any],
    by_rule: Callable[[Scatter, Tensor], Iterator[tuple[str, Tensor]]],
) -> dict[str, list[float]]:
    """Return the accuracy on all classes seen, after each task, by rule."""
    scatter, seen = Scatter.empty(2 * x.shape[1] + PROJECTIONS), list[Any]()
    accuracy: dict[str, list[float]] = {}
    for task in tasks:
        for label in task:
            rows = drawn[y[drawn] == label]
            samples = Memory(x[rows], torch.full((len(rows),), len(seen)))
            scatter = add_task(scatter, samples, PROJECTIONS, CPU)
            seen.append(label)
        tested = np.isin(y_test, seen)
        truth = np.array([seen.index(label) for label in y_test[tested]])
        for rule, scores in by_rule(scatter, x_test[torch.from_numpy(tested)]):
            right = scores.argmax(dim=1).numpy() == truth
            accuracy.setdefault(rule, []).append(float(right.mean()))
    return accuracy


def variants(scatter: Scatter, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the scores of each rule, and of others."""
    found = dict(standard(scatter, x))
    yield from found.items()
    scaled = {rule: prediction_rules.standardised(scores) for rule, scores in found.items()}
    yield "ridge + lda", scaled["ridge"] + scaled["lda"]
    yield "ridge + ncm", scaled["ridge"] + scaled["ncm"]
    width = x.shape[1]
    fit = classifiers.exact(scatter, width, CPU)
    system, targets, basis = ridge._system(scatter.of(width), CPU)
    for times in (0.1, 10.0):
        shifted = system + times * fit.regression.ridge * torch.eye(len(system))
        weights = torch.linalg.solve(shifted, targets)
        weights = (weights if basis is None else basis.T @ weights).T.float()
        yield f"ridge, λ × {times:g}", ridge.ridge_scores(weights, x)
    for amount in (0.05, 0.4):
        features = scatter.of(width, 2 * width)
        factor = torch.linalg.cholesky(classifiers.shrunk(features.covariance(), amount))
        lda = classifiers._discriminant(features.means[:, None], factor)
        yield f"lda, {amount}", prediction_rules.linear(lda, "lda", ridge.normalised(x)[None])


def standard(scatter: Scatter, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the scores of each rule."""
    width, known = x.shape[1], ridge.normalised(x)[None]
    kept = classifiers.exact(scatter, width, CPU).classifiers
    yield "ncm", prediction_rules.nearest_mean(scatter.means[None, :, width : 2 * width], known)
    yield "lda", prediction_rules.linear(kept, "lda", known)
    yield "ridge", ridge.ridge_scores(kept["ridge_weight"], x)


if __name__ == "__main__":
    main()
