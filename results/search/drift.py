"""Maps that compensate class means for feature drift, compared on held-out images of CIFAR-100.

    python results/search/drift.py DATA --order 0 --set learning_rate=0.05 --out drift.jsonl

Trains LMRC+ on ten tasks. After each task, each map compensates class means of its own; covariances
are compensated by the ridge map, as LMRC+ does, for all of them. Written: the
accuracy of each prediction rule with the means of each map, on a tenth of the training images that
is held out, and how far the means are from those that the old images would give. "true" has the
statistics of all images, "true means" their means only. With the ridge map, the ensemble is also
scored with further votes: LDA (which is the relative Mahalanobis distance, up to a constant of the
image), the residual of each class, and a shift for each task that is fitted on pseudo-features; and
on five crops of each image.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmrc import ClassStream, LMRCPlusClassifier, load_dataset
from lmrc.experiments.environment import hardware, versions
from lmrc.nets.network import Encoder, Network
from lmrc.statistics import classifiers
from lmrc.statistics.classes import ClassStatistics, Summary
from lmrc.statistics.drift import Drift, LinearMap
from lmrc.statistics.gather import gather
from lmrc.statistics.prediction_rules import PredictionRules, standardised
from lmrc.statistics.pseudo_features import pseudo_features
from lmrc.statistics.residual import of_statistics, residuals
from lmrc.training.device import default_dtype_guard, pick_device
from lmrc.training.rotations import all_rotations

RULES = ("lda", "finetuned", "linear", "ensemble")
MAPS = ("sdc", "mlp", "cycle", "pushed", "pushed shift", "pushed mlp", "response 0.1")
NEAREST = 48  # images of the task that are pushed towards each mean
CROPS = ((0, 2), (0, -2), (2, 0), (-2, 0))  # shifts by pixels, besides the image as it is
PUSHES, PUSH = 3, 25.0  # steps, and their length in standardised pixels, as in ADC


def features_of(encoder: Encoder, images: Tensor, size: int = 4096) -> Tensor:
    """Return features of normalised images, in evaluation mode."""
    last_two: Any = encoder.backbone.last_two
    parts = [last_two(part).float() for part in torch.split(images, size)]
    return torch.cat(parts)


def pushed(old: Encoder, new: Encoder, x: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Return features of images pushed towards the means of old classes in the old features.

    Adversarial drift compensation: Goswami et al., "Resurrecting Old Classes with New Data for
    Exemplar-Free Continual Learning", CVPR 2024. Old and new, (classes, rotations, n, width) each.
    """
    device, last_two = x.device, cast("Any", old.backbone.last_two)
    plain = all_rotations(old.normalise(x))  # (rotations · n, …)
    with torch.no_grad():
        where = features_of(old, plain).view(4, len(x), -1)
    plain = plain.view(4, len(x), *plain.shape[1:])
    found: list[list[Tensor]] = [[], []]
    for row in means.to(device).float():  # (rotations, width)
        near = torch.cdist(row[:, None], where)[:, 0].topk(min(NEAREST, len(x)), largest=False)
        images = torch.cat([plain[r, near.indices[r]] for r in range(4)])
        target = row.repeat_interleave(near.indices.shape[1], dim=0)
        for _ in range(PUSHES):
            images = images.detach().requires_grad_()
            with torch.enable_grad():
                loss = (last_two(images).float() - target).square().sum()
                (slope,) = torch.autograd.grad(loss, images)
            size = slope.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            images = images - PUSH * slope / (size + 1e-12)
        with torch.no_grad():
            for part, encoder in zip(found, (old, new), strict=True):
                part.append(features_of(encoder, images.detach()).view(4, -1, row.shape[-1]))
    return torch.stack(found[0]), torch.stack(found[1])


