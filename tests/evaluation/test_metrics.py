import numpy as np
import pytest

from lmrc.evaluation.metrics import (
    average_incremental_accuracy,
    backward_transfer,
    forgetting,
    task_aware_accuracy,
    task_id_accuracy,
    topk_accuracy,
)

# Task 0 rises before it falls: its best (0.95) is not what it was when learned (0.9).
MATRIX = [[0.9], [0.95, 0.8], [0.5, 0.7, 1.0], [0.6, 0.3, 0.8, 0.9]]
TASK_OF = {0: 0, 1: 0, 2: 1, 3: 1}


def test_no_tasks_have_no_accuracy():
    with pytest.raises(ValueError, match="at least one task"):
        average_incremental_accuracy([])


def test_forgetting_is_from_the_best():
    # (0.95 − 0.6 + 0.8 − 0.3 + 1.0 − 0.8) / 3
    assert forgetting(MATRIX) == pytest.approx((0.35 + 0.5 + 0.2) / 3)


def test_best_of_forgetting_is_sought_before_the_last_batch():
    # Were the last row among the candidates, getting better would give 0 instead of −0.25.
    assert forgetting([[0.5], [0.75, 1.0]]) == pytest.approx(-0.25)


@pytest.mark.parametrize("metric", [forgetting, backward_transfer])
def test_matrix_metrics_ignore_what_stands_above_the_diagonal(metric):
    full = np.full((4, 4), np.nan)
    for i, row in enumerate(MATRIX):
        full[i, : i + 1] = row
    assert metric(full) == pytest.approx(metric(MATRIX))


@pytest.mark.parametrize("metric", [forgetting, backward_transfer])
@pytest.mark.parametrize("matrix", [[], [[0.7]]])
def test_nothing_old_means_nothing_lost(metric, matrix):
    assert metric(matrix) == 0.0


@pytest.mark.parametrize("metric", [forgetting, backward_transfer])
def test_a_row_that_lacks_a_batch_is_named(metric):
    with pytest.raises(ValueError, match="row 1 of the matrix holds 1 accuracies"):
        metric([[1.0], [0.5]])


def test_topk_accuracy_wants_a_row_per_sample():
    with pytest.raises(ValueError, match=r"must be of shape \(n, k\), got \(2,\)"):
        topk_accuracy([1, 2], [1, 2])
    with pytest.raises(ValueError, match="2 labels but topk_labels 1 rows"):
        topk_accuracy([1, 2], [[1, 2]])


def test_task_id_accuracy_needs_the_batch_of_each_true_class():
    with pytest.raises(ValueError, match=r"labels that task_of does not, such as \[7\]"):
        task_id_accuracy([0, 7], [0, 0], TASK_OF)


def test_task_aware_accuracy_lets_only_the_true_batch_compete():
    scores = [
        [0.1, 0.0, 0.9, 0.8],  # true 0: 2 wins overall, 0 within its task
        [0.2, 0.1, 0.9, 0.8],  # true 1: 0 wins within its task
        [9.0, 9.0, -2.0, -1.0],  # true 3: wins within its task though negative
    ]
    assert task_aware_accuracy([0, 1, 3], scores, [0, 1, 2, 3], TASK_OF) == pytest.approx(2 / 3)


def test_task_aware_accuracy_reads_columns_by_their_label():
    scores = [[0.9, 0.8, 0.0, 0.1]]
    assert task_aware_accuracy([0], scores, [2, 3, 1, 0], TASK_OF) == 1.0
    assert task_aware_accuracy([0], scores, [2, 3, 0, 1], TASK_OF) == 0.0


def test_task_aware_accuracy_counts_a_batch_without_columns_as_wrong():
    assert task_aware_accuracy([2, 0], [[1.0, 0.0]] * 2, [0, 1], TASK_OF) == 0.5


def test_task_aware_accuracy_wants_a_column_per_class():
    with pytest.raises(ValueError, match=r"each of the 4 classes, got shape \(1, 2\)"):
        task_aware_accuracy([0], [[1.0, 0.0]], [0, 1, 2, 3], TASK_OF)


def test_no_samples_have_no_accuracy():
    with pytest.raises(ValueError, match="at least one sample"):
        task_id_accuracy([], [], TASK_OF)
