"""Two networks of one class order, and the sum of their scores, on held-out images.

    cd results/search
    SCORES=scores lmrc reproduce incremental --dataset cifar100 --data-dir DATA \
        --methods ensemble.Scored --validate 0.1 --order 1 --seeds 2 --jobs 2
    python ensemble.py DATA scores --order 1 --out ensemble.json

The first command saves the scores of each network after each task, by prediction rule; the second
prints the accuracy of each network and of the sum of both, average / last over the tasks that all
networks have learnt.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from lmrc import ClassStream, LMRCPlusClassifier, load_dataset

RULES = ("wta", "lda", "finetuned", "linear", "ensemble")


def standardised(scores: Any) -> Any:
    """Return scores with mean 0 and deviation 1 for each sample."""
    centred = scores - scores.mean(axis=1, keepdims=True)
    return centred / (centred.std(axis=1, keepdims=True) + 1e-12)


class Scored(LMRCPlusClassifier):
    """LMRC+ that saves its scores in the folder `SCORES` whenever all rules are called."""

    def similarities_by_rule(self, X: Any) -> dict[str, Any]:
        """Return what LMRC+ does, and save it, standardised."""
        found = super().similarities_by_rule(X)
        folder = Path(os.environ["SCORES"])
        folder.mkdir(parents=True, exist_ok=True)
        small = {rule: standardised(scores).astype(np.float16) for rule, scores in found.items()}
        path = folder / f"seed-{self.random_state}-task-{self.n_tasks_}"
        np.savez(path.with_suffix(".part.npz"), classes=self.classes_, **small)
        path.with_suffix(".part.npz").rename(path.with_suffix(".npz"))
        return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--order", type=int, required=True)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--validate", type=float, default=0.1)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    dataset = load_dataset("cifar100", data_dir=options.data, limit=options.limit)
    stream = ClassStream(dataset.validation_split(options.validate), options.tasks, options.order)
    seeds = sorted({int(p.name.split("-")[1]) for p in options.scores.glob("seed-*-task-*.npz")})
    rows: dict[str, dict[str, list[float]]] = {}
    for task in range(options.tasks):
        paths = [options.scores / f"seed-{seed}-task-{task + 1}.npz" for seed in seeds]
        if not all(path.exists() for path in paths):
            break
        y, task_of = stream.test_up_to(task)[1], stream.task_of
        own = np.array([task_of[label] for label in y.tolist()])
        networks = [dict(np.load(path)) for path in paths]
        for rule in RULES:
            # Classes come in order of arrival, so that all networks have them in one.
            parts = {f"seed {s}": n[rule] for s, n in zip(seeds, networks, strict=True)}
            parts["sum"] = sum(standardised(part.astype(np.float32)) for part in parts.values())
            classes = networks[0]["classes"]
            tasks = np.array([task_of[label] for label in classes.tolist()])
            for name, scores in parts.items():
                chosen = scores.argmax(axis=1)
                known = np.where(tasks == own[:, None], scores, -np.inf).argmax(axis=1)
                figures = {
                    "accuracy": classes[chosen] == y,
                    "task-ID accuracy": tasks[chosen] == own,
                    "accuracy with the task known": classes[known] == y,
                }
                row = rows.setdefault(f"{rule}, {name}", {key: [] for key in figures})
                for key, right in figures.items():
                    row[key].append(round(float(right.mean()), 5))
    for name, row in rows.items():
        shown = ", ".join(f"{k} {100 * np.mean(v):.1f} / {100 * v[-1]:.1f}" for k, v in row.items())
        print(f"{name:16} {shown}")
    if options.out:
        options.out.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
