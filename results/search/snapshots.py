r"""How much networks of earlier tasks add to the newest one, on held-out images.

    python results/search/compensation.py learn DATA --small --tasks 10 --after 6 10 --by-each \
        --out DIR
    python results/search/snapshots.py DIR --after 6 10 --out FILE

Each network has class statistics of its own features: those of classes learnt before are
compensated for drift as far as it, those of later ones are of the images.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from compensation import PER_TASK, Comparison, R, Scorer, big, fit, spikes
from torch import Tensor

from lmrc.experiments.environment import hardware, versions
from lmrc.statistics.prediction_rules import standardised

RIDGE, RANK, SHARE = 0.01, 12, 0.5  # as LMRC+ has them


class Snapshots(Comparison):
    """Networks of all tasks, after some of them."""

    def carried(self) -> list[tuple[Tensor, Tensor]]:
        """Return means and covariances as LMRC+ had them after each task."""
        means, covs = self.new(0, 0)
        own, found = means, [(means, covs)]
        for u in range(1, self.t + 1):
            w, b, _ = fit(self.flat(u - 1, u), self.flat(u, u), RIDGE)
            means, w = means @ big(w) + b.repeat(R), big(w)
            covs, parts = torch.stack([w.T @ c @ w for c in covs]), []
            for j in range(u):
                w, b, _ = fit(self.flat(j, u), self.flat(u, u), RIDGE)
                parts.append(own[PER_TASK * j : PER_TASK * (j + 1)] @ big(w) + b.repeat(R))
            fresh, more = self.new(u, u)
            means = torch.cat([torch.lerp(means, torch.cat(parts), SHARE), fresh])
            covs, own = torch.cat([covs, more]), torch.cat([own, fresh])
            found.append((means, covs))
        return found

    def compare(self) -> dict[str, float]:
        """Return accuracies of each network, and of sums of their scores."""
        found: dict[str, float] = {}
        votes: dict[int, dict[str, Tensor]] = {}
        for s, (means, covs) in enumerate(self.carried()):
            later = [self.new(s, u) for u in range(s + 1, self.t + 1)]
            means, covs = (torch.cat(p) for p in zip((means, covs), *later, strict=True))
            scorer, pooled = Scorer(self.kept[s], self.n, self.device), covs.mean(dim=0)
            lda = standardised(scorer.by(*scorer.lda(means, pooled, 0.1)))
            linear, heads = scorer.tuned(means, pooled, spikes(means, covs, pooled, RANK))
            votes[s] = {"lda": lda, "linear": standardised(linear)}
            found |= {f"network {s}, {rule}": scorer.accuracy(v) for rule, v in votes[s].items()}
            newest = standardised(standardised(heads) + votes[s]["linear"])
        del votes[self.t]
        found["newest"] = self.scorer.accuracy(newest)
        ways = {"all": list(votes), "first": [0], "middle": [self.t // 2], "last": [self.t - 1]}
        ways["first, middle"] = [0, self.t // 2]
        for rule in ("linear", "lda"):
            for way, which in ways.items():
                for weight in (0.1, 0.2, 0.3, 0.5, 1):
                    scores = newest + weight * torch.stack([votes[s][rule] for s in which]).sum(0)
                    found[f"{way}, {rule}, {weight}"] = self.scorer.accuracy(scores)
        return found


def main() -> None:
    """Compare them, and add lines to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dir", type=Path)
    parser.add_argument("--after", type=int, nargs="*", default=[6, 10])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_grad_enabled(False)
    for after in given.after:
        lab = Snapshots(given.dir, after, [RANK])
        kept = lab.kept[-1]
        record = {"order": kept["order"], "after": after, "found": lab.compare()}
        record |= {"settings": kept["settings"]}
        record |= {"versions": versions(), "hardware": hardware(lab.device)}
        print(json.dumps(record["found"]), flush=True)
        with given.out.open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
