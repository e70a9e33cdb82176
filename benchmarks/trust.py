"""How far probabilities and the score for unknown images can be trusted, after each task.

    python benchmarks/trust.py --dataset cifar100 --data-dir DATA --set calibration_share=0.05
    python benchmarks/trust.py --dataset folder:flowers12 --method frozen --tasks 4

Trains LMRC+ on the tasks of a data set, with the settings of `lmrc reproduce`, and prints a line of
JSON for each seed, task and prediction rule: the expected calibration error (15 bins) on test
images of the classes learnt so far, and the AUROC of the score for unknown images between these and
test images of the classes still to come, next to scores of the literature. After half of the tasks,
half of the classes are unknown. With `--validate 0.2`, test images are held-out training images;
with `--per-class 5`, each seed learns five random ones of each class.

`--method joint` trains a softmax classifier on the classes of the first half of the tasks at once,
with the settings of `lmrc reproduce incremental`: what its maximum probability, its maximum logit
and its energy tell of the other classes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmrc import LMRCPlusClassifier
from lmrc.data.datasets import Dataset, load_dataset
from lmrc.evaluation.trust import expected_calibration_error, separation
from lmrc.experiments.environment import hardware, versions
from lmrc.experiments.inputs import open_stream
from lmrc.experiments.recipe import Recipe, load_recipe
from lmrc.experiments.runs import Run, fresh_learner, title_of
from lmrc.methods.calibrated import Outputs
from lmrc.nets.network import Network
from lmrc.statistics.calibration import USUAL_SCALES
from lmrc.statistics.classifiers import SHRINKAGE
from lmrc.statistics.held_out import USUAL_SCALE, HeldOut
from lmrc.statistics.pseudo_features import pseudo_features
from lmrc.statistics.ridge import normalised, shrinkage
from lmrc.statistics.scatter import Scatter
from lmrc.training.device import default_dtype_guard, pick_device

PLACES = ("dataset", "data_dir", "recipe", "outputs")  # options that no record repeats
SHARES = (0.05, 0.1, 0.2)  # of known images that a threshold may lose; the default first
PRINCIPAL = ((2048, 1000), (768, 512))  # ViM's principal dimensions, by the least width


class Gaussians:
    """Scores of the literature, from the class statistics that the model keeps. Higher: unknown.

    Mahalanobis: Lee et al., NeurIPS 2018. Relative Mahalanobis: Ren et al., 2021. Residual: the
    part of ViM, Wang et al., CVPR 2022, that no logit tells. Means over rotations and views.
    """

    names = ("mahalanobis", "relative_mahalanobis", "vim_residual")

    def __init__(self, model: LMRCPlusClassifier) -> None:
        self.model, self.exact = model, bool(model.scatter_)
        if self.exact:
            scatter = Scatter.from_tensors(model.scatter_)
            width = model._width(model.network_)
            features = scatter.of(width, 2 * width)  # normalised ones
            means, within = features.means.double()[:, None], features.covariance()
            amount = shrinkage(within, max(1, scatter.n_images - len(scatter.counts)))
        else:
            statistics = model._class_statistics({})
            means, within = statistics.means.double(), statistics.covariances.mean()
            amount = SHRINKAGE
        centre = means.mean(dim=0)  # (rotations, width)
        away = (means - centre).flatten(0, 1)
        total = within + away.T @ away / len(away)
        width = len(total)
        kept = next((n for least, n in PRINCIPAL if width >= least), width // 2)
        self.means, self.centre = means.transpose(0, 1), centre[:, None]
        self.within, self.total = (_whitening(matrix, amount) for matrix in (within, total))
        self.rest = torch.linalg.eigh(total)[1][:, : width - kept]

    def __call__(self, network: Network, x: Tensor) -> Tensor:
        """Return the scores of inputs, (n, 3)."""
        features, views = self.model._views(network, x)
        features = (normalised(features) if self.exact else features).double().cpu()
        away = features - self.centre
        nearest = torch.cdist(features @ self.within, self.means @ self.within).amin(dim=-1)
        near = nearest.square()
        relative = near - (away @ self.total).square().sum(dim=-1)
        residual = (away @ self.rest).norm(dim=-1)
        found = torch.stack([near, relative, residual], dim=-1).mean(dim=0)
        return found.view(views, -1, len(self.names)).mean(dim=0).float()


def _whitening(covariance: Tensor, amount: float) -> Tensor:
    """Return the map after which distances are Mahalanobis distances, of a shrunk covariance."""
    sphere = covariance.diagonal().mean() * torch.eye(len(covariance), dtype=covariance.dtype)
    values, vectors = torch.linalg.eigh((1 - amount) * covariance + amount * sphere)
    found: Tensor = vectors / values.clamp(min=1e-12).sqrt()
    return found


class Scored(NamedTuple):
    """What a model says of test images by one prediction rule."""

    outputs: Outputs
    scores: dict[str, NDArray[Any]]  # for unknown images, by name


@default_dtype_guard()
def score(
    model: LMRCPlusClassifier, rules: Sequence[str], X: Any, known: list[tuple[Tensor, int]]
) -> dict[str, Scored]:
    """Return what a model says, by prediction rule, from one forward pass.

    Features that a frozen backbone has computed before are `known`, and used again.
    """
    gaussians, n = Gaussians(model), len(model.classes_)
    if not model._on_features:
        known.clear()
    again = iter(known[:])

    def all_of(network: Network, x: Tensor) -> Tensor:
        views = next(again, None)
        if views is None:
            views = model._views(network, x)
            known.append(views)
        if views[0].shape[1] != views[1] * len(x):
            raise RuntimeError("the test images were split otherwise before")
        found = []
        with mock.patch.object(model, "_views", return_value=views):
            for rule in rules:
                model.set_params(predict_with=rule)
                scores, probabilities, unknown = model._all_outputs(network, x)
                found += [scores, probabilities, unknown[:, None]]
            return torch.cat([*found, gaussians(network, x).to(found[0])], dim=1)

    columns = np.concatenate(list(model._score_parts(X, all_of)))
    of_features = dict(zip(Gaussians.names, columns.T[-len(Gaussians.names) :], strict=True))
    by_rule = {}
    for i, rule in enumerate(rules):
        own = columns[:, i * (2 * n + 1) : (i + 1) * (2 * n + 1)]
        outputs = Outputs(own[:, :n], own[:, n : 2 * n], own[:, 2 * n])
        logits = float(model.calibration_[f"{rule}.scale"]) * outputs.similarities
        by_rule[rule] = Scored(
            outputs,
            {
                "lmrc": outputs.unknown,
                "max_similarity": -outputs.similarities.max(axis=1),
                "max_probability": -outputs.probabilities.max(axis=1),
                "energy": -torch.from_numpy(logits).double().logsumexp(dim=1).numpy(),
                **of_features,
            },
        )
    return by_rule


@default_dtype_guard()
def pseudo_scale(model: LMRCPlusClassifier) -> float:
    """Return the logit scale of lowest cross-entropy on pseudo-features, in place of images."""
    rule, network = model.prediction_rule_, model.network_
    device = network.encoder.mean.device
    statistics = model._class_statistics(model.scatter_)
    generator = torch.Generator(device).manual_seed(0)
    sample = pseudo_features(statistics, True, generator)
    found = []
    with torch.no_grad():
        for _ in range(20):
            scores = model._rules(network.head).scores((rule,), sample())[rule]
            found.append(scores.float().cpu())
    each = len(found[0]) // len(model.classes_)
    y = torch.arange(len(model.classes_)).repeat_interleave(each).repeat(len(found))
    unit = float(model.calibration_[f"{rule}.unit"])
    scores = torch.cat(found) / unit
    usual = USUAL_SCALES.get(rule, USUAL_SCALE)
    return HeldOut.of(scores, torch.zeros(len(y)), y).logit_scale(usual) / unit


def measure(model: LMRCPlusClassifier, scored: Scored, y: NDArray[Any]) -> dict[str, Any]:
    """Return the figures of a model on test images, of its classes and of others."""
    outputs, scores = scored
    known = np.isin(y, model.classes_)
    correct = model.classes_[outputs.similarities.argmax(axis=1)][known] == y[known]
    confidence = outputs.probabilities.max(axis=1)[known]
    told = {share: outputs.unknown > model.unknown_threshold(share) for share in SHARES}
    logits = torch.from_numpy(pseudo_scale(model) * outputs.similarities[known]).double()
    by_pseudo = logits.softmax(dim=1).amax(dim=1).numpy()
    found: dict[str, Any] = {
        "n_known": int(known.sum()),
        "accuracy": float(correct.mean()),
        "ece": expected_calibration_error(confidence, correct),
        "ece_by_pseudo_features": expected_calibration_error(by_pseudo, correct),
        "confidence": float(confidence.mean()),
        "lost": float(told[SHARES[0]][known].mean()),
        "lost_at": {share: float(above[known].mean()) for share, above in told.items()},
    }
    if not known.all():
        by_score = {n: separation(s[known], s[~known])._asdict() for n, s in scores.items()}
        found |= {"n_unknown": int((~known).sum()), "unknown": by_score}
        found["told_unknown"] = float(told[SHARES[0]][~known].mean())
        found["told_unknown_at"] = {n: float(above[~known].mean()) for n, above in told.items()}
    return found


def measure_new(
    model: LMRCPlusClassifier, scored: Scored, y: NDArray[Any], learnt: NDArray[Any]
) -> dict[str, Any]:
    """Return the accuracy on the newest classes, of test images and of images left out in turn."""
    new = np.isin(y, learnt)
    right = model.classes_[scored.outputs.similarities[new].argmax(axis=1)] == y[new]
    _, left_out = model.left_out_
    share = float(left_out.mean()) if len(left_out) else None
    return {"new_accuracy": float(right.mean()), "left_out_accuracy": share}


def few(dataset: Dataset, per_class: int, seed: int) -> Dataset:
    """Return a data set with some training images of each class, drawn at random."""
    rng, y = np.random.default_rng(seed), np.asarray(dataset.y_train)
    drawn = [rng.permutation(np.flatnonzero(y == label))[:per_class] for label in np.unique(y)]
    rows = np.concatenate(drawn)
    return replace(dataset, X_train=dataset.X_train[rows], y_train=y[rows])


def run(
    recipe: Recipe, seed: int, dataset: Dataset, given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Learn the tasks of a seed; yield what is measured after each."""
    method = recipe.methods[0]
    one = Run(method, seed, 0, title_of(recipe, method, 0))
    where = {"device": given.device, "compile": given.compile}
    model = fresh_learner(recipe, one, **where).set_params(**dict(given.set))
    stream = open_stream(recipe, seed, dataset)
    features: list[tuple[Tensor, int]] = []
    for task in stream:
        chosen = model.predict_with
        model.partial_fit(task.X_train, task.y_train)
        ends = task.index + 1 in (len(stream), len(stream) // 2)
        rules = dict.fromkeys([model.prediction_rule_, *(given.rules if ends else ())])
        for rule, scored in score(model, [*rules], dataset.X_test, features).items():
            model.set_params(predict_with=rule)
            if given.outputs and ends:
                given.outputs.mkdir(parents=True, exist_ok=True)
                arrays = {"similarities": scored.outputs.similarities, **scored.scores}
                arrays |= {"y": dataset.y_test, "classes": model.classes_}
                name = f"{method}-s{seed}-task{task.index + 1}-{rule}.npz"
                np.savez_compressed(given.outputs / name, allow_pickle=False, **arrays)
            yield {
                "dataset": Path(recipe.dataset).name,
                "method": one.title,
                "seed": seed,
                "task": task.index + 1,
                "tasks": len(stream),
                "classes": len(model.classes_),
                "rule": rule,
                **measure(model, scored, dataset.y_test),
                **measure_new(model, scored, dataset.y_test, task.y_train),
            }
        model.set_params(predict_with=chosen)


def run_joint(
    recipe: Recipe, seed: int, dataset: Dataset, given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Learn half of the classes at once; yield how well a softmax tells the others."""
    one = Run("joint", seed, 0, title_of(recipe, "joint", 0))
    where = {"device": given.device, "compile": given.compile}
    model = fresh_learner(recipe, one, **where).set_params(**dict(given.set))
    stream = open_stream(recipe, seed, dataset)
    half = [task for task in stream if task.index < len(stream) // 2]
    X, y = (np.concatenate([getattr(t, name) for t in half]) for name in ("X_train", "y_train"))
    logits = torch.from_numpy(model.partial_fit(X, y).decision_function(dataset.X_test)).double()
    known = np.isin(dataset.y_test, model.classes_)
    correct = model.classes_[logits.argmax(dim=1)][known] == dataset.y_test[known]
    scores = {"max_probability": logits.softmax(dim=1).amax(dim=1), "max_logit": logits.amax(dim=1)}
    scores["energy"] = logits.logsumexp(dim=1)
    found = {name: separation(-s[known], -s[~known])._asdict() for name, s in scores.items()}
    line = {"dataset": Path(recipe.dataset).name, "method": one.title, "seed": seed}
    line |= {"task": len(half), "tasks": len(stream), "classes": len(model.classes_)}
    line |= {"rule": "softmax", "accuracy": float(correct.mean())}
    yield line | {"n_known": len(correct), "n_unknown": int((~known).sum()), "unknown": found}


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return two tables in Markdown: the end of all tasks, and scores after half of them.

    Values are means over the seeds, and standard deviations.
    """
    last = [line for line in lines if line["task"] == line["tasks"]]
    names = ("accuracy", "ece", "ece_by_pseudo_features", "lost")
    rows = [f"| rule | {' | '.join(names)} |", "| --- " * (1 + len(names)) + "|"]
    for rule in dict.fromkeys(line["rule"] for line in last):
        own = [line for line in last if line["rule"] == rule]
        cells = [_mean([line[name] for line in own]) for name in names]
        rows.append(f"| {rule} | {' | '.join(cells)} |")
    half = [line for line in lines if line["task"] == line["tasks"] // 2]
    rows += ["", "| score | rule | AUROC | FPR at 95 % |", "| --- " * 4 + "|"]
    for rule in dict.fromkeys(line["rule"] for line in half):
        own = [line["unknown"] for line in half if line["rule"] == rule]
        for score in own[0]:
            cells = [_mean([line[score][name] for line in own]) for name in ("auroc", "fpr95")]
            rows.append(f"| {score} | {rule} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _mean(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):.3f}"
    return f"{mean} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else mean


def main() -> None:
    """Print one line for each seed, task and rule; a table on standard error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="cifar100", help="as for lmrc reproduce")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--recipe", help="data set whose settings to use; as --dataset by default")
    methods = ["from-scratch", "frozen", "adapted", "joint"]
    parser.add_argument("--method", default="from-scratch", choices=methods)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tasks", type=int, help="as the recipe has it by default")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit", type=int, help="images per class")
    parser.add_argument("--per-class", type=int, help="training images, drawn at random")
    parser.add_argument("--validate", type=float, help="score on this share of training images")
    parser.add_argument("--rules", nargs="*", default=[], help="more prediction rules to score")
    parser.add_argument("--set", nargs="*", default=[], type=_setting, metavar="NAME=VALUE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", default="auto", type=_value)
    parser.add_argument("--outputs", type=Path, help="folder for all scores, as .npz")
    given = parser.parse_args()
    if dict(given.set).get("members", 1) != 1:  # features of one network are for all rules
        parser.error("--set members: this program is for one network")
    learn = run_joint if given.method == "joint" else run
    recipe = load_recipe(
        "incremental" if learn is run_joint else "pretrained",
        given.recipe or given.dataset,
        methods=[given.method],
        tasks=given.tasks,
        epochs=given.epochs,
    )
    dataset = load_dataset(given.dataset, data_dir=given.data_dir, limit=given.limit)
    if given.validate:
        dataset = dataset.validation_split(given.validate)
    made_with = {
        "settings": {n: v for n, v in vars(given).items() if n not in PLACES},
        "data": dataset.digest,
        "versions": versions(),
        "hardware": hardware(pick_device(given.device)),
    }
    lines = []
    for seed in given.seeds:
        drawn = few(dataset, given.per_class, seed) if given.per_class else dataset
        for line in learn(recipe, seed, drawn, given):
            lines.append(line)
            print(json.dumps(line | made_with), flush=True)
    print(table(lines), file=sys.stderr)


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, _value(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    main()
