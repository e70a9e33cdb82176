"""What to keep of the features, and how to predict by it: many ways, read off one training.

    python results/search/readouts.py --data-dir D --out results/search/readouts-base \
        --set first_epochs=100 --set augment=strong --set objective=both

LMRC+ learns CIFAR-100 class batch after class batch, without a tenth of the training images, which
are scored on. Statistics do not change the training: after each class batch every variant carries
its own along, and each of its readouts is scored: a line of `readouts.jsonl` each, with the
accuracies by class batch.

All is computed on the device, with whole covariances: a study of what could be, not the product's
code. `--first MODEL` shares the first class batch among several trainings, `--later` changes
settings behind it.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lmrc
from lmrc import LMRCPlusClassifier
from lmrc.experiments.environment import hardware, versions
from lmrc.experiments.inputs import open_dataset, open_stream
from lmrc.experiments.options import learner_settings
from lmrc.experiments.recipe import load_recipe
from lmrc.nets.network import Network, Trunk, on_device
from lmrc.statistics import readout
from lmrc.training.batches import Batches
from lmrc.training.device import pick_device
from lmrc.training.rotations import all_turns

DEVICE = pick_device("auto")
WIDTHS = {"last": slice(256, 768), "two": slice(0, 768)}  # of layer3's and layer4's features
# Through which augmentation images are looked at, and the ridge. (Others were tried: readouts-2.)
VARIANTS = (("strong", 0.01), ("crop+flip", 0.01))
SHRINKAGES = (0.02, 0.1)
TUNING = (300, 2e-3)
DRAWS = 32


def main() -> None:
    """Learn, carry every variant along, score all readouts."""
    options = parse()
    recipe = load_recipe("incremental", "cifar100", validate=0.1, limit=options.limit)
    stream = open_stream(recipe, options.seed, open_dataset(recipe, options.data_dir))
    settings = recipe.settings_of("lmrc+") | {
        "epochs": options.epochs,
        "backbone": options.backbone,
    }
    settings |= {"statistics": "none", "predict_with": "wta", **(options.settings or {})}
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {"settings": settings, "later": options.later, "seed": options.seed}
    facts |= {"fixed_batch_norm": options.fix_batch_norm, "hardware": hardware(DEVICE)}
    (options.out / "readouts.jsonl").unlink(missing_ok=True)
    (options.out / "about.json").write_text(json.dumps(facts | versions(), indent=1) + "\n")
    model = LMRCPlusClassifier(**settings, random_state=options.seed)
    kept: dict[Any, Kept] = {}
    table: dict[Any, dict[int, float]] = {}
    for index in range(options.batches):
        batch = stream[index]
        before = copy.deepcopy(getattr(model, "network_", None))
        began = time.perf_counter()
        if index == 0 and options.first:
            model = shared_first(model, options, batch)
        else:
            model.partial_fit(batch.X_train, batch.y_train)
        if index == 0:
            model.set_params(**(options.later or {}))
            fix_batch_norm(options.fix_batch_norm)
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        old = None if before is None else on_device(DEVICE, before).eval().trunk
        network = on_device(DEVICE, model.network_).eval()
        x, y = as_images(batch.X_train), rows_of(model, batch.y_train).to(DEVICE)
        for look, ridge in VARIANTS:
            pair = [features_of(trunk, x, look) for trunk in (network.trunk, old) if trunk]
            for part, cut in WIDTHS.items():
                name, features = (look, ridge, part), [f[..., cut] for f in pair]
                kept[name] = kept.get(name, Kept()).carried(features, ridge).learnt(features[0], y)
        tx, ty = stream.test_up_to(index)
        seen = Seen(network, [len(h) for h in model.heads_], as_images(tx), rows_of(model, ty))
        full = index in (4, 9) or index == options.batches - 1
        named = dict(kept)
        if full:
            named |= true_statistics(network, model, stream, index, VARIANTS[0][0])
        for name, statistics in named.items():
            for way, accuracy in score(statistics, seen, name).items():
                table.setdefault((name, way), {})[index] = round(accuracy, 4)
        with (options.out / "readouts.jsonl").open("w") as file:
            for (name, way), found in table.items():
                line = {"variant": name, "way": way, "accuracies": found}
                file.write(json.dumps(line) + "\n")
        looked = time.perf_counter() - began
        print(f"class batch {index + 1}: {seconds:.0f} s, {looked:.0f} s of looks", flush=True)
    if options.dump:
        dump(options.out, kept[(*VARIANTS[0], "two")], seen)
    show(table)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batches", type=int, default=10, help="class batches")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--limit", type=int, help="images per class")
    parser.add_argument("--set", dest="settings", action="append")
    parser.add_argument("--later", action="append", help="settings from the second class batch on")
    parser.add_argument("--first", type=Path, help="model of the first class batch, made or read")
    parser.add_argument("--makes-first", action="store_true", help="make it; others wait for it")
    parser.add_argument("--fix-batch-norm", action="store_true", help="from the second batch on")
    parser.add_argument("--dump", action="store_true", help="write features and statistics")
    options = parser.parse_args()
    options.settings = learner_settings(options.settings)
    options.later = learner_settings(options.later)
    return options


def shared_first(
    model: LMRCPlusClassifier, options: argparse.Namespace, batch: Any
) -> LMRCPlusClassifier:
    """Learn the first class batch and save the model, or take what another run saved."""
    done = Path(f"{options.first}.done")
    if options.makes_first:
        model.partial_fit(batch.X_train, batch.y_train).save(options.first)
        done.touch()
    while not done.exists():
        time.sleep(0.5)
    settings = model.get_params()
    loaded: LMRCPlusClassifier = lmrc.load(options.first)
    return loaded.set_params(**settings)


def fix_batch_norm(fixed: bool) -> None:
    """Let BatchNorm go by its running statistics while training, and leave these as they are."""
    plain = Trunk.train

    def train(self: Trunk, mode: bool = True) -> Trunk:
        plain(self, mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    if fixed:
        Trunk.train = train  # type: ignore[method-assign]


def rows_of(model: LMRCPlusClassifier, y: Any) -> Tensor:
    """Return the index of each label in the order of arrival."""
    row = {label: i for i, label in enumerate(model.classes_.tolist())}
    return torch.tensor([row[label] for label in y.tolist()])


def as_images(x: Any) -> Tensor:
    """Return images as the network takes them."""
    return torch.as_tensor(x).permute(0, 3, 1, 2).contiguous()


def both_layers(trunk: Trunk, x: Tensor) -> Tensor:
    """Return the features of layer3 and layer4, averaged over space: (n, 768)."""
    maps: dict[str, Tensor] = {}
    backbone: Any = trunk.backbone
    hooks = [
        getattr(backbone, name).register_forward_hook(
            lambda _m, _i, out, name=name: maps.update({name: out})
        )
        for name in ("layer3", "layer4")
    ]
    with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16, enabled=x.is_cuda):
        trunk(x)
    for hook in hooks:
        hook.remove()
    return torch.cat([m.float().mean(dim=(2, 3)) for m in maps.values()], dim=1)


def features_of(trunk: Trunk, x: Tensor, look: str) -> Tensor:
    """Return features in four turns, each image looked at twice: (4, 2n, 768), row i and n + i."""
    generator = torch.Generator().manual_seed(0)
    batches = Batches(
        x,
        torch.zeros(len(x), dtype=torch.long),
        n_known=0,
        batch_size=500,
        augment="none" if look == "plain" else look,
        device=DEVICE,
    )
    parts = []
    for time_ in range(2):
        batches.draw(generator)
        batches.order.copy_(torch.arange(len(x)))
        for _, positions in batches.shares():
            images = batches.at(positions).x
            if look == "plain" and time_:
                images = images.flip(-1)
            parts.append(both_layers(trunk, all_turns(images)).unflatten(0, (4, -1)))
    return torch.cat(parts, dim=1)


class Kept:
    """Means (classes, 4, width) and covariances (classes, width, width), whole."""

    def __init__(self, means: Any = None, covariances: Any = None) -> None:
        self.means, self.covariances = means, covariances

    def carried(self, features: list[Tensor], ridge: float) -> Kept:
        """Carry them from old to new features, as `lmrc.statistics.drift` does."""
        if len(features) == 1:
            return self
        new, old = (f.flatten(0, 1).double() for f in features)
        middle, target = old.mean(0), new.mean(0)
        g = (old - middle).T @ (old - middle) / len(old)
        h = (old - middle).T @ (new - target) / len(old)
        eye = ridge * g.diagonal().mean() * torch.eye(len(g), dtype=g.dtype, device=g.device)
        w = torch.linalg.solve(g + eye, h + eye)
        means = ((self.means.double() - middle) @ w + target).float()
        w = w.float()
        return Kept(means, w.T @ self.covariances @ w)

    def learnt(self, features: Tensor, y: Tensor) -> Kept:
        """Add new classes; features (4, 2n, width) of images of classes y (n)."""
        y = y.repeat(2)
        means, covariances = [], []
        for row in y.unique().tolist():
            own = features[:, y == row]
            means.append(own.mean(dim=1))
            away = (own - means[-1][:, None]).flatten(0, 1)
            covariances.append(away.T @ away / len(away))
        m, c = torch.stack(means), torch.stack(covariances)
        if self.means is None:
            return Kept(m, c)
        return Kept(torch.cat([self.means, m]), torch.cat([self.covariances, c]))

    @property
    def shared(self) -> Tensor:
        """The mean covariance."""
        return torch.as_tensor(self.covariances.mean(dim=0))


def true_statistics(
    network: Network, model: LMRCPlusClassifier, stream: Any, index: int, look: str
) -> dict[Any, Kept]:
    """Return what would be known if old images were at hand: the bound of carrying."""
    found = {part: Kept() for part in WIDTHS}
    for earlier in range(index + 1):
        batch = stream[earlier]
        features = features_of(network.trunk, as_images(batch.X_train), look)
        y = rows_of(model, batch.y_train).to(DEVICE)
        for part, cut in WIDTHS.items():
            found[part] = found[part].learnt(features[..., cut], y)
    return {("true", 0.0, part): kept for part, kept in found.items()}


class Seen:
    """The network's features of the images that are scored on: (flips, 4, n, 768)."""

    def __init__(self, network: Network, sizes: list[int], x: Tensor, y: Tensor) -> None:
        self.network, self.sizes, self.y = network, sizes, y.to(DEVICE)
        self.tuned: dict[Any, Tensor] = {}
        self.features = features_of(network.trunk, x, "plain").unflatten(1, (2, -1)).transpose(0, 1)

    def accuracy(self, scores: Tensor) -> float:
        """Return the share of images whose class has the highest score."""
        return float((scores.argmax(1) == self.y).float().mean())


