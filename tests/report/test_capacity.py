"""The report of capacity."""

from lmrc.report.capacity import number


def test_counts_of_any_size_can_be_read():
    assert [number(x) for x in (0.0, 3.1181, 51.3222, 545.85)] == [
        "1",
        "1,313",
        "2.1e51",
        "7.1e545",
    ]
