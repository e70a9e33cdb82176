import numpy as np
import pytest

from lmrc.labels.capacity import expected, likely, measured

# Found by Algorithm 1 with γ = 10,000.
FOUND = [
    (50, 0.15, 39),
    (50, 0.20, 85),
    (100, 0.10, 40),
    (100, 0.15, 110),
    (100, 0.20, 315),
    (200, 0.15, 440),
]


@pytest.mark.parametrize(("dim", "threshold", "found"), FOUND)
def test_measured_is_near_the_known_table(dim, threshold, found):
    counts = [measured(dim, threshold, random_state=seed) for seed in range(3)]
    assert np.mean(counts) == pytest.approx(found, rel=0.15)
    assert max(counts) <= 1.15 * expected(dim, threshold)


@pytest.mark.parametrize("dim", [2, 3, 4, 5, 8, 20, 50])
@pytest.mark.parametrize("threshold", [0.0, 0.15, 0.3])
def test_likely_is_near_what_is_found_in_few_dimensions_too(dim, threshold):
    """Eq. 4 has 14 for the plane, into which three or four go."""
    found = np.mean([measured(dim, threshold, random_state=seed) for seed in range(3)])
    assert likely(dim, threshold) == pytest.approx(found, rel=0.15, abs=2)


def test_measured_stops_at_the_limit():
    assert measured(100, 0.5, limit=300, random_state=0) == 300
    assert measured(10, 0.1, max_tries=50, limit=300, random_state=0) < 20


def test_measured_grows_with_the_tries():
    few, many = (
        np.mean([measured(20, 0.2, max_tries, random_state=seed) for seed in range(10)])
        for max_tries in (10, 1_000)
    )
    assert many > 1.3 * few