def shrunk(covariance: Tensor, share: float) -> Tensor:
    """Return a covariance, or several, shrunk to a sphere of its size."""
    size = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    eye = torch.eye(covariance.shape[-1], device=covariance.device)
    return (1 - share) * covariance + share * size * eye


def lda(kept: Kept, share: float) -> tuple[Tensor, Tensor]:
    """Return weight (4, classes, width) and bias (4, classes)."""
    means = kept.means.double().transpose(0, 1)
    middle = means.mean(dim=1, keepdim=True)
    away = means - middle
    inverse = torch.linalg.inv(shrunk(kept.shared, share).double())
    weight = away @ inverse
    bias = -(weight * (away / 2 + middle)).sum(dim=-1)
    return weight.float(), bias.float()


def made_up(kept: Kept, same: bool) -> Any:
    """Return what draws features: (4, classes · each, width) behind a ReLU."""
    covariances = kept.shared[None] if same else kept.covariances
    roots = torch.linalg.cholesky(shrunk(covariances.double(), 1e-3)).float()
    classes, each = len(kept.means), DRAWS // 4

    def draw() -> Tensor:
        noise = torch.randn(classes, 4 * each, roots.shape[-1], device=DEVICE)
        x = kept.means[:, :, None] + (noise @ roots.mT).view(classes, 4, each, -1)
        return x.transpose(0, 1).flatten(1, 2).relu()

    return draw


