"""Ways to adapt a pretrained backbone to the first task, compared on held-out images of CIFAR-100.

    python results/search/adaptation.py DATA TRIES.json --out adaptation.jsonl

`TRIES.json` lists tries: ``{"name": …, "backbone": …, "order": 0, "adapt": {parameters of LMRC+},
"variants": [{"mix": 0.5, "both": false}]}``. The backbone is trained on the first of
ten tasks by LMRC+ with the parameters of ``adapt`` (without them it stays as it is) and held from
then on. Variants are mixed with its pretrained weights (``mix`` is the share of the trained ones);
with ``both``, features of the pretrained backbone are placed beside those of the adapted one. Each
task's classes are then learnt by ridge regression over a random projection, LDA and nearest class
mean, on features averaged over the image and its mirror image. Printed: average and last accuracy
over ten tasks, on a tenth of the training images that is held out; the test set is not read.
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

from lmrc import LMRCPlusClassifier, load_dataset
from lmrc.nets.network import Encoder, build_encoder

PROJECTED = 10_000
LAMBDAS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # of the mean of the Gram matrix's diagonal
SHRINKAGE = 0.05


def features(encoder: Encoder, x: Tensor, device: torch.device) -> Tensor:
    """Return features averaged over each image and its mirror image."""
    encoder = encoder.to(device).eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    found = []
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    with torch.inference_mode(), autocast:
        for part in torch.split(x, 512):
            part = part.to(device)
            found.append((encoder(part).float() + encoder(part.flip(-1)).float()) / 2)
    return torch.cat(found).clone()


def projected(f: Tensor, seed: int = 0) -> Tensor:
    """Return a random projection of features, cut at 0."""
    rng = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (f.shape[1], PROJECTED), generator=rng).float() * 2 - 1
    return (f @ signs.to(f.device)).relu()


def mixed(pretrained: Encoder, adapted: Encoder, share: float) -> Encoder:
    """Return an encoder whose weights are means of two others' weights."""
    found, old = copy.deepcopy(adapted).cpu(), copy.deepcopy(pretrained).cpu().state_dict()
    found.load_state_dict(
        {
            n: torch.lerp(old[n], t, share) if t.is_floating_point() else t
            for n, t in found.state_dict().items()
        }
    )
    return found


def few_of_each(y: Tensor, held_out: Tensor, n: int) -> Tensor:
    """Return the positions of all held-out images, and of some others of each class."""
    others = [torch.nonzero((y == c) & ~held_out)[:n, 0] for c in range(100)]
    return torch.cat([torch.nonzero(held_out)[:, 0], *others])


def evaluate(train: Tensor, y: Tensor, held: Tensor, y_held: Tensor) -> dict[str, Any]:
    """Return average / last accuracy of each rule; classes are 0 … 99 in order of arrival."""
    found: dict[str, list[float]] = {}
    p, q = projected(train), projected(held)
    gram = torch.zeros(PROJECTED, PROJECTED, device=p.device)
    sums = torch.zeros(100, PROJECTED, device=p.device)
    eye = torch.eye(PROJECTED, device=p.device)
    for end in range(10, 101, 10):
        now = (y >= end - 10) & (y < end)
        gram += p[now].T @ p[now]
        sums.index_add_(0, y[now], p[now])
        seen, tested = y < end, y_held < end
        truth = y_held[tested]
        for share in LAMBDAS:
            solved = torch.linalg.cholesky(gram + share * gram.diagonal().mean() * eye)
            weight = torch.cholesky_solve(sums[:end].T, solved)
            right = (q[tested] @ weight).argmax(1) == truth
            found.setdefault(f"ridge {share:g}", []).append(float(right.float().mean()))
        means = torch.stack([train[y == c].mean(0) for c in range(end)])
        centred = train[seen] - means[y[seen]]
        covariance = (centred.T @ centred / len(centred)).double()
        sphere = torch.eye(len(covariance), device=p.device) * covariance.diagonal().mean()
        shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * sphere
        weight = torch.linalg.solve(shrunk, means.double().T).float()
        scores = held[tested] @ weight - (means.T * weight).sum(0) / 2
        found.setdefault("lda", []).append(float((scores.argmax(1) == truth).float().mean()))
        unit = torch.nn.functional.normalize
        right = (unit(held[tested]) @ unit(means).T).argmax(1) == truth
        found.setdefault("ncm", []).append(float(right.float().mean()))
    return {
        rule: [round(100 * float(np.mean(a)), 2), round(100 * a[-1], 2)]
        for rule, a in found.items()
    }


def main() -> None:
    """Work through the tries, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("tries", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--per-class", type=int, default=450)
    parser.add_argument("--dataset", default="cifar100")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load_dataset(options.dataset, data_dir=options.data, limit=options.limit)
    x = torch.from_numpy(np.asarray(data.X_train)).permute(0, 3, 1, 2).contiguous()
    labels = torch.from_numpy(np.unique(data.y_train, return_inverse=True)[1])
    for attempt in json.loads(options.tries.read_text()):
        began = time.monotonic()
        order = np.random.default_rng(attempt.get("order", 0)).permutation(100)
        y = torch.from_numpy(np.argsort(order))[labels]  # rank of arrival
        rng = np.random.default_rng(1)
        held = np.zeros(len(y), bool)
        for c in range(100):
            rows = np.flatnonzero(y.numpy() == c)
            held[rng.permutation(rows)[: len(rows) // 10]] = True
        held_out = torch.from_numpy(held)
        first = (~held_out) & (y < 10)
        pretrained, _ = build_encoder(attempt["backbone"], (3, 32, 32))
        encoder, seconds = pretrained, 0.0
        if "adapt" in attempt:
            parameters = {"freeze": False, "statistics": "none", "predict_with": "wta", "epochs": 3}
            parameters |= {"first_epochs": None, "first_learning_rate": None}
            parameters |= {"random_state": 0, "compile": False}
            model = LMRCPlusClassifier(
                backbone=attempt["backbone"], **{**parameters, **attempt["adapt"]}
            )
            model.fit(x[first], y[first].numpy())
            encoder = copy.deepcopy(model.network_.encoder).float()
            seconds = time.monotonic() - began
        used = few_of_each(y, held_out, options.per_class)
        images, of, is_held = x[used], y[used].to(device), held_out[used].to(device)
        for variant in attempt.get("variants", [{}]):
            now = mixed(pretrained, encoder, variant.get("mix", 1.0))
            f = features(now, images, device)
            if variant.get("both"):
                parts = [features(pretrained, images, device), f]
                f = torch.cat([torch.nn.functional.normalize(part) for part in parts], dim=1)
            found = evaluate(f[~is_held], of[~is_held], f[is_held], of[is_held])
            record = {k: v for k, v in attempt.items() if k != "variants"} | variant
            record |= {"found": found, "adapted_s": round(seconds, 1)}
            record["seconds"] = round(time.monotonic() - began, 1)
            print(json.dumps(record), flush=True)
            with options.out.open("a") as file:
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
