"""``lmrc reproduce capacity``: how many label vectors fit, found and expected (Figs. 4a and 5)."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from lmrc.experiments.environment import hardware, versions
from lmrc.experiments.recipe import read_recipe
from lmrc.labels.capacity import LAWS, expected, measured
from lmrc.report.capacity import CapacityRecord
from lmrc.report.records import append_record, read_lines


@dataclass(frozen=True)
class CapacityRecipe:
    """The counts to make: every dimension with every threshold and every seed."""

    #: For the report.
    title: str
    question: str
    dims: list[int]  # dimensions d of a label vector
    thresholds: list[float]  # highest cosines T
    seeds: int  # seeds 0, 1, …
    max_tries: int  # tries γ for one vector
    confidence: float  # τ of Eq. 4.
    limit: int  # the search stops at this many label vectors

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that a record must share with the recipe."""
        whole = asdict(self)
        return {name: whole[name] for name in ("max_tries", "confidence", "limit")}

    @property
    def counts(self) -> list[tuple[int, float, int]]:
        """(d, T, seed) of all counts: all with the first seed, then all with the next."""
        return [(d, t, s) for s in range(self.seeds) for d in self.dims for t in self.thresholds]


def load_capacity_recipe(**changes: Any) -> CapacityRecipe:
    """Read the recipe; changes that are not None replace its values."""
    given = {name: value for name, value in changes.items() if value is not None}
    return CapacityRecipe(**{**read_recipe("capacity"), **given})


def counted(folder: Path) -> set[tuple[int, float, int]]:
    """Return (d, T, seed) of the counts in a folder's records."""
    return {(r.dim, r.threshold, r.seed) for r in read_lines(folder, CapacityRecord)}


def count(recipe: CapacityRecipe, folder: Path) -> Iterator[CapacityRecord]:
    """Make the counts that are not in the folder's records; add and yield each."""
    done = counted(folder)
    made_with: dict[str, Any] = {
        "versions": versions(),
        "hardware": hardware(),
        "threads": torch.get_num_threads(),
    }
    for dim, threshold, seed in recipe.counts:
        if (dim, threshold, seed) in done:
            continue
        started = perf_counter()
        found = measured(dim, threshold, recipe.max_tries, limit=recipe.limit, random_state=seed)
        record = CapacityRecord(
            dim=dim,
            threshold=threshold,
            seed=seed,
            found=found,
            settings=recipe.settings,
            # Logarithms: the printed law's counts have hundreds of digits.
            log10_expected={
                law: math.log10(expected(dim, threshold, recipe.max_tries, recipe.confidence, law))
                for law in LAWS
            },
            seconds=perf_counter() - started,
            **made_with,
        )
        append_record(folder, record)
        yield record