def tuned_heads(kept: Kept, seen: Seen, steps: int, rate: float, same: bool) -> Tensor:
    """Return scores of tuned heads, (flips, n, classes)."""
    head: Any = seen.network.head
    weight, bias = (p.detach().clone().requires_grad_() for p in (head.weight, head.bias))

    def logits(x: Tensor) -> Tensor:
        return readout._similarities(x, weight, bias, head.by_turn, seen.sizes)

    learn(logits, [weight, bias], made_up(kept, same), 16.0, steps, rate)
    with torch.no_grad():
        return torch.stack([logits(x[..., -512:]).mean(dim=0) for x in seen.features])


def tuned_discriminant(kept: Kept, x: Tensor, share: float, steps: int, rate: float) -> Tensor:
    """Return scores of a linear classifier that begins as the discriminant: (flips, n, classes)."""
    weight, bias = lda(kept, share)
    size = weight.norm(dim=-1).mean()  # learn at the scale of 1
    w, b = (weight / size).requires_grad_(), (bias / size).requires_grad_()
    temperature = size.log().clone().requires_grad_()

    def logits(x: Tensor) -> Tensor:
        return temperature.exp() * (x @ w.mT + b[:, None])

    learn(logits, [w, b, temperature], made_up(kept, False), 1.0, steps, rate)
    with torch.no_grad():
        return torch.stack([logits(f).mean(dim=0) for f in x])


