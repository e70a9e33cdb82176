"""Scores and features for unknown images, by exact statistics of a frozen EfficientNet-Lite0.

    python results/search/unknown.py flowers12/train --known 6 --train 48 --out FILE
    python results/search/unknown.py tiny-imagenet-200/train --classes 24 --known 12 --train 40 \
        --sizes 160 --out FILE

FOLDER has training images, 60 of each class are used. Some classes are known, and of them so many
images are learnt; the others, and all images of the other classes, are scored. Writes a JSON line
for each try: the AUROC of each draw of the known classes, and the accuracy. Ridge regression in its
dual form, with all classes of equal size: the same as the model's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from lmrc.evaluation.trust import separation
from lmrc.experiments.environment import hardware, versions
from lmrc.nets.efficientnet import EfficientNetLite
from lmrc.nets.packaged import MEAN, STD, weights_file
from lmrc.nets.resize import Resize
from lmrc.statistics.classifiers import exact
from lmrc.statistics.leave_one_out import LeftOut
from lmrc.statistics.leave_one_out import scores as left_out_scores
from lmrc.statistics.prediction_rules import comparable, linear, nearest_mean
from lmrc.statistics.residual import Class, residuals
from lmrc.statistics.ridge import RIDGES, normalised, ridge_inputs
from lmrc.statistics.scatter import Scatter

NET, PROJECTIONS, EACH, OFFSET = "efficientnet-lite0", 4000, 60, 0.6
CHANNELS = [16, 24, 24, 40, 40, *[80] * 3, *[112] * 3, *[192] * 4, 320]  # of each block
Array = np.ndarray[Any, Any]
Views = dict[str, Array]


@torch.inference_mode()
def views_of(x: torch.Tensor, size: int, zoom: float) -> Views:
    """Return mean feature maps of all blocks, features and ImageNet logits; plain and flipped."""
    kept = torch.load(weights_file(NET), map_location="cpu", weights_only=True)
    net = EfficientNetLite(NET)
    net.load_state_dict({n: t for n, t in kept.items() if not n.startswith("_fc")}, strict=False)
    net, side = net.folded(), round(x.shape[-1] / zoom)
    at = (x.shape[-1] - side) // 2
    x = x[..., at : at + side, at : at + side]
    resize, found = Resize((3, side, side), (size, size)), Views()
    for view in ("plain", "flip"):
        parts: dict[str, list[torch.Tensor]] = {"blocks": [], "last": [], "logits": []}
        for part in torch.split(x, 24):
            maps = (resize(part.float() / 255) - MEAN) / STD
            maps, blocks = net._stem(maps if view == "plain" else maps.flip(-1)), []
            for block in net._blocks:
                maps = block(maps)
                blocks.append(maps.mean(dim=(2, 3)))
            last = net._last(maps)
            parts["blocks"].append(torch.cat(blocks, dim=1))
            parts["last"].append(last)
            parts["logits"].append(last @ kept["_fc.weight"].T + kept["_fc.bias"])
        found |= {f"{view}_{name}": torch.cat(part).numpy() for name, part in parts.items()}
    return found


def features(views: list[tuple[Views, str]], blocks: int = 2) -> Array:
    """Return the features of last blocks and last layer, means over views, as LMRC+ has them."""
    n = sum(CHANNELS[len(CHANNELS) - blocks :])
    each = [np.hstack([0.1 * v[f"{k}_blocks"], v[f"{k}_last"]])[:, -n - 1280 :] for v, k in views]
    return normalised(torch.from_numpy(np.mean(each, axis=0))).double().numpy()


class Draw(NamedTuple):
    """Known classes: rows of images to learn and to score (known ones first), and classes."""

    rows: Array
    y: Array
    scored: Array
    y_scored: Array


def draws(y: Array, n: int, known: int, train: int) -> Iterator[Draw]:
    """Draw known classes and the images that are learnt."""
    rng = np.random.default_rng(0)
    for _ in range(n):
        order = rng.permutation(y.max() + 1)
        rows = [rng.permutation(np.flatnonzero(y == c)) for c in order]
        learnt, others = ([part(r) for r in rows[:known]] for part in (_head(train), _tail(train)))
        label = np.arange(known)
        yield Draw(
            np.concatenate(learnt),
            label.repeat([len(r) for r in learnt]),
            np.concatenate(others + rows[known:]),
            label.repeat([len(r) for r in others]),
        )


def _head(n: int) -> Callable[[Array], Array]:
    return lambda rows: rows[:n]


def _tail(n: int) -> Callable[[Array], Array]:
    return lambda rows: rows[n:]


def ridge(gram: Array, inputs: int, d: Draw) -> tuple[Array, Array]:
    """Return scores of images, and of learnt ones without them, in units of the class means."""
    n, targets = len(d.rows), np.eye(d.y.max() + 1)[d.y]
    values, vectors = np.linalg.eigh(gram[np.ix_(d.rows, d.rows)] / n)
    along, errors = vectors.T @ targets, []
    ridges = np.array(RIDGES) * values.sum() / inputs
    for amount in ridges:
        left = amount / (values + amount)
        errors.append(((left[:, None] * along) ** 2).sum() / left.mean() ** 2)
    inverse = (vectors / (values + ridges[np.argmin(errors)])) @ vectors.T
    weights = inverse @ targets
    fitted = gram[np.ix_(d.rows, d.rows)] / n @ weights
    unit = np.mean([fitted[d.y == c, c].mean() for c in range(d.y.max() + 1)])
    left_out = targets - weights / inverse.diagonal()[:, None]
    return gram[np.ix_(d.scored, d.rows)] / n @ weights / unit, left_out / unit


def other_rule(rule: str, x: Array, d: Draw) -> tuple[Array, Array]:
    """Return what `ridge` does, by "lda" or "ncm"."""
    width, both = x.shape[1], torch.from_numpy(np.hstack([x, x]))
    learnt, y = both[d.rows], torch.from_numpy(d.y)
    parts = ((c, learnt[y == c]) for c in range(d.y.max() + 1))
    scatter = Scatter.empty(2 * width).added(parts)
    means, fit = scatter.means[None, :, width:], exact(scatter, width, torch.device("cpu"))

    def of(features: torch.Tensor) -> torch.Tensor:
        if rule == "ncm":
            return nearest_mean(means, features[None])
        return comparable(linear(fit.classifiers, rule, features[None]))

    away = learnt - scatter.means[y].double()
    left_out = LeftOut(learnt, y, away, scatter, torch.from_numpy(d.rows))
    unit = float(of(means[0]).diagonal().mean())
    own = left_out_scores(left_out, fit, width)[rule]
    return of(both[d.scored, width:]).double().numpy() / unit, own.numpy() / unit


def residual(x: Array, d: Draw) -> tuple[Array, Array]:
    """Return the residuals of images by class, and of learnt ones without a fifth."""

    def by(learnt: Array, rows: Array) -> Array:
        of = Class.of(torch.from_numpy(x[learnt]))
        parts = of.mean[None, None], of.factors[None], torch.from_numpy(x[rows])[None]
        return residuals(*parts)[0, :, 0].numpy()

    classes = range(d.y.max() + 1)
    found, own = (
        np.stack([by(d.rows[d.y == c], r) for c in classes], 1) for r in (d.scored, d.rows)
    )
    for c in classes:
        mine = np.flatnonzero(d.y == c)
        for part in np.array_split(np.arange(len(mine)), 5):
            own[mine[part], c] = by(d.rows[np.delete(mine, part)], d.rows[mine[part]])
    return found, own


class Scored(NamedTuple):
    """A draw, with scores and residuals of images, and of learnt ones without them."""

    draw: Draw
    scores: tuple[Array, Array]
    residuals: tuple[Array, Array]


def scored(x: Array, of: list[Draw]) -> list[Scored]:
    """Score all draws by features of unit length."""
    inputs = ridge_inputs(torch.from_numpy(x), PROJECTIONS).double().numpy()
    gram = inputs @ inputs.T
    return [Scored(d, ridge(gram, inputs.shape[1], d), residual(x, d)) for d in of]


#: Something more for a draw: of images, and of learnt ones.
Term = Callable[[Scored], tuple[Array, Array]]


def of_predicted(x: Array) -> Term:
    """Return the residuals of other features, by the predicted class."""

    def found(s: Scored) -> tuple[Array, Array]:
        both = zip(residual(x, s.draw), s.scores, strict=True)
        first, second = (r[np.arange(len(r)), scores.argmax(1)] for r, scores in both)
        return first, second

    return found


def deviation(x: Array) -> Term:
    """Return the deviation of a Gaussian process with a linear kernel (ridge 1)."""

    def found(s: Scored) -> tuple[Array, Array]:
        learnt, others = x[s.draw.rows], x[s.draw.scored]
        inverse = np.linalg.inv(learnt @ learnt.T + np.eye(len(learnt)))
        far = 1 - ((others @ learnt.T @ inverse) * (others @ learnt.T)).sum(1)
        return np.sqrt(far), np.sqrt((1 / inverse.diagonal() - 1).clip(0))

    return found


def neco(x: Array) -> Term:
    """Return the share that lies outside 20 principal directions (Ammar et al., ICLR 2024)."""

    def found(s: Scored) -> tuple[Array, Array]:
        learnt = x[s.draw.rows]
        mean, deviations = learnt.mean(0), learnt.std(0) + 1e-6
        basis = np.linalg.svd((learnt - mean) / deviations, full_matrices=False)[2][:20]
        away = [(x[rows] - mean) / deviations for rows in (s.draw.scored, s.draw.rows)]
        first, second = (
            -np.linalg.norm(z @ basis.T, axis=1) / np.linalg.norm(z, axis=1) for z in away
        )
        return first, second

    return found


def fdbd(x: Array) -> Term:
    """Return distances to decision boundaries (Liu and Qin, ICML 2024), of a linear regression."""

    def found(s: Scored) -> tuple[Array, Array]:
        learnt, targets = x[s.draw.rows], np.eye(s.draw.y.max() + 1)[s.draw.y]
        mean, n = learnt.mean(0), len(learnt)
        gram = (learnt - mean) @ (learnt - mean).T
        ridge = 0.1 * np.trace(gram) / n * np.eye(n)
        weights = np.linalg.solve(gram + ridge, targets - targets.mean(0)).T @ (learnt - mean)
        far = np.linalg.norm(weights[:, None] - weights, axis=2) + np.eye(len(weights))

        def of(z: Array) -> Array:
            scores = (z - mean) @ weights.T
            away = (scores.max(1, keepdims=True) - scores) / far[scores.argmax(1)]
            mine: Array = -away.sum(1) / np.linalg.norm(z - mean, axis=1) / (len(weights) - 1)
            return mine

        return of(x[s.draw.scored]), of(learnt)

    return found


def measure(
    found: list[Scored],
    weight: float = 3,
    relative: float = 0,
    term: Term | None = None,
    by: float = 1,
) -> dict[str, Any]:
    """Return the AUROC of each draw, and the accuracy, by the unknown score of docs/trust.md."""
    aurocs, correct = [], []
    for s in found:
        more = term(s) if term else (np.zeros(1), np.zeros(1))
        unknown, own = (
            weight * (r[np.arange(len(r)), scores.argmax(1)] - relative * r.mean(1))
            - scores.max(1)
            + by * extra
            for scores, r, extra in zip(s.scores, s.residuals, more, strict=True)
        )
        means = np.array([own[s.draw.y == c].mean() for c in range(s.draw.y.max() + 1)])
        best, n = s.scores[0].argmax(1), len(s.draw.y_scored)
        unknown = unknown - OFFSET * (means - means.mean())[best]
        aurocs.append(separation(unknown[:n], unknown[n:]).auroc)
        correct.append((best[:n] == s.draw.y_scored).mean())
    return {"auroc": aurocs, "accuracy": float(np.mean(correct))}


def whitened(x: Array, d: Draw) -> Array:
    """Return features of unit length, half whitened by the known classes' pooled covariance."""
    means = np.stack([x[d.rows[d.y == c]].mean(0) for c in range(d.y.max() + 1)])
    _, sizes, basis = np.linalg.svd(x[d.rows] - means[d.y], full_matrices=False)
    size = (sizes**2).mean() * len(sizes) / x.shape[1]
    away = x - means.mean(0)
    away = away + (away @ basis.T * ((1 + sizes**2 / (10 * size)) ** -0.25 - 1)) @ basis
    unit: Array = away / np.linalg.norm(away, axis=1, keepdims=True)
    return unit


