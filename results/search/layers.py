"""Features of more than the last layer of a frozen EfficientNet-Lite0, for ridge regression.

    python results/search/layers.py cifar100 --data-dir DATA --limit 100 --out FILE
    python results/search/layers.py folder:flowers12 --size 224 --out FILE

Some training images of each class are drawn, and accuracy is on the others: all classes at once,
which is what a frozen backbone gives after the last task. Before the features of the last layer
stand the mean feature maps of some blocks, times a scale. Writes a JSON line for each draw.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lmrc import load_dataset
from lmrc.experiments.environment import hardware, versions
from lmrc.nets.network import build_encoder
from lmrc.statistics.ridge import ridge_inputs, ridge_regression
from lmrc.statistics.scatter import Scatter
from lmrc.training.features import for_inference

PROJECTIONS, AT_ONCE, CPU = 1000, 50, torch.device("cpu")
#: Blocks, counted from 0 to 15, and their scale.
TRIES = (((), 1), ((14,), 1), ((10, 14), 1), *(((14, 15), scale) for scale in (1, 0.3, 0.1, 0.03)))


@torch.no_grad()
def features_of(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the features of the last layer, and the mean feature maps of each block."""
    encoder = for_inference(build_encoder("efficientnet-lite0", tuple(x.shape[1:]))[0].eval())
    found: list[list[Tensor]] = []
    for i, block in enumerate(encoder.backbone.get_submodule("_blocks").children()):
        found.append([])
        block.register_forward_hook(
            lambda _, __, out, i=i: found[i].append(out.mean(dim=(2, 3)).clone())
        )
    last = torch.cat([encoder(part) for part in torch.split(x, AT_ONCE)])
    return last, [torch.cat(parts) for parts in found]


def accuracy(features: Tensor, y: Tensor, drawn: Tensor) -> float:
    """Return the accuracy on the images that were not drawn."""
    classes = int(y.max()) + 1
    scatter = Scatter.empty(features.shape[1] + PROJECTIONS).added(
        (c, ridge_inputs(features[drawn & (y == c)], PROJECTIONS).double()) for c in range(classes)
    )
    weight = ridge_regression(scatter, CPU).weight
    best = (ridge_inputs(features[~drawn], PROJECTIONS) @ weight.T).argmax(dim=1)
    return float((best == y[~drawn]).double().mean())


def main() -> None:
    """Print a mean for each try and number of images."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dataset")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--limit", type=int, help="images per class")
    parser.add_argument("--size", type=int)
    parser.add_argument("--per-class", type=int, nargs="+", default=[80])
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--features", type=Path, help="kept here, for another time")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    data = load_dataset(given.dataset, data_dir=given.data_dir, limit=given.limit, size=given.size)
    y = torch.from_numpy(np.unique(np.asarray(data.y_train), return_inverse=True)[1])
    if given.features and given.features.exists():
        last, blocks = torch.load(given.features)
    else:
        x = torch.from_numpy(np.asarray(data.X_train)).permute(0, 3, 1, 2) / 255
        last, blocks = features_of(x)
        if given.features:
            torch.save((last, blocks), given.features)
    how = {"data": data.digest, "projections": PROJECTIONS, "versions": versions()}
    how |= {"hardware": hardware(CPU)}
    with given.out.open("w", encoding="utf-8") as out:
        for per_class in given.per_class:
            for chosen, scale in TRIES:
                features = torch.cat([*(scale * blocks[i] for i in chosen), last], dim=1)
                found = []
                for seed in range(given.draws):
                    rank = torch.rand(len(y), generator=torch.Generator().manual_seed(seed))
                    ahead = (y[:, None] == y) & (rank[:, None] > rank)
                    found.append(accuracy(features, y, ahead.sum(dim=1) < per_class))
                    line = {"per_class": per_class, "blocks": chosen, "scale": scale, "seed": seed}
                    print(json.dumps({**line, "accuracy": found[-1], **how}), file=out, flush=True)
                print(per_class, chosen, scale, f"{100 * np.mean(found):.1f}", flush=True)


if __name__ == "__main__":
    main()
