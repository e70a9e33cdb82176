"""How to compensate class statistics of joined rotations for feature drift.

    python results/search/compensation.py learn DATA --order 0 --out DIR
    python results/search/compensation.py score DIR --after 4 7 --out FILE

`learn` trains LMRC+ and keeps, for each task, features of training images and of held-out ones by
the network of that time. `score` compares ways to compensate class means and covariances: accuracy
on held-out images, and the distance of class means from those that the old images would give.
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

from lmrc import LMRCPlusClassifier, load_dataset
from lmrc.experiments.environment import hardware, versions
from lmrc.nets.backbones import ResNet
from lmrc.statistics.classes import concatenated
from lmrc.statistics.gather import gather
from lmrc.statistics.prediction_rules import similarities, standardised
from lmrc.training.rotations import all_rotations

R = 4  # rotations
PER_TASK = 10


def narrow(input_shape: tuple[int, ...]) -> torch.nn.Module:
    """Return a ResNet of 64 features in its third stage, and 128 in its last."""
    return ResNet(input_shape, (1, 1, 1, 1), channels=16)


def learn(given: argparse.Namespace) -> None:
    """Train, and keep features."""
    trained_on = 450  # images of a class
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
        trained_on = 250
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
        r = np.concatenate([rows[c][:trained_on] for c in range(PER_TASK * t, PER_TASK * (t + 1))])
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
                        tensor(rows[c][:trained_on]),
                        layers=2,
                        augment=model.augmentation_,
                        rotated=True,
                        generator=rng,
                    )
                    train[c] = torch.cat([p[0] for p in parts], dim=1).half().cpu()
                if given.by_each or (t + 1 in given.after and c < PER_TASK * (t + 1)):
                    x = tensor(rows[c][450:]).to(device)
                    f = encoder.features(all_rotations(torch.cat([x, x.flip(-1)])), 2)
                    test[c] = f.view(R, 2, len(x), -1).half().cpu()
        kept = {"train": train, "test": test, "scale": model.scale, "order": given.order}
        kept |= {"head": model.network_.head.weight.detach().cpu()}
        kept |= {"bias": model.network_.head.bias.detach().cpu()}
        kept |= {"vectors": torch.as_tensor(model.labels_["vectors"]).cpu()}
        kept |= {"sizes": list(model._head_sizes)}
        kept |= {"settings": {k: str(v) for k, v in settings.items()}}
        torch.save(kept, given.out / f"{t}.part")
        (given.out / f"{t}.part").rename(given.out / f"{t}.pt")
        print(t + 1, round(trained, 1), round(time.monotonic() - began, 1), flush=True)


def task(u: int) -> range:
    """Return the classes of a task."""
    return range(PER_TASK * u, PER_TASK * (u + 1))


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
    """Return a map of joined rotations."""
    return torch.kron(torch.eye(R, device=w.device), w.contiguous())


class Scorer:
    """Statistics by one way, and accuracies by them."""

    def __init__(self, kept: dict[str, Any], n_classes: int, device: torch.device) -> None:
        test = [kept["test"][c].float() for c in range(n_classes)]
        z = torch.stack(test)  # (C, R, 2, n, D)
        self.n, self.d = z.shape[3], z.shape[-1]
        self.z = z.permute(0, 3, 2, 1, 4).reshape(-1, 2, R * self.d).to(device)
        self.y = torch.arange(n_classes).repeat_interleave(self.n).to(device)
        self.device = device
        self.head = kept["head"].to(device), kept["bias"].to(device)
        self.vectors = kept["vectors"].to(device)
        self.sizes, self.scale = kept["sizes"], kept["scale"]

    def accuracy(self, scores: Tensor) -> float:
        """Return it in per cent."""
        return round(100 * float((scores.argmax(dim=1) == self.y).float().mean()), 2)

    def lda(self, means: Tensor, pooled: Tensor, k: float) -> tuple[Tensor, Tensor]:
        """Return the discriminant, with a shrinkage."""
        cov = (1 - k) * pooled.double()
        cov.diagonal().add_(k * pooled.diagonal().mean())
        mid = means.double().mean(dim=0)
        away = means.double() - mid
        w = torch.linalg.solve(cov, away.T).T
        return w.float(), -(w * (away / 2 + mid)).sum(dim=1).float()

    def by(self, w: Tensor, b: Tensor) -> Tensor:
        """Return scores of a linear classifier."""
        return (self.z @ w.T + b).mean(dim=1)

    def tuned(
        self, means: Tensor, pooled: Tensor, sample: Any, steps: int = 300, each: int = 8
    ) -> tuple[Tensor, Tensor]:
        """Scores of a linear classifier and of heads, fine-tuned on pseudo-features.

        Those of heads are zeros where they are not of all classes.
        """
        weight, bias = (p.clone().requires_grad_() for p in self.head)
        w, b = self.lda(means, pooled, 0.1)
        size = w.norm(dim=-1).mean()
        w, b = ((p / size).requires_grad_() for p in (w, b))
        log_scale = size.log().clone().requires_grad_()
        parts = [weight, bias, w, b, log_scale]
        optimiser = torch.optim.Adam(parts, lr=2e-3)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        y = torch.arange(len(w), device=w.device).repeat_interleave(each)
        last, known = weight.shape[-1], len(self.vectors) == len(w)

        def heads(x: Tensor) -> Tensor:
            x = x.view(len(x), R, -1).transpose(0, 1)[..., -last:]
            return similarities(x, weight, bias, self.vectors, self.sizes).mean(dim=0)

        for _ in range(steps):
            x = sample(each).flatten(0, 1)
            with torch.enable_grad():
                loss = F.cross_entropy(log_scale.exp() * (x @ w.T + b), y)
                if known:
                    loss = loss + F.cross_entropy(self.scale * heads(x), y)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            falling.step()
        linear = self.by(log_scale.exp() * w, log_scale.exp() * b)
        if not known:
            return linear, torch.zeros_like(linear)
        parts_ = [heads(part.flatten(0, 1)) for part in torch.split(self.z, 512)]
        found = torch.cat([p.view(-1, 2, p.shape[-1]).mean(dim=1) for p in parts_])
        return linear, found


def roots_of(covariances: Sequence[Tensor]) -> Tensor:
    """Return Cholesky factors."""
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
    """Return a sampler of pseudo-features."""
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


def score(given: argparse.Namespace) -> None:
    """Compare ways to compensate statistics."""
    torch.set_grad_enabled(False)
    for after in given.after:
        Comparison(given.dir, after, given.ranks).write(given.out)


class Comparison:
    """Ways to compensate statistics, compared after some tasks."""

    def __init__(self, folder: Path, after: int, ranks: Sequence[int]) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.kept = [torch.load(folder / f"{s}.pt", mmap=True) for s in range(after)]
        self.t, self.n, self.ranks = after - 1, PER_TASK * after, ranks
        self.scorer = Scorer(self.kept[-1], self.n, self.device)
        self.true_means = torch.stack([self.mean(self.t, c) for c in range(self.n)])
        self.true_covs = torch.stack([self.cov(self.t, c) for c in range(self.n)])
        self.unit = self.true_covs.mean(dim=0).trace().sqrt()
        self.found: dict[str, Any] = {}

    def of(self, s: int, c: int) -> Tensor:
        """Return the features of a class by the network of a task."""
        found: Tensor = self.kept[s]["train"][c].to(self.device).float()
        return found

    def mean(self, s: int, c: int) -> Tensor:
        """Return the mean of a class by the network of a task."""
        return concatenated(self.of(s, c))[0].mean(dim=0)

    def cov(self, s: int, c: int) -> Tensor:
        """Return the covariance of a class by the network of a task."""
        x = concatenated(self.of(s, c))[0]
        x = x - x.mean(dim=0)
        return x.T @ x / len(x)

    def new(self, s: int, u: int) -> tuple[Tensor, Tensor]:
        """Return means and covariances of the classes of task u by the network of task s."""
        classes = task(u)
        means, covs = ([of(s, c) for c in classes] for of in (self.mean, self.cov))
        return torch.stack(means), torch.stack(covs)

    def flat(self, s: int, u: int) -> Tensor:
        """Return the features of all images of task u by the network of task s."""
        return torch.cat([self.of(s, c).flatten(0, 1) for c in task(u)])

    def show(self, name: str, means: Tensor, pooled: Tensor, covs: Tensor | None = None) -> None:
        """Score a way: by LDA, and with the classes' covariances by fine-tuned classifiers."""
        scorer = self.scorer
        away = (means - self.true_means)[: PER_TASK * self.t].norm(dim=1).mean() / self.unit
        line = {"distance": round(float(away), 4)}
        for k in (0.03, 0.1, 0.3):
            line[f"lda {k}"] = scorer.accuracy(scorer.by(*scorer.lda(means, pooled, k)))
        if covs is not None:
            lda = scorer.by(*scorer.lda(means, pooled, 0.1))
            samplers = {"half": sampler(means, roots_of([0.5 * c + 0.5 * pooled for c in covs]))}
            samplers |= {f"rank {r}": spikes(means, covs, pooled, r) for r in self.ranks}
            for kind, sample in samplers.items():
                linear, heads = scorer.tuned(means, pooled, sample)
                both = standardised(linear) + standardised(heads)
                scores = {"linear": linear, "heads": heads, "linear + heads": both}
                scores |= {"all": both + standardised(lda)}
                for rule, found in scores.items():
                    line[f"{rule} {kind} 300"] = scorer.accuracy(found)
        self.found[name] = line
        print(self.t + 1, name, json.dumps(line), flush=True)

    def write(self, out: Path) -> None:
        """Compare all ways, and add a line to a file."""
        t, pooled = self.t, self.true_covs.mean(dim=0)
        self.show("true", self.true_means, pooled, self.true_covs)
        hops: dict[float, tuple[Tensor, Tensor, Tensor]] = {}
        for eps in (0.01, 0.001, 0.0001):
            hops[eps] = means, covs, more = self.hops(eps)
            full = eps == 0.001
            self.show(f"hops {eps}", means, covs.mean(dim=0), covs if full else None)
            self.show(f"hops {eps} + R", means, more.mean(dim=0), more if full else None)
            self.show(f"hops {eps}, true covariance", means, pooled)
        for name, covs in zip(("", " + R"), hops[0.001][1:], strict=True):
            way = f"true means, hops 0.001{name} covariance"
            self.show(way, self.true_means, covs.mean(dim=0))
        means, _, more = hops[0.001]
        half = more.mean(dim=0)
        for share in (0.3, 0.5, 0.7):
            covs_ = more if share == 0.5 else None
            self.show(f"recursive {share}, + R", self.recursive(share), half, covs_)
        for back in (1, 99):
            for eps in (0.01, 0.001, 0.0001):
                direct, error = self.direct(eps, back)
                hop, _, more = hops[max(eps, 0.001)]
                half, name = more.mean(dim=0), f"blend {back} {eps}, + R"
                self.show(f"direct {back} {eps}, + R", direct, half)
                blend = (direct + hop) / 2
                self.show(name, blend, half, more if eps == 0.001 else None)
                if back == 1 and eps == 0.001:
                    for a in (1, 3, 10):
                        self.show(f"{name} + {a} E", blend, half + a * error)
                        self.show(f"hops 0.001 + R + {a} E", hop, half + a * error)
        record = {"order": self.kept[t]["order"], "after": t + 1, "found": self.found}
        with out.open("a") as file:
            record |= {"settings": self.kept[t]["settings"]}
            record |= {"versions": versions(), "hardware": hardware(self.device)}
            file.write(json.dumps(record) + "\n")

    def hops(self, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """Map from task to task: means, covariances, and those with the regression's residuals."""
        means, covs = self.new(0, 0)
        more = covs
        for u in range(1, self.t + 1):
            w, b, residual = fit(self.flat(u - 1, u), self.flat(u, u), eps)
            rest = residual.view(PER_TASK, R, -1, self.scorer.d).transpose(0, 1)
            rest = concatenated(rest.reshape(R, -1, self.scorer.d))[0]
            rest = rest.T @ rest / len(rest)
            w = big(w)
            fresh_means, fresh = self.new(u, u)
            means = torch.cat([means @ w + b.repeat(R), fresh_means])
            covs = torch.cat([torch.stack([w.T @ c @ w for c in covs]), fresh])
            more = torch.cat([torch.stack([w.T @ c @ w + rest for c in more]), fresh])
        return means, covs, more

    def recursive(self, share: float, eps: float = 0.001) -> Tensor:
        """Draw means, at each task, to those mapped in one step from their own network."""
        means = own = self.new(0, 0)[0]
        for u in range(1, self.t + 1):
            w, b, _ = fit(self.flat(u - 1, u), self.flat(u, u), eps)
            means, parts = means @ big(w) + b.repeat(R), []
            for j in range(u):
                w, b, _ = fit(self.flat(j, u), self.flat(u, u), eps)
                parts.append(own[PER_TASK * j : PER_TASK * (j + 1)] @ big(w) + b.repeat(R))
            fresh = self.new(u, u)[0]
            means = torch.cat([(1 - share) * means + share * torch.cat(parts), fresh])
            own = torch.cat([own, fresh])
        return means

    def direct(self, eps: float, back: int) -> tuple[Tensor, Tensor]:
        """Map in one step, from so many networks up to a class's own: means, covariance of errors.

        The errors are those for a new class that the fit has left out.
        """
        t, d, means, errors = self.t, self.scorer.d, [], []
        now = self.flat(t, t)
        for j in range(t):
            which = range(max(0, j + 1 - back), j + 1)
            seen = torch.cat([self.flat(s, t) for s in which], dim=1)
            pull = F.pad(torch.eye(d), (0, 0, d * (len(which) - 1), 0))
            w, b, _ = fit(seen, now, eps, pull)
            for c in task(j):
                x = torch.cat([self.of(s, c).mean(dim=1) for s in which], dim=1)
                means.append((x @ w + b).flatten())
            size = len(seen) // PER_TASK
            for i, c in enumerate(task(t)) if back == 1 and eps == 0.001 else ():
                rest = torch.ones(len(seen), dtype=torch.bool, device=self.device)
                rest[i * size : (i + 1) * size] = False
                w, b, _ = fit(seen[rest], now[rest], eps, pull)
                error = self.of(t, c).mean(dim=1) - (self.of(j, c).mean(dim=1) @ w + b)
                errors.append(error.flatten())
        found = torch.cat([torch.stack(means), self.new(t, t)[0]])
        every = torch.stack(errors) if errors else found[:0]
        return found, every.T @ every / max(1, len(every))


def main() -> None:
    """Learn, or score."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("learn")
    one.add_argument("data", type=Path)
    one.add_argument("--order", type=int, default=0)
    one.add_argument("--tasks", type=int, default=7)
    one.add_argument("--after", type=int, nargs="*", default=[4, 7])
    one.add_argument("--small", action="store_true")
    one.add_argument("--by-each", action="store_true", help="held-out images by each network")
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