class Residual(nn.Module):
    """A small MLP on standardised features."""

    def __init__(self, width: int, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        last = nn.Linear(1024, width)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(nn.Linear(width, 1024), nn.GELU(), last)
        self.mean, self.std = mean, std

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual, in units of the feature's deviation."""
        found: Tensor = self.layers((x - self.mean) / self.std)
        return found * self.std


def fit_mlp(
    then: Tensor,
    now: Tensor,
    linear: Callable[[Tensor], Tensor],
    back: Callable[[Tensor], Tensor],
    pseudo: Callable[[], Tensor] | None,
    steps: int,
) -> Residual:
    """Return what an MLP adds to the linear map; with pseudo-features also trained in a cycle."""
    std = then.std(dim=0) + 1e-3 * then.std()
    std_now = now.std(dim=0) + 1e-3 * now.std()
    forth = Residual(then.shape[1], then.mean(dim=0), std).to(then.device)
    home = Residual(then.shape[1], now.mean(dim=0), std_now).to(then.device)
    parts = [*forth.parameters(), *home.parameters()]
    optimiser = torch.optim.AdamW(parts, lr=1e-3, weight_decay=0.01)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    target, target_back = now - linear(then), then - back(now)
    for _ in range(steps):
        rows = torch.randint(len(then), (1024,), device=then.device)
        with torch.enable_grad():
            loss = ((forth(then[rows]) - target[rows]) / std_now).square().mean()
            if pseudo is not None:
                old = pseudo().flatten(0, 1)
                there = linear(old) + forth(old)
                loss = loss + ((home(now[rows]) - target_back[rows]) / std).square().mean()
                loss = loss + ((back(there) + home(there) - old) / std).square().mean()
            optimiser.zero_grad()
            loss.backward()
        optimiser.step()
        falling.step()
    return forth


def by_response(
    before: Network, after: Network, then: Tensor, there: Tensor, weight: float, steps: int
) -> Tensor:
    """Return shifts of mapped pseudo-features by which old heads respond to them as before.

    `then` and `there`, (classes, rotations, n, width): old pseudo-features, and as mapped. Response
    Consolidation trains the heads to respond to new images as before.
    """
    width = before.head.weight.shape[-1]
    heads = len(before.head.weight)
    with torch.no_grad():
        wanted = before.head(then[..., -width:].flatten(0, 2))
    shift = torch.zeros(*there.shape[:2], 1, width, device=there.device, requires_grad=True)
    variance = there[..., -width:].var(dim=2).mean()
    optimiser = torch.optim.Adam([shift], lr=0.05 * float(variance.sqrt()))
    for _ in range(steps):
        with torch.enable_grad():
            got = after.head((there[..., -width:] + shift).relu().flatten(0, 2))[:, :heads]
            loss = (1 - (got * wanted).sum(dim=-1)).mean() * len(shift) * shift.shape[1]
            loss = loss + weight * shift.square().sum() / (width * variance)
            optimiser.zero_grad()
            loss.backward()
        optimiser.step()
    whole = torch.zeros(*there.shape[:2], there.shape[-1], device=there.device)
    whole[..., -width:] = shift.detach()[:, :, 0]
    return whole


def task_shifts(scorer: PredictionRules, pseudo: Callable[[], Tensor], sizes: list[int]) -> Tensor:
    """Return a shift of each class's score, one for all of a task, fitted on pseudo-features."""
    with torch.no_grad():
        scores = torch.cat([scorer.scores(("ensemble",), pseudo())["ensemble"] for _ in range(20)])
    n_classes = scores.shape[1]
    y = torch.arange(n_classes, device=scores.device).repeat_interleave(
        len(scores) // (20 * n_classes)
    )
    y, task = y.repeat(20), torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    shifts = torch.zeros(len(sizes), device=scores.device, requires_grad=True)
    scale = torch.ones((), device=scores.device, requires_grad=True)
    optimiser = torch.optim.LBFGS([shifts, scale], max_iter=100)

    def loss() -> Tensor:
        optimiser.zero_grad()
        with torch.enable_grad():
            found = F.cross_entropy(scale * (scores + shifts[task]), y)
            found.backward()  # type: ignore[no-untyped-call]
        return found

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return shifts.detach()[task]


def more_votes(
    statistics: ClassStatistics, scorer: PredictionRules, x: Tensor, shifts: Tensor
) -> dict[str, Tensor]:
    """Return scores of the ensemble with further votes; x is (rotations, two views, width)."""
    found = scorer.scores(("ensemble", "lda"), x, 2)
    factors, sizes = of_statistics(statistics)
    centres = statistics.means.transpose(0, 1) / sizes[None, :, None]
    off = residuals(centres, factors, x).mean(dim=0)
    vote = standardised(-off.view(2, -1, off.shape[-1]).mean(dim=0))
    return {
        "ensemble and lda": found["ensemble"] + found["lda"],
        "ensemble and residual": found["ensemble"] + vote,
        "ensemble and half the residual": found["ensemble"] + vote / 2,
        "ensemble, tasks shifted": found["ensemble"] + shifts,
    }


def cropped_at(x: Tensor, by: tuple[int, int]) -> Tensor:
    """Return images shifted by some pixels, their edges repeated."""
    top, left = 2 + by[0], 2 + by[1]
    wide = F.pad(x.float(), (2, 2, 2, 2), mode="replicate").to(x.dtype)
    return wide[..., top : top + x.shape[-2], left : left + x.shape[-1]]


def ridge(then: Tensor, now: Tensor) -> LinearMap:
    """Return the map that LMRC+ fits."""
    return Drift(then.shape[1]).add(then.double(), now.double()).fit()


def compensated(
    maps: dict[str, ClassStatistics],
    before: Network,
    after: Network,
    then: Tensor,
    now: Tensor,
    x: Tensor,
    steps: int,
) -> dict[str, ClassStatistics]:
    """Return the statistics of each map in the new features."""
    device = then.device
    linear, back = ridge(then, now), ridge(now, then)

    def on_device(map_: LinearMap) -> Callable[[Tensor], Tensor]:
        weight, bias = map_.weight.to(device).float(), map_.bias.to(device).float()
        return lambda z: z @ weight + bias

    go, come = on_device(linear), on_device(back)
    covariances = maps["ridge"].mapped(linear).covariances
    found = {}
    for name, statistics in maps.items():
        began = time.monotonic()
        means = statistics.means.to(device)
        rng = torch.Generator(device).manual_seed(0)
        sample = pseudo_features(statistics, True, rng)
        shape = (*means.shape[:2], -1, means.shape[-1])  # (classes, rotations, n, width)
        new = go(means)
        if name in ("pushed", "pushed shift", "pushed mlp"):
            a, b = pushed(before.encoder, after.encoder, x, means)
            if name == "pushed shift":
                new = new + (b - go(a)).mean(dim=2)
            else:
                some = max(1, len(then) // a[..., 0].numel())  # as much weight as the images
                both = [
                    torch.cat([real, *[part.flatten(0, 2)] * some])
                    for real, part in ((then, a), (now, b))
                ]
                there = on_device(ridge(both[0], both[1]))
                new = there(means)
                if name == "pushed mlp":
                    mlp = fit_mlp(both[0], both[1], there, come, None, steps)
                    new = new + mlp(sample().view(4, len(means), -1, shape[-1])).mean(2).transpose(
                        0, 1
                    )
        elif name == "sdc":
            far = torch.cdist(means.flatten(0, 1), then)
            width = far.topk(200, largest=False).values[:, -1:]
            share = (-((far / width) ** 2) * 4).softmax(dim=1)
            new = new + (share @ (now - go(then))).view_as(new)
        elif name in ("mlp", "cycle"):
            mlp = fit_mlp(then, now, go, come, sample if name == "cycle" else None, steps)
            with torch.no_grad():
                residual = mlp(sample()).view(means.shape[1], means.shape[0], -1, shape[-1])
            new = new + residual.mean(dim=2).transpose(0, 1)
        elif name.startswith("response"):
            old = torch.cat(
                [sample().view(means.shape[1], means.shape[0], -1, shape[-1]) for _ in range(4)],
                dim=2,
            ).transpose(0, 1)
            weight = float(name.split()[1])
            new = new + by_response(before, after, old, go(old), weight, 150)
        new = new.detach().cpu()
        found[name] = replace(statistics, means=new, covariances=covariances)
        print(f"  {name}: {time.monotonic() - began:.1f} s", flush=True)
    return found


@default_dtype_guard()
def main() -> None:
    """Train, and write a line for each task."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--dataset", default="cifar100")
    parser.add_argument("--order", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--first", type=int, help="tasks to learn; all by default")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--maps", nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--finetuned", type=int, nargs="*", default=[2, 3, 5, 7, 10])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    maps = given.maps or MAPS
    settings: dict[str, Any] = {
        "epochs": 60,
        "first_epochs": 100,
        "augment": "cutmix",
        "compile": True,
        "statistics": "none",  # they are kept here
        "predict_with": "wta",
    }
    for text in given.set:
        name, _, value = text.partition("=")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    dataset = load_dataset(given.dataset, data_dir=given.data, limit=given.limit)
    stream = ClassStream(dataset.validation_split(0.1), given.tasks, given.order)
    model = LMRCPlusClassifier(backbone=given.backbone, random_state=0, **settings)
    device = pick_device("auto")
    rng = torch.Generator().manual_seed(0)
    known: dict[str, ClassStatistics] = {}
    for task in stream[: given.first]:
        began = time.monotonic()
        before = copy.deepcopy(model.network_).to(device).eval() if task.index else None
        model.partial_fit(task.X_train, task.y_train)
        trained = time.monotonic() - began
        network = model.network_.to(device).eval()
        rows = {label: row for row, label in enumerate(model.classes_.tolist())}

        def images(X: Any) -> Tensor:
            return torch.from_numpy(np.asarray(X)).permute(0, 3, 1, 2).contiguous()

        def parts(encoders: list[Encoder], X: Any, y: Any, row_of: dict[Any, int]) -> Any:
            for label in sorted(set(y.tolist()), key=row_of.__getitem__):
                x = images(X[y == label])
                yield (
                    row_of[label],
                    gather(
                        encoders,
                        x,
                        layers=2,
                        augment=model.augmentation_,
                        rotated=True,
                        generator=rng,
                    ),
                )

        encoders = [network.encoder] if before is None else [network.encoder, before.encoder]
        then, now, found = [], [], {}
        for row, gathered in parts(encoders, task.X_train, task.y_train, rows):
            some = list(gathered)
            every = torch.cat([part[0] for part in some], dim=1)
            found[row] = Summary.of(every, every.shape[1] // 2)
            if before is not None:
                now.append(every.flatten(0, 1).float())
                then.append(torch.cat([part[1] for part in some], dim=1).flatten(0, 1).float())
        lines: dict[str, Any] = {}
        if before is None:
            empty = ClassStatistics.empty("low-rank", 4, every.shape[-1])
            known = dict.fromkeys(["ridge", *maps], empty)
        else:
            x = images(task.X_train).to(device)
            known = compensated(
                known, before, network, torch.cat(then), torch.cat(now), x, given.steps
            )
        for row, summary in found.items():
            known = {name: part.with_class(row, summary) for name, part in known.items()}
        shown = dict(known)
        if before is not None:
            # The images of all classes so far, which no learner would have.
            true = ClassStatistics.empty("low-rank", 4, every.shape[-1])
            X, y = (
                np.concatenate(part)
                for part in zip(
                    *((t.X_train, t.y_train) for t in stream if t.index <= task.index), strict=True
                )
            )
            for row, gathered in parts([network.encoder], X, y, rows):
                all_of = torch.cat([part[0] for part in gathered], dim=1)
                true = true.with_class(row, Summary.of(all_of, all_of.shape[1] // 2))
            shown["true"] = true
            shown["true means"] = replace(known["ridge"], means=true.means)
            spread = true.covariances.mean().trace().sqrt()
            for name, part in known.items():
                away = (part.means - true.means)[: -len(found)].norm(dim=-1).mean()
                lines[name] = {"distance": round(float(away / spread), 4)}
        X, y = stream.test_up_to(task.index)
        target = torch.tensor([rows[label] for label in y.tolist()], device=device)
        x = images(X)
        with torch.no_grad():
            features, *cropped = (
                [
                    model._views(network, cropped_at(part.to(device), by))[0].float()
                    for part in torch.split(x, 512)
                ]
                for by in ((0, 0), *(CROPS if task.index + 1 in given.finetuned else ()))
            )
        rules = model._rules(network.head)
        for name, part in shown.items():
            generator = torch.Generator().manual_seed(1)
            full = task.index + 1 in given.finetuned
            if full:
                kept = classifiers.finetune(
                    network.head,
                    model._vectors_by_rotation(device),
                    part,
                    model._head_sizes,
                    scale=model.scale,
                    non_negative=True,
                    generator=generator,
                )
            else:
                kept = classifiers.discriminant(part)
            scorer = replace(rules, kept={n: t.to(device) for n, t in kept.items()})
            wanted = RULES if full else ("lda",)
            right: dict[str, float] = dict.fromkeys(wanted, 0.0)
            shifts = None
            if full and name == "ridge":
                sample = pseudo_features(part, True, torch.Generator(device).manual_seed(2))
                shifts = task_shifts(scorer, sample, list(model._head_sizes))
            with torch.no_grad():
                for i, f in enumerate(features):
                    answer = target[i * 512 : (i + 1) * 512]
                    found_by = scorer.scores(wanted, f, 2)
                    if shifts is not None:
                        found_by |= more_votes(part, scorer, f, shifts)
                        found_by["ensemble, five crops"] = found_by["ensemble"] + sum(
                            scorer.scores(("ensemble",), crop[i], 2)["ensemble"] for crop in cropped
                        )
                    for rule, scores in found_by.items():
                        n_right = float((scores.argmax(dim=1) == answer).sum())
                        right[rule] = right.get(rule, 0.0) + n_right
            line = lines.setdefault(name, {})
            line |= {rule: round(n / len(target), 5) for rule, n in right.items()}
        record = {
            "task": task.index + 1,
            "order": given.order,
            "backbone": given.backbone,
            "settings": settings,
            "maps": lines,
            "seconds": {"trained": round(trained, 1), "all": round(time.monotonic() - began, 1)},
            "versions": versions(),
            "hardware": hardware(device),
        }
        with given.out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(task.index + 1, json.dumps(lines), record["seconds"], flush=True)


if __name__ == "__main__":
    main()
