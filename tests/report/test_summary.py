import csv
from statistics import fmean, stdev

import pytest

from lmrc.report.html import over_seeds
from lmrc.report.summary import (
    Spread,
    csv_table,
    style_indices,
    summarize_methods,
)


def test_the_figures_of_a_method_are_means_and_deviations_over_its_seeds(records):
    steady, _ = summarize_methods(records)
    after_all = [(0.5 + 0.75 + 1.0) / 3, (0.75 + 1.0 + 0.5) / 3]
    averages = [fmean([1.0, 0.875, after_all[0]]), fmean([1.0, 1.0, after_all[1]])]
    assert steady.classes_seen == [1, 2, 3]
    assert steady.accuracy[1] == Spread(fmean([0.875, 1.0]), stdev([0.875, 1.0]))
    assert steady.average == pytest.approx((fmean(averages), stdev(averages)))
    assert steady.final == pytest.approx((fmean(after_all), stdev(after_all)))
    assert steady.old == pytest.approx((fmean([0.625, 0.875]), stdev([0.625, 0.875])))
    assert steady.per_class["cat"] == pytest.approx((0.625, stdev([0.5, 0.75])))
    assert steady.task_aware_accuracy is None
    # Seed 0: 1.0 → 0.5 and 1.0 → 0.75. Seed 1: 1.0 → 0.75 and 1.0 → 1.0.
    assert steady.forgetting == pytest.approx((0.25, stdev([0.375, 0.125])))


def test_confusions_are_summed_over_seeds(records):
    steady, _ = summarize_methods(records)
    assert steady.task_confusion == [[2 + 3, 0, 2 + 1], [0, 3 + 4, 1 + 0], [0, 0, 8]]


def test_an_unfinished_run_counts_as_far_as_it_got(records):
    (steady,) = summarize_methods(records[:5])  # the second seed lacks its last task
    assert steady.accuracy[1].deviation is not None
    assert steady.accuracy[2].deviation is None
    assert steady.average == Spread(fmean([1.0, 0.875, 0.75]), None)
    assert over_seeds([steady]) == "one seed"
    (row,) = csv.DictReader(csv_table([steady]).splitlines())
    assert (row["seeds"], row["average_incremental_accuracy_sd"]) == ("1", "")
    (begun,) = summarize_methods(records[:1])
    assert begun.average is None
    assert begun.per_class == {}
    assert begun.task_confusion == []


def test_the_csv_table_holds_the_numbers_unrounded(records):
    summaries = summarize_methods(records)
    rows = list(csv.DictReader(csv_table(summaries).splitlines()))
    assert [row["method"] for row in rows] == [summary.method for summary in summaries]
    for row, summary in zip(rows, summaries, strict=True):
        assert float(row["after_task_2"]) == summary.accuracy[1].mean
        assert float(row["average_incremental_accuracy"]) == summary.average.mean
        assert float(row["average_incremental_accuracy_sd"]) == summary.average.deviation
        assert row["task_aware_accuracy"] == ""
        assert row["seeds"] == "2"


def test_the_csv_table_names_top_5_columns(records):
    rows = csv.DictReader(csv_table(summarize_methods(records, "top5")).splitlines())
    for row in rows:
        assert {row["final_top5_accuracy"], row["top5_after_task_2"]} == {"1.0"}
        assert "final_accuracy" not in row
        assert float(row["new_accuracy"]) < 1


def test_exemplars_do_not_change_a_methods_colour_unless_both_are_shown():
    assert style_indices(["LM + 20 per class"])["LM + 20 per class"] == style_indices(["LM"])["LM"]
    both = style_indices(["LM + 20 per class", "LM"])
    assert both["LM"] == style_indices(["LM"])["LM"] != both["LM + 20 per class"]
