from lmrc.experiments import capacity
from lmrc.experiments.reproduce import main
from lmrc.report.capacity import CapacityRecord
from lmrc.report.records import read_lines

COUNTS = {"seeds": 2, "dims": [8, 12], "thresholds": [0.2, 0.6], "limit": 40, "max_tries": 100}


def test_capacity_shows_found_and_expected(tmp_path, rows):
    main("capacity", None, tmp_path, quiet=True, **COUNTS)
    records = read_lines(tmp_path, CapacityRecord)
    assert len(records) == 8
    shown = rows(tmp_path)
    for dim in (8, 12):
        found = [r.found for r in records if (r.dim, r.threshold) == (dim, 0.2)]
        row = next(row for row in shown if row[:2] == [str(dim), "0.2"])
        assert row[2].startswith(f"{sum(found) / 2:,.0f} ±")
        exact = capacity.expected(dim, 0.2, 100, 0.99, "beta")
        printed = capacity.expected(dim, 0.2, 100, 0.99, "paper")
        assert (row[3], row[5]) == (f"{exact:,}", f"{printed:,}")
        assert [str(dim), "0.6", "≥ 40"] in [row[:3] for row in shown]
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "That is an error" in text


def test_capacity_is_resumed(tmp_path, monkeypatch, capsys):
    main("capacity", None, tmp_path, quiet=True, **{**COUNTS, "seeds": 1})
    counted = []

    def count(dim, threshold, *_, random_state, **__):
        counted.append((dim, threshold, random_state))
        return 7

    monkeypatch.setattr(capacity, "measured", count)
    main("capacity", None, tmp_path, **{**COUNTS, "thresholds": [0.2]})
    assert counted == [(8, 0.2, 1), (12, 0.2, 1)]
    assert "[4/4] d = 12, T = 0.2, seed 1: 7 label vectors" in capsys.readouterr().err
