"""Networks of earlier tasks beside the newest one, and statistics of joined rotations: a laboratory.

    python results/search/snapshots.py DATA --order 0 --out DIR

Trains LMRC+ once; after each task the network is kept (a snapshot). Class statistics are kept in
the features of every snapshot: exact for classes learnt with it or after it, drift-compensated for
earlier ones up to the snapshot's own task, and never after it. Written: DIR/records.jsonl with the
accuracy on held-out images of every prediction rule and of sums of snapshots, and DIR/scores-T.npz
with all scores after some tasks, so that other sums can be computed later.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmrc import LMRCPlusClassifier, load_dataset
from lmrc.experiments.environment import hardware, versions
from lmrc.nets.backbones import ResNet
from lmrc.nets.network import Encoder
from lmrc.statistics import classifiers
from lmrc.statistics.classes import ClassStatistics, Summary, concatenated
from lmrc.statistics.gather import gather
from lmrc.statistics.prediction_rules import PredictionRules, similarities, standardised
from lmrc.statistics.residual import of_statistics, residuals
from lmrc.training.device import default_dtype_guard, pick_device
from lmrc.training.rotations import all_rotations

R = 4  # rotations


def narrow(input_shape: tuple[int, ...]) -> nn.Module:
    return ResNet(input_shape, (1, 1, 1, 1), channels=24)


class Joined:
    """Means (C, R·D) and whole covariances (C, R·D, R·D) of joined rotations, on the device."""

    def __init__(self, means: Tensor, covariances: Tensor | None, pooled: Tensor, counts: int):
        self.means, self.covariances, self.pooled, self.n = means, covariances, pooled, counts

    @classmethod
    def empty(cls, width: int, whole: bool, device: torch.device) -> Joined:
        zeros = torch.zeros(0, width, width, device=device)
        return cls(
            torch.zeros(0, width, device=device),
            zeros if whole else None,
            torch.zeros(width, width, device=device),
            0,
        )

    def added(self, x: Tensor) -> Joined:
        """With a class whose features are x, (n, R·D)."""
        mean = x.mean(dim=0)
        away = x - mean
        cov = (away.T @ away / len(away)).float()
        n = self.n + 1
        pooled = self.pooled + (cov - self.pooled) / n
        whole = None if self.covariances is None else torch.cat([self.covariances, cov[None]])
        return Joined(torch.cat([self.means, mean.float()[None]]), whole, pooled, n)

    def mapped(self, weight: Tensor, bias: Tensor) -> Joined:
        big = torch.block_diag(*[weight] * R)
        whole = None
        if self.covariances is not None:
            whole = torch.stack([big.T @ c @ big for c in self.covariances])
        return Joined(
            self.means @ big + bias.repeat(R), whole, big.T @ self.pooled @ big, self.n
        )

    def lda(self, shrinkage: float) -> tuple[Tensor, Tensor]:
        cov = classifiers.shrunk(self.pooled.double(), shrinkage)
        found = classifiers._discriminant(self.means.double()[:, None], torch.linalg.cholesky(cov))
        return found["lda_weight"][0], found["lda_bias"][0]

    def sampler(self, generator: torch.Generator, share: float) -> Any:
        """Pseudo-features of covariances with a share of the pooled one."""
        assert self.covariances is not None
        roots = []
        for c in self.covariances:
            cov = (1 - share) * c + share * self.pooled
            cov.diagonal().add_(1e-3 * cov.diagonal().mean())
            root, info = torch.linalg.cholesky_ex(cov)
            if info.item():
                cov.diagonal().add_(1e-2 * cov.diagonal().mean())
                root = torch.linalg.cholesky(cov)
            roots.append(root)
        all_roots = torch.stack(roots)

        def sample(n: int) -> Tensor:
            noise = torch.randn(
                len(all_roots), n, all_roots.shape[-1], generator=generator, device=all_roots.device
            )
            return (self.means[:, None] + noise @ all_roots.mT).relu()

        return sample


def fit_linear(
    weight: Tensor, bias: Tensor, sample: Any, each: int, steps: int, rate: float = 2e-3
) -> tuple[Tensor, Tensor]:
    """Fine-tune a linear classifier, from (classes, width), on pseudo-features."""
    size = weight.norm(dim=-1).mean()
    weight, bias = ((p / size).detach().clone().requires_grad_() for p in (weight, bias))
    log_scale = size.log().clone().requires_grad_()
    optimiser = torch.optim.Adam([weight, bias, log_scale], lr=rate)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    y = torch.arange(len(weight), device=weight.device).repeat_interleave(each)
    for _ in range(steps):
        x = sample(each).flatten(0, 1)
        with torch.enable_grad():
            loss = F.cross_entropy(log_scale.exp() * (x @ weight.T + bias), y)
            optimiser.zero_grad()
            loss.backward()
        optimiser.step()
        falling.step()
    scale = log_scale.exp()
    return (scale * weight).detach(), (scale * bias).detach()


def fit_separate(statistics: ClassStatistics, device: torch.device, seed: int) -> dict[str, Tensor]:
    """LDA and the linear classifier of separate rotations, without heads."""
    lda = classifiers.discriminant(statistics)
    rng = torch.Generator(device).manual_seed(seed)
    from lmrc.statistics.pseudo_features import pseudo_features

    pseudo = pseudo_features(statistics, True, rng)
    w, b = (lda[n].to(device) for n in ("lda_weight", "lda_bias"))
    size = w.norm(dim=-1).mean()
    w, b = ((p / size).requires_grad_() for p in (w, b))
    log_scale = size.log().requires_grad_()

    def of(x: Tensor) -> Tensor:
        return log_scale.exp() * (torch.bmm(x, w.mT) + b[:, None])

    classifiers._minimise([of], [w, b, log_scale], pseudo, len(statistics.counts))
    with torch.no_grad():
        w, b = (log_scale.exp() * p for p in (w, b))
    return lda | {"linear_weight": w.detach().cpu(), "linear_bias": b.detach().cpu()}


def fit_map(then: Tensor, now: Tensor, pull: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Ridge from old to new features, drawn towards the identity if widths agree."""
    a, b = then.mean(dim=0), now.mean(dim=0)
    g = (then.T @ then) / len(then) - a[:, None] * a
    h = (then.T @ now) / len(then) - a[:, None] * b
    eye = 0.01 * g.diagonal().mean() * torch.eye(len(g), device=g.device, dtype=g.dtype)
    target = h + (eye if pull is None else eye[0, 0] * pull)
    weight = torch.linalg.solve(g + eye, target)
    return weight, b - a @ weight


