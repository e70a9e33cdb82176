"""What is left of a class after `forget`: attacks on the digits, in `docs/privacy.md`.

Eight digits in two tasks of four, two never learnt; four of the eight are forgotten, each from a
copy of the model. The same attacks are made on a model that learnt all but that digit. "found" is
the share of the class's test images that a score tells from all other digits' with 1 % false
alarms. ::

    OMP_NUM_THREADS=1 python benchmarks/forgotten.py > results/benchmarks/forgotten.txt
"""

import argparse
import copy
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from lmrc import LMRCClassifier, LMRCPlusClassifier
from lmrc.data.datasets import digits
from lmrc.experiments.environment import hardware, versions

Array = npt.NDArray[Any]
SEEDS, AT_HAND = 3, 10  # images of each digit that the attacker has
PLAIN = {"backbone": "mlp", "freeze": False, "rotations": "none", "objective": "cosine"}
PLAIN |= {"first_epochs": 30, "epochs": 20}
METHODS: dict[str, tuple[type[LMRCClassifier], dict[str, Any]]] = {
    "lmrc": (LMRCClassifier, {"epochs": 40}),
    "lmrc+": (LMRCPlusClassifier, PLAIN),
}
DATA = digits()
X, X_TEST = (x.reshape(len(x), -1).astype(np.float32) for x in (DATA.X_train, DATA.X_test))
Y, Y_TEST = DATA.y_train, DATA.y_test
MINE = np.zeros(len(Y_TEST), dtype=bool)  # test images that the attacker has
for digit in range(10):
    MINE[np.flatnonzero(digit == Y_TEST)[:AT_HAND]] = True


def taught(method: str, tasks: list[Array], seed: int, **more: int) -> Any:
    cls, settings = METHODS[method]
    model = cls(random_state=seed, device="cpu", **settings | more)
    for task in tasks:
        now = np.isin(Y, task)
        model.partial_fit(X[now], Y[now])
    return model


def found(score: Array, digit: int, among: Array) -> float:
    own = digit == Y_TEST
    return float((score[among & own] > np.quantile(score[among & ~own], 0.99)).mean())


def by_folder(
    model: Any, head: int, digit: int, vector: torch.Tensor | None = None
) -> dict[str, float]:
    """Attacks with the model's folder alone, and with the old label vector, if it is known."""
    with torch.no_grad():
        features = model.network_.encoder(torch.as_tensor(X_TEST))
        response = model.network_(torch.as_tensor(X_TEST))[:, head]
    rows = np.isin(model.classes_, model.heads_[head])
    others = torch.as_tensor(model.label_vectors_[rows])
    weight = model.network_.head.weight[head].detach()
    unknown = torch.linalg.svd(weight - torch.linalg.pinv(others) @ others @ weight)[0][:, 0]
    scores = {"far from others": -(response @ others.T).amax(dim=1)}
    scores["head's unknown direction"] = response @ unknown
    scores["and its opposite"] = -response @ unknown
    for way in ("lda", "linear") if hasattr(model, "classifiers_") else ():
        scores[f"sum of {way} rows"] = -features @ model.classifiers_[f"{way}_weight"].sum(dim=1)[0]
    if vector is not None:
        scores["old label vector"] = response @ vector
    return {name: found(score.numpy(), digit, MINE | True) for name, score in scores.items()}


def by_probe(x: Array, digit: int) -> float:
    """A linear probe on some images of each digit."""
    x = StandardScaler().fit(x[MINE]).transform(x)
    probe = LogisticRegression(max_iter=2000).fit(x[MINE], Y_TEST[MINE] == digit)
    return found(probe.decision_function(x), digit, ~MINE)


def features(model: Any) -> Array:
    with torch.no_grad():
        return np.asarray(model.network_.encoder(torch.as_tensor(X_TEST)))


def cost(epochs: int) -> None:
    """Print what `forget` costs LMRC on the other digits, by how long it was trained."""
    accuracy = []
    for seed in range(2):
        order = np.random.default_rng(seed).permutation(10)
        whole = taught("lmrc", [order[:4], order[4:8]], seed, epochs=epochs)
        for digit in order[:8]:
            left = copy.copy(whole).forget(digit)
            rest = np.isin(Y_TEST, left.classes_)
            scores = whole.similarities(X_TEST[rest])[:, whole.classes_ != digit]
            before = (left.classes_[scores.argmax(axis=1)] == Y_TEST[rest]).mean()
            accuracy.append([before, left.score(X_TEST[rest], Y_TEST[rest])])
    worst = np.diff(accuracy, axis=1).min()
    print(f"lmrc, {epochs} epochs:", np.round(np.mean(accuracy, axis=0), 3), f"worst {worst:.3f}")


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    warnings.simplefilter("ignore")
    print(hardware(torch.device("cpu")), versions(), flush=True)
    for epochs in (1, 5, 40):
        cost(epochs)
    for method in METHODS:
        folder: dict[str, list[dict[str, float]]] = {"forgotten": [], "never": []}
        accuracy, probe, learnt = [], [], []
        for seed in range(SEEDS):
            order = np.random.default_rng(seed).permutation(10)
            tasks, unseen = [order[:4], order[4:8]], order[8:]
            whole = taught(method, tasks, seed)
            for digit in order[[0, 1, 4, 5]]:
                head = int(digit in tasks[1])
                row = whole.classes_.tolist().index(digit)
                vector = torch.as_tensor(whole.label_vectors_[row])
                left = copy.copy(whole).forget(digit)
                never = taught(method, [task[task != digit] for task in tasks], seed)
                rest = np.isin(Y_TEST, left.classes_)
                accuracy.append([m.score(X_TEST[rest], Y_TEST[rest]) for m in (whole, left, never)])
                folder["forgotten"].append(by_folder(left, head, digit, vector))
                folder["never"].append(by_folder(never, head, digit))
                probes = [by_probe(x, digit) for x in (features(left), features(never), X_TEST)]
                probe.append(probes)
                for model, right in ((left, probes[0]), (never, probes[1])):
                    wrong = [by_probe(features(model), u) for u in unseen]
                    learnt.append([(right > w) + (right == w) / 2 for w in wrong])
        print(method, "accuracy whole, forgotten, never:", np.round(np.mean(accuracy, axis=0), 3))
        for name, rates in folder.items():
            means = {attack: np.mean([rate[attack] for rate in rates]) for attack in rates[0]}
            print(f"  folder alone, {name}:", {a: round(float(m), 2) for a, m in means.items()})
        print("  probe, forgotten, never learnt, pixels:", np.round(np.mean(probe, axis=0), 2))
        told = np.mean([learnt[::2], learnt[1::2]], axis=(1, 2))
        print("  told from a digit never learnt: forgotten, never:", np.round(told, 2))


if __name__ == "__main__":
    main()
