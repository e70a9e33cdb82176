"""What to keep of the features, and how to predict by it: many ways, read off one training.

    python results/search/readouts.py --data-dir D --out results/search/readouts \
        --epochs 30 --set first_epochs=100 --set augment=strong

LMRC+ learns CIFAR-100 class batch after class batch, without a tenth of the training images, which
are scored on. Statistics do not change the training: after each class batch every variant carries
its own along, and each of its readouts is scored. A line of `readouts.jsonl` for each of them.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmrc import LMRCPlusClassifier
from lmrc.experiments.environment import hardware, versions
from lmrc.experiments.inputs import open_dataset, open_stream
from lmrc.experiments.options import learner_settings
from lmrc.experiments.recipe import load_recipe
from lmrc.methods.chance import KEEP
from lmrc.nets.network import Network, on_device
from lmrc.statistics import covariances, drift, readout
from lmrc.statistics.classes import ClassStatistics
from lmrc.statistics.keep import brought_up_to_date
from lmrc.training.device import pick_device
from lmrc.training.memory import Memory
from lmrc.training.rotations import all_turns

# Each as it is in the product, then one change at a time.
KINDS = [("low-rank", 24), ("low-rank", 64), ("shared", 0), ("full", 0)]
RIDGES = [0.01, 0.001, 0.1]
SHRINKAGES = [0.5, 0.1, 0.9]
TUNINGS = [(150, 5e-4), (500, 5e-4), (500, 2e-3)]  # steps of Adam and its first rate


def main() -> None:
    """Learn, carry every variant along, score all readouts."""
    options = parse()
    recipe = load_recipe("incremental", "cifar100", validate=0.1, limit=options.limit)
    stream = open_stream(recipe, options.seed, open_dataset(recipe, options.data_dir))
    settings = recipe.settings_of("lmrc+") | {
        "epochs": options.epochs,
        "backbone": options.backbone,
    }
    settings |= {"statistics": "shared", "predict_with": "lda", **(options.settings or {})}
    model = LMRCPlusClassifier(**settings, random_state=options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {"settings": settings, "seed": options.seed, "hardware": hardware(pick_device("auto"))}
    (options.out / "readouts.jsonl").unlink(missing_ok=True)
    (options.out / "about.json").write_text(json.dumps(facts | versions(), indent=1) + "\n")

    variants: dict[Any, Any] = dict.fromkeys(variants_of(options.looks))
    for index in range(options.batches or len(stream)):
        batch = stream[index]
        before = copy.deepcopy(getattr(model, "network_", None))
        began = time.perf_counter()
        model.partial_fit(batch.X_train, batch.y_train)
        print(f"class batch {index + 1}: {time.perf_counter() - began:.0f} s", flush=True)
        rows = torch.from_numpy(rows_of(model, batch.y_train))
        samples = Memory(as_images(batch.X_train), rows)
        x, y = stream.test_up_to(index)
        seen = Seen(model, as_images(x), torch.from_numpy(rows_of(model, y)))
        with (options.out / "readouts.jsonl").open("a") as file:
            for name, kept in variants.items():
                variants[name], found = carry(name, kept, before, model, samples, seen)
                for way, accuracy in found.items():
                    line = {"batch": index, "variant": name, "way": way, "accuracy": accuracy}
                    file.write(json.dumps(line) + "\n")
        print(f"  with all variants: {time.perf_counter() - began:.0f} s", flush=True)
    show(options.out)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batches", type=int, help="class batches; all if not given")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--limit", type=int, help="images per class")
    parser.add_argument("--looks", nargs="+", default=["crop+flip"], help="augmentations to try")
    parser.add_argument("--set", dest="settings", action="append")
    options = parser.parse_args()
    options.settings = learner_settings(options.settings)
    return options


def variants_of(looks: list[str]) -> list[tuple[str, int, float, str]]:
    """List kinds of covariance, ridges and augmentations of the looks at images."""
    first = (*KINDS[0], RIDGES[0], looks[0])
    kinds = [(*kind, RIDGES[0], looks[0]) for kind in KINDS]
    ridges = [(*KINDS[0], ridge, looks[0]) for ridge in RIDGES]
    others = [(*KINDS[0], RIDGES[0], look) for look in looks]
    return list(dict.fromkeys([first, *kinds, *ridges, *others]))


def rows_of(model: LMRCPlusClassifier, y: Any) -> Any:
    """Return the index of each label in the order of arrival."""
    row = {label: i for i, label in enumerate(model.classes_.tolist())}
    return np.array([row[label] for label in y.tolist()])


def as_images(x: Any) -> Tensor:
    """Return images as the network takes them."""
    return torch.as_tensor(x).permute(0, 3, 1, 2).contiguous()


class Seen:
    """The network's features of the images that are scored on, in all four turns."""

    def __init__(self, model: LMRCPlusClassifier, x: Tensor, y: Tensor) -> None:
        device = pick_device("auto")
        self.network: Network = on_device(device, model.network_).eval()
        self.sizes = [len(head) for head in model.heads_]
        self.y = y.to(device)
        parts = []
        with torch.no_grad():
            for part in x.split(500):
                parts.append(self.network.trunk(all_turns(part.to(device))).unflatten(0, (4, -1)))
        self.features = torch.cat(parts, dim=1).float()

    def accuracy(self, scores: Tensor) -> float:
        """Return the share of images whose class has the highest score."""
        return float((scores.argmax(1) == self.y).float().mean())


