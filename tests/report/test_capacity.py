"""The report of capacity."""

import pytest

from lmrc.report.capacity import CapacityRecord, build, number


@pytest.fixture
def counts():
    """Two seeds; with the higher threshold the search was stopped at the limit."""
    laws = {"beta": 2.0, "normal": 3.0, "paper": 51.4}
    made_with = {"versions": {}, "hardware": "abacus", "threads": 1, "seconds": 1.0}
    return [
        CapacityRecord(8, threshold, seed, found, {"limit": 99}, laws, **made_with)
        for threshold, both in ((0.2, (30, 32)), (0.3, (99, 99)))
        for seed, found in enumerate(both)
    ]


def test_found_and_expected(description, counts):
    contents = build(description, counts)
    assert "| 8 | 0.2 | 31 | 100 | 1,000 | 2.5e51 |" in contents.markdown
    assert "| 8 | 0.3 | ≥ 99 |" in contents.markdown
    assert contents.headline.startswith("In 8 dimensions at T = 0.2 Algorithm 1 finds 31 label")
    assert contents.tables["capacity"].splitlines()[2].startswith("8,0.3,99.0,0.0,True,2.0,")


def test_counts_of_any_size_can_be_read():
    assert [number(x) for x in (0.0, 3.1181, 51.3222, 545.85)] == [
        "1",
        "1,313",
        "2.1e51",
        "7.1e545",
    ]