@default_dtype_guard()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--order", type=int, default=0)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--full", type=int, nargs="*", default=[2, 3, 5, 7, 10])
    parser.add_argument("--saved", type=int, nargs="*", default=[3, 6, 10])
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--no-true", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    device = pick_device("auto")
    settings: dict[str, Any] = {"statistics": "none", "predict_with": "wta"}
    if given.small:
        torch.set_num_threads(1)
        settings |= {"rotations": "one", "first_epochs": 40, "epochs": 20, "augment": "crop+flip"}
        settings |= {"random_state": given.order, "backbone": narrow}
        n_train, first_test = 200, 400
    else:
        settings |= {"augment": "cutmix", "compile": True, "random_state": 0}
        settings |= {"backbone": given.backbone}
        n_train, first_test = 450, 450
    for text in given.set:
        name, _, value = text.partition("=")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    data = load_dataset("cifar100", data_dir=given.data)
    images = np.asarray(data.X_train)
    if given.small:
        pooled = F.avg_pool2d(torch.tensor(images).permute(0, 3, 1, 2).float(), 2).round().byte()
        images = pooled.permute(0, 2, 3, 1).contiguous().numpy()
    labels = np.asarray(data.y_train)
    order = np.random.RandomState(given.order).permutation(100)[: given.tasks * 10]
    rows_of = []
    for label in order:
        at = np.flatnonzero(labels == label)
        rows_of.append(np.random.RandomState(1000 + int(label)).permutation(at))
    model = LMRCPlusClassifier(**settings)
    rng = torch.Generator().manual_seed(0)

    def tensor(rows: Any) -> Tensor:
        return torch.from_numpy(images[rows]).permute(0, 3, 1, 2).contiguous()

    def features(encoders: list[Encoder], c: int) -> list[Tensor]:
        parts = gather(
            encoders,
            tensor(rows_of[c][:n_train]),
            layers=2,
            augment=model.augmentation_,
            rotated=True,
            generator=rng,
        )
        return [torch.cat(p, dim=1) for p in zip(*parts, strict=True)]

    snapshots: list[Encoder] = []
    low: list[ClassStatistics] = []  # by snapshot, separate rotations
    joined: list[Joined] = []
    heads: list[Any] = []
    for t in range(given.tasks):
        began = time.monotonic()
        now_classes = list(range(10 * t, 10 * t + 10))
        learnt = np.concatenate([rows_of[c][:n_train] for c in now_classes])
        model.partial_fit(images[learnt], 0 * labels[learnt] + relabel(labels[learnt], order))
        trained = time.monotonic() - began
        network = copy.deepcopy(model.network_).to(device).eval()
        snapshots.append(network.encoder)
        heads.append(network.head)
        print(t + 1, "trained", round(trained, 1), model.augmentation_, flush=True)
        # --- statistics -------------------------------------------------------------------------
        direct_means: dict[int, Tensor] = {}
        each: dict[int, list[Tensor]] = {c: features(snapshots, c) for c in now_classes}
        width = each[now_classes[0]][0].shape[-1]
        if t:
            every = [torch.cat([each[c][s].flatten(0, 1) for c in now_classes]) for s in (t - 1, t)]
            weight, bias = fit_map(every[0], every[1])
            from lmrc.statistics.drift import LinearMap

            low.append(low[t - 1].mapped(LinearMap(weight.cpu(), bias.cpu())))
            j = joined[t - 1]
            joined.append(j.mapped(weight.float(), bias.float()))
            j.covariances = None  # older snapshots: pooled only
            del every
            now = torch.cat([each[c][t].flatten(0, 1) for c in now_classes])
            for n_then in (1, 3, 99):  # snapshots up to the one with which a class was learnt
                direct = []
                for then in range(t):
                    first = max(0, then + 1 - n_then)
                    seen = torch.cat(
                        [
                            torch.cat([each[c][s].flatten(0, 1) for c in now_classes])
                            for s in range(first, then + 1)
                        ],
                        dim=1,
                    )
                    pull = F.pad(torch.eye(width, device=device), (0, 0, width * (then - first), 0))
                    weight, bias = fit_map(seen, now, pull)
                    means = torch.cat(
                        [
                            joined[s].means[10 * then : 10 * then + 10].view(10, R, width)
                            for s in range(first, then + 1)
                        ],
                        dim=2,
                    )
                    direct.append((means.double() @ weight + bias).flatten(1).float())
                    del seen, weight
                direct_means[n_then] = torch.cat(direct)
        else:
            low.append(ClassStatistics.empty("low-rank", R, width))
            joined.append(Joined.empty(R * width, True, device))
        for c in now_classes:
            for s, x in enumerate(each[c]):
                low[s] = low[s].with_class(c, Summary.of(x, n_train))
                joined[s] = joined[s].added(concatenated(x)[0])
        del each
        gathered = time.monotonic() - began - trained
        line: dict[str, Any] = {}
        n_classes = 10 * (t + 1)
        full = t + 1 in given.full
        target = torch.arange(n_classes, device=device).repeat_interleave(
            len(rows_of[0][first_test:])
        )
        scores: dict[str, Tensor] = {}
        if full:
            x_test = tensor(np.concatenate([rows_of[c][first_test:] for c in range(n_classes)]))
            views: list[Tensor] = []
            for encoder in snapshots:
                parts = []
                with torch.no_grad():
                    for part in x_test.split(256):
                        part = part.to(device)
                        both = all_rotations(torch.cat([part, part.flip(-1)]))
                        f = encoder.features(both, 2).float()
                        parts.append(f.view(R, 2, -1, f.shape[-1]))
                views.append(torch.cat(parts, dim=2))  # (R, 2, n, D)
            stats: dict[str, tuple[ClassStatistics, Joined]] = {"": (low[t], joined[t])}
            if not given.no_true and t:
                true = ClassStatistics.empty("low-rank", R, width)
                true_joined = Joined.empty(R * width, True, device)
                for c in range(n_classes):
                    (x,) = features([snapshots[t]], c)
                    true = true.with_class(c, Summary.of(x, n_train))
                    true_joined = true_joined.added(concatenated(x)[0])
                stats["true "] = (true, true_joined)
            moved = {}
            for n_then, means in direct_means.items():
                for part in (0.5, 1.0):
                    both = part * means + (1 - part) * joined[t].means[: 10 * t]
                    both = torch.cat([both, joined[t].means[10 * t :]])
                    moved[f"direct {n_then} {part}"] = Joined(both, None, joined[t].pooled, 0)
            if len(stats) > 1:
                unit = true_joined.pooled.trace().sqrt()
                for name, part in {"multi-hop": joined[t], **moved}.items():
                    away = (part.means - true_joined.means)[: 10 * t].norm(dim=1).mean() / unit
                    line[f"distance {name}"] = round(float(away), 4)
                both = Joined(true_joined.means, None, joined[t].pooled, 0)
                moved["true means"] = both
            vectors = model._vectors_by_rotation(device)
            sizes = list(model._head_sizes)
            z = views[t]
            flat = z.flatten(1, 2)
            zj = z.permute(1, 2, 0, 3).flatten(2)  # (2, n, R·D)
            for name, (separate, whole) in stats.items():
                kept = classifiers.finetune(
                    network.head,
                    vectors,
                    separate,
                    sizes,
                    scale=model.scale,
                    non_negative=True,
                    generator=torch.Generator().manual_seed(1),
                )
                kept = {n: p.to(device) for n, p in kept.items()}
                rules = PredictionRules(network.head, vectors, sizes, kept)
                with torch.no_grad():
                    found = rules.scores(("wta", "lda", "finetuned", "linear"), flat, 2)
                    factors, lengths = of_statistics(separate)
                    centres = separate.means.transpose(0, 1) / lengths[None, :, None]
                    off = residuals(centres, factors, flat).mean(dim=0)
                    found["residual"] = -off.view(2, -1, off.shape[-1]).mean(dim=0)
                    for k in (0.03, 0.1, 0.3):
                        w, b = whole.lda(k)
                        found[f"lda joined {k}"] = (zj @ w.T + b).mean(dim=0)
                for share in (0.0, 0.5, 1.0):
                    sampler = whole.sampler(torch.Generator(device).manual_seed(3), share)
                    w, b = whole.lda(0.1)
                    wl, bl = fit_linear(w, b, sampler, 8, 300)
                    found[f"linear joined {share}"] = (zj @ wl.T + bl).mean(dim=0)
                    if share == 0.5:
                        wl, bl = fit_linear(w, b, sampler, 16, 1000, 1e-3)
                        found["linear joined 0.5 long"] = (zj @ wl.T + bl).mean(dim=0)
                        found["finetuned joined"] = by_tuned_heads(
                            network.head, vectors, sizes, sampler, z, model.scale
                        )
                    del sampler
                scores |= {f"{name}{rule}": s for rule, s in found.items()}
            for name, part in moved.items():
                w, b = part.lda(0.1)
                scores[f"lda joined, {name}"] = (zj @ w.T + b).mean(dim=0)
            for s in range(t):
                kept = fit_separate(low[s], device, 5 + s)
                with torch.no_grad():
                    f = views[s].flatten(1, 2)
                    for rule in ("lda", "linear"):
                        w, b = (kept[f"{rule}_{p}"].to(device) for p in ("weight", "bias"))
                        by = (torch.bmm(f, w.mT) + b[:, None]).mean(dim=0)
                        scores[f"{rule} @{s + 1}"] = by.view(2, -1, n_classes).mean(dim=0)
                    w, b = joined[s].lda(0.1)
                    zs = views[s].permute(1, 2, 0, 3).flatten(2)
                    scores[f"lda joined @{s + 1}"] = (zs @ w.T + b).mean(dim=0)
                    n_then = 10 * (s + 1)
                    own = similarities(
                        f[..., -heads[s].weight.shape[-1] :],
                        heads[s].weight,
                        heads[s].bias,
                        vectors[:n_then],
                        sizes[: s + 1],
                    ).mean(dim=0)
                    scores[f"wta @{s + 1}"] = own.view(2, -1, n_then).mean(dim=0)
            del views, stats
        for name, s in scores.items():
            if s.shape[1] == n_classes:
                line[name] = acc(s, target)
        sums = combos(scores, t)
        line |= {name: acc(s, target) for name, s in sums.items()}
        if t + 1 in given.saved and scores:
            np.savez_compressed(
                given.out / f"scores-{t + 1}.npz",
                **{
                    n.replace(" ", "_"): (standardised(s) if s.shape[1] == n_classes else s)
                    .half()
                    .cpu()
                    .numpy()
                    for n, s in scores.items()
                },
            )
        record = {
            "task": t + 1,
            "order": given.order,
            "settings": {n: str(v) for n, v in settings.items()},
            "accuracy": line,
            "seconds": {
                "trained": round(trained, 1),
                "gathered": round(gathered, 1),
                "all": round(time.monotonic() - began, 1),
            },
            "versions": versions(),
            "hardware": hardware(device),
        }
        with (given.out / "records.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(t + 1, json.dumps(line), record["seconds"], flush=True)


def relabel(labels: Any, order: Any) -> Any:
    """Number classes in the order in which they are learnt."""
    place = np.full(100, -1)
    place[order] = np.arange(len(order))
    return place[labels]


def acc(s: Tensor, target: Tensor) -> float:
    return round(100 * float((s.argmax(dim=1) == target).double().mean()), 2)


def by_tuned_heads(
    head: Any, vectors: Tensor, sizes: list[int], sampler: Any, z: Tensor, scale: float
) -> Tensor:
    """Heads fine-tuned on joined pseudo-features."""
    weight, bias = (p.detach().clone().requires_grad_() for p in (head.weight, head.bias))
    width, n_classes = weight.shape[-1], len(vectors)
    optimiser = torch.optim.Adam([weight, bias], lr=2e-3)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 300)
    y = torch.arange(n_classes, device=weight.device).repeat_interleave(8)
    for _ in range(300):
        x = sampler(8).flatten(0, 1)
        x = x.view(len(x), R, -1).transpose(0, 1)[..., -width:]
        with torch.enable_grad():
            s = scale * similarities(x, weight, bias, vectors, sizes).mean(dim=0)
            loss = F.cross_entropy(s, y)
            optimiser.zero_grad()
            loss.backward()
        optimiser.step()
        falling.step()
    with torch.no_grad():
        s = similarities(z.flatten(1, 2)[..., -width:], weight, bias, vectors, sizes).mean(dim=0)
        return s.view(2, -1, n_classes).mean(dim=0)