def carry(
    name: tuple[str, int, float, str],
    kept: ClassStatistics | None,
    before: Network | None,
    model: LMRCPlusClassifier,
    samples: Memory,
    seen: Seen,
) -> tuple[ClassStatistics, dict[str, float]]:
    """Bring one variant's statistics up to date, and score all its readouts."""
    kind, rank, drift.RIDGE, look = name
    covariances.RANK = rank or covariances.RANK
    device, chance = seen.y.device, torch.Generator().manual_seed(KEEP)
    width = seen.features.shape[-1]
    statistics, non_negative = brought_up_to_date(
        kept or ClassStatistics.empty(kind, 4, width),
        None if before is None else on_device(device, before).eval().trunk,
        seen.network.trunk,
        samples,
        Memory(samples.x[:0], samples.y[:0]),
        augment=look,
        rotated=True,
        generator=chance,
    )
    head, features, sizes = seen.network.head, seen.features, seen.sizes
    found = {"wta": seen.accuracy(readout.winner_takes_all(head, features, sizes))}
    lda = {}
    for readout.SHRINKAGE in SHRINKAGES:
        scores = readout.nearest_gaussian(readout.discriminant(statistics), features)
        lda[readout.SHRINKAGE] = readout.standardised(scores)
        found[f"lda {readout.SHRINKAGE}"] = seen.accuracy(scores)
    tunings = TUNINGS if name[:3] == (*KINDS[0], RIDGES[0]) else TUNINGS[:1]
    for steps, rate in tunings:
        readout.STEPS, readout.RATE = steps, rate
        tuned = readout.tune(
            head, statistics, sizes, scale=16.0, non_negative=non_negative, generator=chance
        )
        scores = readout.winner_takes_all(head, features, sizes, tuned)
        found[f"tuned {steps} {rate}"] = seen.accuracy(scores)
        for shrinkage, other in lda.items():
            both = readout.standardised(scores) + other
            found[f"both {steps} {rate} {shrinkage}"] = seen.accuracy(both)
    return statistics, found


def show(out: Path) -> None:
    """Print average and last accuracy of each."""
    table: dict[tuple[str, str], list[float]] = {}
    for line in (out / "readouts.jsonl").read_text().splitlines():
        entry = json.loads(line)
        table.setdefault((str(entry["variant"]), entry["way"]), []).append(entry["accuracy"])
    for (variant, way), values in table.items():
        average, last = 100 * sum(values) / len(values), 100 * values[-1]
        print(f"{variant:44} {way:22} {average:6.1f} {last:6.1f}")


if __name__ == "__main__":
    main()