def main() -> None:
    """Write a line for each try; print means, lowest values, and differences from LMRC+'s."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--classes", type=int, help="so many, drawn at random")
    parser.add_argument("--known", type=int, required=True)
    parser.add_argument(
        "--train", type=int, required=True, help="images of a class that are learnt"
    )
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--sizes", type=int, nargs="*", default=[160, 256, 288, 320])
    parser.add_argument("--cache", type=Path, help="folder for features")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    classes = sorted(path.name for path in given.folder.iterdir())
    if given.classes:
        classes = list(np.random.default_rng(0).permutation(classes)[: given.classes])
    files = [sorted((given.folder / c).rglob("*.[jJ][pP]*"))[:EACH] for c in classes]
    y = np.arange(len(classes)).repeat([len(some) for some in files])
    pixels = [np.asarray(Image.open(f).convert("RGB")) for some in files for f in some]
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)

    def views(size: int, zoom: float = 1.0) -> Views:
        kept = given.cache / f"{size}-{zoom}.npz" if given.cache else None
        if kept and kept.exists():
            return dict(np.load(kept))
        found = views_of(images, size, zoom)
        if kept:
            np.savez(kept, allow_pickle=False, **found)
        return found

    of = list(draws(y, given.draws, given.known, given.train))
    at = {(224, zoom): views(224, zoom) for zoom in (1.0, 1.3, 1.7)}
    at |= {(size, 1.0): views(size) for size in given.sizes}

    def both(*keys: tuple[int, float], blocks: int = 2) -> Array:
        return features([(at[k], view) for k in keys for view in ("plain", "flip")], blocks)

    zooms = [(224, 1.0), (224, 1.3), (224, 1.7), (160, 1.0)]
    first, x = at[224, 1.0], both(zooms[0])
    base = scored(x, of)
    probable = [F.softmax(torch.from_numpy(first[f"{v}_logits"]), 1) for v in ("plain", "flip")]
    seventh = sum(CHANNELS[:7])
    middle = (first["plain_blocks"] + first["flip_blocks"])[:, seventh : seventh + CHANNELS[7]]
    last = both(zooms[0], blocks=0)
    of_last = [s._replace(residuals=residual(last, s.draw)) for s in base]
    by = {
        rule: [s._replace(scores=other_rule(rule, x, s.draw)) for s in base]
        for rule in ("lda", "ncm")
    }
    half_white = [scored(whitened(x, d), [d])[0] for d in of]
    tries: dict[str, Callable[[], dict[str, Any]]] = {
        "LMRC+": lambda: measure(base),
        "until 5f997fe": lambda: measure(base, 2, 0.5),
        "maximum similarity": lambda: measure(base, 0),
        "lda": lambda: measure(by["lda"]),
        "lda, until 5f997fe": lambda: measure(by["lda"], 2, 0.5),
        "ncm": lambda: measure(by["ncm"], 2, 0.5),
        "ncm, weight 3": lambda: measure(by["ncm"]),
        "residuals of the last layer": lambda: measure(of_last),
        "no flip": lambda: measure(scored(features([(first, "plain")]), of)),
    }
    for size in given.sizes:
        tries[f"{size} pixels"] = lambda size=size: measure(scored(both((size, 1.0)), of))  # type: ignore[misc]
    softmax = torch.stack(probable).mean(0).sqrt().double().numpy()
    tries |= {
        "and crop 1.3": lambda: measure(scored(both(*zooms[:2]), of)),
        "and crops 1.3, 1.7": lambda: measure(scored(both(*zooms[:3]), of)),
        "and crop 1.3, 160 pixels": lambda: measure(scored(both(*zooms[:2], zooms[3]), of)),
        "last layer alone": lambda: measure(scored(last, of)),
        "last six blocks": lambda: measure(scored(both(zooms[0], blocks=6), of)),
        "crops, six blocks": lambda: measure(scored(both(*zooms[:3], blocks=6), of)),
        "+ residual, block 7": lambda: measure(
            base, term=of_predicted(normalised(torch.from_numpy(middle)).double().numpy())
        ),
        "+ 0.5 residual, ImageNet softmax": lambda: measure(
            base, term=of_predicted(softmax), by=0.5
        ),
        "half whitened": lambda: measure(half_white),
        "+ deviation of a Gaussian process": lambda: measure(base, term=deviation(x)),
        "+ NECO": lambda: measure(base, term=neco(x)),
        "+ fDBD": lambda: measure(base, term=fdbd(x)),
    }
    how: dict[str, Any] = {
        "settings": {"known": given.known, "train": given.train, "classes": len(classes)}
    }
    how |= {"versions": versions(), "hardware": hardware(torch.device("cpu"))}
    lmrc = np.zeros(given.draws)
    with given.out.open("w", encoding="utf-8") as out:
        for name, attempt in tries.items():
            line = attempt()
            lmrc = np.array(line["auroc"]) if name == "LMRC+" else lmrc
            more = np.array(line["auroc"]) - lmrc
            error = more.std(ddof=1) / len(more) ** 0.5
            mean, lowest = np.mean(line["auroc"]), min(line["auroc"])
            shown = f"{mean:.3f}, lowest {lowest:.3f}, {more.mean():+.4f} ± {error:.4f}"
            print(f"{name}: {shown}, accuracy {line['accuracy']:.3f}", flush=True)
            print(json.dumps({"try": name, **line, **how}), file=out, flush=True)


if __name__ == "__main__":
    main()
