import numpy as np
import pytest

from lmrc.evaluation.trust import (
    coverage_curve,
    expected_calibration_error,
    reliability,
    separation,
)


def test_predictions_as_often_correct_as_they_say_have_no_calibration_error():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.1, 1, 100_000)
    correct = rng.uniform(size=len(confidence)) < confidence
    assert expected_calibration_error(confidence, correct) < 0.01
    assert expected_calibration_error(confidence**0.5, correct) > 0.1


def test_the_calibration_error_weighs_bins_by_their_predictions():
    # 30 of confidence 0.8, half of them correct; 10 of confidence 0.3, all correct.
    confidence, correct = [0.8] * 30 + [0.3] * 10, [True, False] * 15 + [True] * 10
    assert expected_calibration_error(confidence, correct) == pytest.approx(0.75 * 0.3 + 0.25 * 0.7)
    assert [(b.n, b.accuracy) for b in reliability(confidence, correct)] == [(10, 1.0), (30, 0.5)]


def test_confidences_of_0_and_1_are_in_bins():
    assert sum(b.n for b in reliability([0.0, 1.0, 1 / 15], [True, True, False])) == 3


def test_coverage_ends_at_the_accuracy_of_all_predictions():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(size=500)
    correct = rng.uniform(size=500) < confidence
    curve = coverage_curve(confidence, correct)
    assert curve[-1] == (1.0, correct.mean())
    assert curve[49][1] > correct.mean()  # the most confident tenth
    assert coverage_curve([0.5] * 4, [True, False, True, False]) == [(1.0, 0.5)]  # order is luck


@pytest.mark.parametrize(
    ("known", "unknown", "auroc", "fpr95"),
    [
        ([1, 2, 3], [4, 5], 1.0, 0.0),
        ([4, 5], [1, 2, 3], 0.0, 1.0),
        ([1, 1], [1, 1, 1], 0.5, 1.0),  # equal scores are told apart by luck alone
        (range(1, 101), [94.5, 95.5, 96.5, 200], (94 + 95 + 96 + 100) / 400, 0.25),
    ],
)
def test_separation(known, unknown, auroc, fpr95):
    found = separation(known, unknown)
    assert found == (pytest.approx(auroc), fpr95)


def test_bad_input_gets_a_clear_line():
    with pytest.raises(ValueError, match="at least one known and one unknown image"):
        separation([], [1.0])
    with pytest.raises(ValueError, match="at least one prediction"):
        reliability([], [])
    with pytest.raises(ValueError, match=r"got \(2,\) and \(3,\)"):
        reliability([0.1, 0.2], [True, False, True])
