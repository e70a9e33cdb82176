"""How to compensate class statistics of joined rotations for feature drift: a laboratory.

    python results/search/compensation.py learn DATA --order 0 --out DIR
    python results/search/compensation.py score DIR --after 4 7 --out FILE

`learn` trains LMRC+ and keeps, for each task, features of training images and of held-out ones by
the network of that time. `score` compares ways to carry class means and covariances along:
accuracy on held-out images, and the distance of class means from those that the old images would
give.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

R = 4  # rotations
PER_TASK = 10


def narrow(input_shape: tuple[int, ...]) -> torch.nn.Module:
    from lmrc.nets.backbones import ResNet

    return ResNet(input_shape, (1, 1, 1, 1), channels=16)


def learn(given: argparse.Namespace) -> None:
    """Train, and keep features."""
    TRAINED = 450
    from lmrc import LMRCPlusClassifier, load_dataset
    from lmrc.statistics.gather import gather
    from lmrc.training.rotations import all_rotations

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    settings: dict[str, Any] = {"statistics": "none", "predict_with": "wta", "augment": "cutmix"}
    settings |= {"compile": True, "random_state": 0, "backbone": "resnet18"}
    for text in given.set:
        name, _, value = text.partition("=")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    given.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load_dataset("cifar100", data_dir=given.data)
    images, labels = np.asarray(data.X_train), np.asarray(data.y_train)
    if given.small:
        torch.set_num_threads(1)
        x = F.avg_pool2d(torch.tensor(images).permute(0, 3, 1, 2).float(), 2).round().byte()
        images = x.permute(0, 2, 3, 1).contiguous().numpy()
        settings |= {"backbone": narrow, "augment": "crop+flip", "rotations": "one"}
        settings |= {"compile": False, "first_epochs": 30, "epochs": 20, "learning_rate": 0.05}
        TRAINED = 250
    order = np.random.RandomState(given.order).permutation(100)[: given.tasks * PER_TASK]
    rows = [
        np.random.RandomState(1000 + int(label)).permutation(np.flatnonzero(labels == label))
        for label in order
    ]
    place = np.full(100, -1)
    place[order] = np.arange(len(order))
    model = LMRCPlusClassifier(**settings)

    def tensor(r: Any) -> Tensor:
        return torch.from_numpy(images[r]).permute(0, 3, 1, 2).contiguous()

    for t in range(given.tasks):
        began = time.monotonic()
        r = np.concatenate([rows[c][:TRAINED] for c in range(PER_TASK * t, PER_TASK * (t + 1))])
        model.partial_fit(images[r], place[labels[r]])
        trained = time.monotonic() - began
        encoder = model.network_.encoder.to(device).eval()
        train, test = {}, {}
        with torch.no_grad():
            for c in range(PER_TASK * given.tasks):
                # A later network sees old images only to tell how far off a way is.
                if c >= PER_TASK * t or t + 1 in given.after:
                    rng = torch.Generator().manual_seed(c)  # the same views for each network
                    parts = gather(
                        [encoder],
                        tensor(rows[c][:TRAINED]),
                        layers=2,
                        augment=model.augmentation_,
                        rotated=True,
                        generator=rng,
                    )
                    train[c] = torch.cat([p[0] for p in parts], dim=1).half().cpu()
                if t + 1 in given.after and c < PER_TASK * (t + 1):
                    x = tensor(rows[c][450:]).to(device)
                    f = encoder.features(all_rotations(torch.cat([x, x.flip(-1)])), 2)
                    test[c] = f.view(R, 2, len(x), -1).half().cpu()
        kept = {"train": train, "test": test, "scale": model.scale, "order": given.order}
        kept |= {"head": [p.detach().cpu() for p in (model.network_.head.weight,)]}
        kept |= {"bias": model.network_.head.bias.detach().cpu()}
        kept |= {"vectors": torch.as_tensor(model.labels_["vectors"]).cpu()}
        kept |= {"sizes": list(model._head_sizes), "settings": {k: str(v) for k, v in settings.items()}}
        torch.save(kept, given.out / f"{t}.part")
        (given.out / f"{t}.part").rename(given.out / f"{t}.pt")
        print(t + 1, round(trained, 1), round(time.monotonic() - began, 1), flush=True)


def joined(x: Tensor) -> Tensor:
    """(R, n, D) to (n, R·D)."""
    return x.permute(1, 0, 2).flatten(1)


def fit(then: Tensor, now: Tensor, eps: float, pull: Tensor | None = None) -> tuple[Tensor, ...]:
    """Ridge regression towards the identity: weight, bias, residuals."""
    then, now = then.double(), now.double()
    a, b = then.mean(dim=0), now.mean(dim=0)
    x, y = then - a, now - b
    g, h = x.T @ x / len(x), x.T @ y / len(x)
    e = eps * g.diagonal().mean()
    eye = torch.eye(len(g)).to(g)
    w = torch.linalg.solve(g + e * eye, h + e * (eye if pull is None else pull.to(g)))
    return w.float(), (b - a @ w).float(), (y - x @ w).float()


def big(w: Tensor) -> Tensor:
    return torch.block_diag(*[w] * R)


class Scorer:
    """Statistics by one way, and accuracies by them."""

    def __init__(self, kept: dict[str, Any], n_classes: int, device: torch.device) -> None:
        test = [kept["test"][c].float() for c in range(n_classes)]
        z = torch.stack(test)  # (C, R, 2, n, D)
        self.n, self.d = z.shape[3], z.shape[-1]
        self.z = z.permute(0, 3, 2, 1, 4).reshape(-1, 2, R * self.d).to(device)
        self.y = torch.arange(n_classes).repeat_interleave(self.n).to(device)
        self.device = device
        self.head = kept["head"][0].to(device), kept["bias"].to(device)
        self.vectors = kept["vectors"].to(device)
        self.sizes, self.scale = kept["sizes"], kept["scale"]

    def accuracy(self, scores: Tensor) -> float:
        return round(100 * float((scores.argmax(dim=1) == self.y).float().mean()), 2)

    def lda(self, means: Tensor, pooled: Tensor, k: float) -> tuple[Tensor, Tensor]:
        cov = (1 - k) * pooled.double()
        cov.diagonal().add_(k * pooled.diagonal().mean())
        mid = means.double().mean(dim=0)
        away = means.double() - mid
        w = torch.linalg.solve(cov, away.T).T
        return w.float(), -(w * (away / 2 + mid)).sum(dim=1).float()

    def by(self, w: Tensor, b: Tensor) -> Tensor:
        return (self.z @ w.T + b).mean(dim=1)

    def tuned(
        self, means: Tensor, pooled: Tensor, sample: Any, steps: int = 300, each: int = 8
    ) -> tuple[Tensor, Tensor]:
        """Scores of a linear classifier and of heads, fine-tuned on pseudo-features."""
        from lmrc.statistics.prediction_rules import similarities

        weight, bias = (p.clone().requires_grad_() for p in self.head)
        w, b = self.lda(means, pooled, 0.1)
        size = w.norm(dim=-1).mean()
        w, b = ((p / size).requires_grad_() for p in (w, b))
        log_scale = size.log().clone().requires_grad_()
        parts = [weight, bias, w, b, log_scale]
        optimiser = torch.optim.Adam(parts, lr=2e-3)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        y = torch.arange(len(w), device=w.device).repeat_interleave(each)
        last = weight.shape[-1]

        def heads(x: Tensor) -> Tensor:
            x = x.view(len(x), R, -1).transpose(0, 1)[..., -last:]
            return similarities(x, weight, bias, self.vectors, self.sizes).mean(dim=0)

        for _ in range(steps):
            x = sample(each).flatten(0, 1)
            with torch.enable_grad():
                loss = F.cross_entropy(log_scale.exp() * (x @ w.T + b), y)
                loss = loss + F.cross_entropy(self.scale * heads(x), y)
                optimiser.zero_grad()
                loss.backward()
            optimiser.step()
            falling.step()
        linear = self.by(log_scale.exp() * w, log_scale.exp() * b)
        parts_ = [heads(part.flatten(0, 1)) for part in self.z.split(512)]
        found = torch.cat([p.view(-1, 2, p.shape[-1]).mean(dim=1) for p in parts_])
        return linear, found


def roots_of(covariances: Sequence[Tensor]) -> Tensor:
    roots = []
    for cov in covariances:
        cov = cov.clone()
        cov.diagonal().add_(1e-3 * cov.diagonal().mean())
        root, info = torch.linalg.cholesky_ex(cov)
        while info.item():
            cov.diagonal().add_(1e-2 * cov.diagonal().mean())
            root, info = torch.linalg.cholesky_ex(cov)
        roots.append(root)
    return torch.stack(roots)


def sampler(means: Tensor, roots: Tensor) -> Any:
    rng = torch.Generator(means.device).manual_seed(3)

    def sample(n: int) -> Tensor:
        noise = torch.randn(len(roots), n, roots.shape[-1], generator=rng, device=means.device)
        return (means[:, None] + noise @ roots.mT).relu()

    return sample


def spikes(means: Tensor, covs: Tensor, pooled: Tensor, rank: int) -> Any:
    """Pseudo-features: a class's largest directions, and the pooled covariance as the rest."""
    us, shares = [], []
    for c in covs:
        values, directions = torch.linalg.eigh(c)
        values, directions = values[-rank:].clamp(min=0), directions[:, -rank:]
        us.append(directions * values.sqrt())
        shares.append((c.trace() - values.sum()).clamp(min=0))
    u, share = torch.stack(us), torch.stack(shares)[:, None, None]
    rest = pooled - torch.stack([part @ part.T for part in us]).mean(dim=0)
    share = (share / rest.trace()).sqrt()
    root = roots_of([rest])[0]
    rng = torch.Generator(means.device).manual_seed(3)

    def sample(n: int) -> Tensor:
        some = torch.randn(len(u), n, rank, generator=rng, device=means.device)
        rest = torch.randn(len(u), n, len(root), generator=rng, device=means.device)
        return (means[:, None] + some @ u.mT + share * (rest @ root.T)).relu()

    return sample


