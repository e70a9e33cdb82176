"""Records of label vectors counted: one JSON line for each dimension, threshold and seed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmrc.report import schema
from lmrc.report.records import read_lines
from lmrc.report.shape import read_json


@dataclass(frozen=True)
class CapacityRecord:
    """How many label vectors Algorithm 1 found, and how many Eq. 4 expects.

    Attributes
    ----------
    dim, threshold : int, float
        d and T.
    seed : int
        Of Algorithm 1.
    found : int
        Label vectors found.
    settings : dict
        ``max_tries`` γ, ``confidence`` τ, and the ``limit`` at which the search ends.
    log10_expected : dict of str to float
        Decimal logarithm of Eq. 4's count under each law: "beta" (exact), "normal" (its limit,
        σ = 1/√d) and "paper" (as printed, σ = 1/d).
    seconds : float
        Wall-clock time of the search.
    versions, hardware, threads
        As in a `RunRecord`.
    """

    dim: int
    threshold: float
    seed: int
    found: int
    settings: dict[str, Any]
    log10_expected: dict[str, float]
    seconds: float
    versions: dict[str, str]
    hardware: str
    threads: int

    @property
    def is_lower_bound(self) -> bool:
        """Whether the search ended at the limit, with room for more."""
        return self.found >= int(self.settings["limit"])

    def to_json(self) -> str:
        """Return the record as one line of JSON, without its end of line."""
        return json.dumps(vars(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: bytes) -> CapacityRecord:
        """Return the record that `to_json` wrote."""
        whole = read_json(line)
        schema.capacity_record(whole)
        return cls(**whole)


def read_capacity_records(folder: Path) -> list[CapacityRecord]:
    """Read the folder's records, in the order in which they were made."""
    records = read_lines(folder, CapacityRecord.from_json)
    dims = len({record.dim for record in records})
    if dims > schema.MAX_METHODS:
        raise ValueError(
            f"{folder} holds records of {dims} dimensions, and {schema.MAX_METHODS} at most are "
            "shown: remove some."
        )
    return records