def combos(scores: dict[str, Tensor], t: int) -> dict[str, Tensor]:
    """Sums of standardised scores."""
    if not scores:
        return {}
    st = {n: standardised(s) for n, s in scores.items() if not n.startswith("wta @")}
    found = {}
    for pre in ("", "true ") if "true lda" in st else ("",):
        ens = st[pre + "finetuned"] + st[pre + "linear"]
        found[pre + "ensemble"] = ens
        found[pre + "ensemble+residual"] = ens + st[pre + "residual"]
        for j in ("lda joined 0.1", "linear joined 0.5", "linear joined 0.5 long"):
            found[pre + f"finetuned+{j}"] = st[pre + "finetuned"] + st[pre + j]
            found[pre + f"finetuned joined+{j}"] = st[pre + "finetuned joined"] + st[pre + j]
            found[pre + f"ensemble+{j}"] = ens + st[pre + j]
            found[pre + f"ensemble+{j}+residual"] = ens + st[pre + j] + st[pre + "residual"]
    base = st["finetuned"] + st["linear"] + st["lda joined 0.1"]
    old = {s: st[f"linear @{s + 1}"] + st[f"lda joined @{s + 1}"] for s in range(t)}
    new = st["linear"] + st["lda joined 0.1"]
    if t:
        found["snapshots: all"] = new + sum(old.values()) + st["finetuned"]
        found["snapshots: first"] = base + old[0]
        found["snapshots: previous"] = base + old[t - 1]
        mid = sorted({0, t // 3, (2 * t) // 3})
        found["snapshots: 4"] = base + sum(old[s] for s in mid if s < t)
        found["snapshots: last 4"] = base + sum(old[s] for s in range(max(0, t - 3), t))
        found["snapshots: first+previous"] = base + sum(old[s] for s in {0, t - 1})
        found["snapshots: linear, all"] = (
            sum(st[f"linear @{s + 1}"] for s in range(t)) + st["linear"] + st["finetuned"]
        )
        found["snapshots: lda joined, all"] = (
            sum(st[f"lda joined @{s + 1}"] for s in range(t)) + st["lda joined 0.1"]
        )
    return found


if __name__ == "__main__":
    main()