def learn(
    logits: Any, parts: list[Tensor], draw: Any, scale: float, steps: int, rate: float
) -> None:
    """Minimise the cross-entropy of made-up features, by Adam."""
    torch.manual_seed(0)
    optimiser = torch.optim.Adam(parts, lr=rate)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        x = draw()
        y = torch.arange(x.shape[1] // (DRAWS // 4), device=DEVICE).repeat_interleave(DRAWS // 4)
        scores = scale * logits(x)
        loss = F.cross_entropy(scores.flatten(0, 1), y.repeat(4))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        falling.step()


def score(kept: Kept, seen: Seen, name: tuple[str, float, str]) -> dict[str, float]:
    """Score all readouts of one variant, by the image alone and with its mirror image."""
    x = seen.features[..., WIDTHS[name[-1]]]
    ways: dict[str, Tensor] = {}
    for share in SHRINKAGES:
        weight, bias = lda(kept, share)
        ways[f"lda {share}"] = torch.stack([(f @ weight.mT + bias[:, None]).mean(0) for f in x])
    ways["linear"] = tuned_discriminant(kept, x, 0.1, *TUNING)
    if name[-1] == "last":
        head: Any = seen.network.head
        wta = [readout.winner_takes_all(head, f, seen.sizes) for f in x]
        ways["wta"] = torch.stack(wta).detach()
        ways["tuned"] = tuned_heads(kept, seen, *TUNING, same=False)
        seen.tuned[name[:-1]] = ways["tuned"]  # "last" comes before "two"
    ways["both"] = standard(seen.tuned[name[:-1]]) + standard(ways["linear"])
    found = {}
    for way, scores in ways.items():
        found[way] = seen.accuracy(scores[0])
        found[f"{way} mirrored"] = seen.accuracy(scores.mean(0))
    return found


def standard(scores: Tensor) -> Tensor:
    """Return scores with mean 0 and deviation 1 for each image."""
    return readout.standardised(scores.flatten(0, 1)).view_as(scores)


def dump(out: Path, kept: Kept, seen: Seen) -> None:
    """Write what readouts need, to study others: features, statistics, heads."""
    values, directions = torch.linalg.eigh(kept.covariances.double())
    factors = (directions * values.clamp(min=0).sqrt()[:, None])[..., -64:]
    head: Any = seen.network.head
    parts = {
        "features": seen.features.half(),
        "y": seen.y,
        "means": kept.means,
        "factors": factors.half(),
        "variances": kept.covariances.diagonal(dim1=-2, dim2=-1),
        "shared": kept.shared,
        "weight": head.weight,
        "bias": head.bias,
        "label_vectors": head.label_vectors,
    }
    np.savez(out / "dump.npz", **{k: v.detach().cpu().numpy() for k, v in parts.items()})


def show(table: dict[Any, dict[int, float]]) -> None:
    """Print average and last accuracy of the best, by the last."""
    rows = sorted(table.items(), key=lambda item: -list(item[1].values())[-1])
    for (variant, way), found in rows[: int(os.environ.get("ROWS", "60"))]:
        average, last = 100 * sum(found.values()) / len(found), 100 * list(found.values())[-1]
        print(f"{variant!s:64} {way:24} {len(found):3} {average:6.1f} {last:6.1f}")


if __name__ == "__main__":
    main()