def standardised(s: Tensor) -> Tensor:
    s = s - s.mean(dim=1, keepdim=True)
    return s / s.square().mean(dim=1, keepdim=True).sqrt()


def score(given: argparse.Namespace) -> None:
    """Compare."""
    torch.set_grad_enabled(False)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for after in given.after:
        kept = []
        for s in range(after):
            path = given.dir / f"{s}.pt"
            while not path.exists():
                time.sleep(1)
            kept.append(torch.load(path, map_location="cpu", mmap=True))
        began = time.monotonic()
        t, n = after - 1, PER_TASK * after
        scorer = Scorer(kept[t], n, device)
        d = scorer.d

        cache: dict[tuple[int, int], Tensor] = {}

        def of(s: int, c: int) -> Tensor:
            if (s, c) not in cache:
                cache[s, c] = kept[s]["train"][c].to(device)
            return cache[s, c].float()

        def mean(s: int, c: int) -> Tensor:
            return joined(of(s, c)).mean(dim=0)

        def cov(s: int, c: int) -> Tensor:
            x = joined(of(s, c))
            x = x - x.mean(dim=0)
            return x.T @ x / len(x)

        def flat(s: int, classes: Any) -> Tensor:
            return torch.cat([of(s, c).flatten(0, 1) for c in classes])

        def spread(residual: Tensor) -> Tensor:
            """Covariance of joined residuals, (classes · R · n, D)."""
            x = residual.view(PER_TASK, R, -1, d).transpose(0, 1).reshape(R, -1, d)
            x = joined(x)
            return x.T @ x / len(x)

        def task(u: int) -> range:
            return range(PER_TASK * u, PER_TASK * (u + 1))

        true_means = torch.stack([mean(t, c) for c in range(n)])
        true_covs = torch.stack([cov(t, c) for c in range(n)])
        true_pooled = true_covs.mean(dim=0)
        unit = true_pooled.trace().sqrt()
        found: dict[str, Any] = {}

        def show(name: str, means: Tensor, pooled: Tensor, covs: Tensor | None = None) -> None:
            away = (means - true_means)[: PER_TASK * t].norm(dim=1).mean() / unit
            line: dict[str, float] = {"distance": round(float(away), 4)}
            for k in (0.03, 0.1, 0.3):
                line[f"lda {k}"] = scorer.accuracy(scorer.by(*scorer.lda(means, pooled, k)))
            if covs is not None:
                lda = scorer.by(*scorer.lda(means, pooled, 0.1))
                half = [0.5 * c + 0.5 * pooled for c in covs]
                samplers = {"half": sampler(means, roots_of(half))}
                for rank in given.ranks:
                    samplers[f"rank {rank}"] = spikes(means, covs, pooled, rank)
                for kind, sample in samplers.items():
                    for steps in (300,):
                        linear, heads = scorer.tuned(means, pooled, sample, steps)
                        both = standardised(linear) + standardised(heads)
                        short = {"linear": linear, "heads": heads, "linear + heads": both}
                        short |= {"all": both + standardised(lda)}
                        for rule, scores in short.items():
                            line[f"{rule} {kind} {steps}"] = scorer.accuracy(scores)
            found[name] = line
            print(after, name, json.dumps(line), round(time.monotonic() - began, 1), flush=True)

        new = task(t)
        now = flat(t, new)
        show("true", true_means, true_pooled, true_covs)
        # --- from task to task ------------------------------------------------------------------
        hops: dict[str, Any] = {}
        for eps in (0.01, 0.001, 0.0001):
            means = torch.stack([mean(0, c) for c in task(0)])
            covs = torch.stack([cov(0, c) for c in task(0)])
            more = covs.clone()
            for u in range(1, t + 1):
                w, b, residual = fit(flat(u - 1, task(u)), flat(u, task(u)), eps)
                means = means @ big(w) + b.repeat(R)
                covs = torch.stack([big(w).T @ c @ big(w) for c in covs])
                rest = spread(residual)
                more = torch.stack([big(w).T @ c @ big(w) + rest for c in more])
                means = torch.cat([means, torch.stack([mean(u, c) for c in task(u)])])
                fresh = torch.stack([cov(u, c) for c in task(u)])
                covs, more = torch.cat([covs, fresh]), torch.cat([more, fresh])
            hops[str(eps)] = means, covs, more
            full = eps == 0.001
            show(f"hops {eps}", means, covs.mean(dim=0), covs if full else None)
            show(f"hops {eps} + R", means, more.mean(dim=0), more if full else None)
            show(f"hops {eps}, true covariance", means, true_pooled)
        show("true means, hops 0.001 covariance", true_means, hops["0.001"][1].mean(dim=0))
        show("true means, hops 0.001 + R covariance", true_means, hops["0.001"][2].mean(dim=0))
        # --- both, at each task ---------------------------------------------------------------
        for share in (0.3, 0.5, 0.7):
            means = own = torch.stack([mean(0, c) for c in task(0)])
            for u in range(1, t + 1):
                w, b, _ = fit(flat(u - 1, task(u)), flat(u, task(u)), 0.001)
                means, parts = means @ big(w) + b.repeat(R), []
                for j in range(u):
                    w, b, _ = fit(flat(j, task(u)), flat(u, task(u)), 0.001)
                    parts.append(own[PER_TASK * j : PER_TASK * (j + 1)] @ big(w) + b.repeat(R))
                fresh = torch.stack([mean(u, c) for c in task(u)])
                means = torch.cat([(1 - share) * means + share * torch.cat(parts), fresh])
                own = torch.cat([own, fresh])
            more = hops["0.001"][2]
            covs = more if share == 0.5 else None
            show(f"recursive {share}, + R", means, more.mean(dim=0), covs)
        # --- in one step from the network with which a class was learnt ---------------------------
        for back in (1, 99):
            for eps in (0.01, 0.001, 0.0001):
                parts, errors = [], []
                for j in range(t):
                    first = max(0, j + 1 - back)
                    which = range(first, j + 1)
                    seen = torch.cat([flat(s, new) for s in which], dim=1)
                    pull = F.pad(torch.eye(d), (0, 0, d * (j - first), 0))
                    w, b, _ = fit(seen, now, eps, pull)
                    for c in task(j):
                        x = torch.cat([of(s, c).mean(dim=1) for s in which], dim=1)
                        parts.append((x @ w + b).flatten())
                    if eps == 0.001 and back == 1:  # errors for a class that was left out
                        size = len(seen) // PER_TASK
                        for i, c in enumerate(new):
                            rest = torch.ones(len(seen), dtype=torch.bool, device=device)
                            rest[i * size : (i + 1) * size] = False
                            w, b, _ = fit(seen[rest], now[rest], eps, pull)
                            error = of(t, c).mean(dim=1) - (of(j, c).mean(dim=1) @ w + b)
                            errors.append(error.flatten())
                means = torch.stack([*parts, *[mean(t, c) for c in new]])
                hop, _, more = hops["0.001" if eps < 0.01 else "0.01"]
                half = more.mean(dim=0)
                show(f"direct {back} {eps}, + R", means, half)
                blend = (means + hop) / 2
                show(f"blend {back} {eps}, + R", blend, half, more if eps == 0.001 else None)
                if errors:
                    e = torch.stack(errors)
                    e = e.T @ e / len(e)
                    name = f"blend {back} {eps}, + R"
                    for a in (1, 3, 10):
                        show(f"{name} + {a} E", blend, half + a * e)
                        show(f"hops 0.001 + R + {a} E", hop, half + a * e)
        record = {"order": kept[t]["order"], "after": after, "found": found}
        record |= {"settings": kept[t]["settings"]}
        with given.out.open("a") as file:
            file.write(json.dumps(record) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("learn")
    one.add_argument("data", type=Path)
    one.add_argument("--order", type=int, default=0)
    one.add_argument("--tasks", type=int, default=7)
    one.add_argument("--after", type=int, nargs="*", default=[4, 7])
    one.add_argument("--small", action="store_true")
    one.add_argument("--set", nargs="*", default=[])
    one.add_argument("--out", type=Path, required=True)
    two = verbs.add_parser("score")
    two.add_argument("dir", type=Path)
    two.add_argument("--after", type=int, nargs="*", default=[4, 7])
    two.add_argument("--ranks", type=int, nargs="*", default=[24])
    two.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    (learn if given.verb == "learn" else score)(given)


if __name__ == "__main__":
    main()
