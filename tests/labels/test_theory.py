import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lmrc.labels.theory import dim_for, expected, likely, threshold_for

# dim, threshold, and what Algorithm 1 found with γ = 10,000.
TABLE = [
    (50, 0.15, 39),
    (50, 0.20, 85),
    (100, 0.10, 40),
    (100, 0.15, 110),
    (100, 0.20, 315),
    (100, 0.25, 1285),
    (200, 0.15, 440),
    (200, 0.20, 3352),
]


@pytest.mark.parametrize(
    ("law", "counts"),
    [
        ("beta", [49, 94, 45, 112, 339, 1312, 455, 3475]),
        ("normal", [50, 95, 45, 112, 335, 1234, 451, 3282]),
    ],
)
def test_expected_to_the_last_vector(law, counts):
    ours = [expected(dim, threshold, law=law) for dim, threshold, _ in TABLE]
    assert ours == counts
    cdf = {
        "beta": lambda d, t: stats.beta.cdf((t + 1) / 2, (d - 1) / 2, (d - 1) / 2),
        "normal": lambda d, t: stats.norm.cdf(t * d**0.5),
    }[law]
    for count, (dim, threshold, _) in zip(ours, TABLE, strict=True):
        numerator = math.log(1 - math.exp(math.log(0.01) / 10_000))  # Eq. 4, as printed
        assert count == round(numerator / math.log(cdf(dim, threshold)) + 1)


@pytest.mark.parametrize(
    ("dim", "threshold", "law", "log10"),
    [
        # log10 N, computed apart with numbers of 40 digits
        (200, 0.2, "paper", 350.322559393668),
        (1_000, 0.9, "beta", 363.001454838767),
        (10_000, 0.5, "beta", 627.614945866459),
        (10_000, 0.5, "paper", 5_428_686.00740354),
    ],
)
def test_expected_of_any_size(dim, threshold, law, log10):
    count = expected(dim, threshold, law=law)
    assert isinstance(count, int)
    assert math.log2(count) * math.log10(2) == pytest.approx(log10, rel=1e-13)


def test_expected_too_large_to_hold_is_refused():
    with pytest.raises(ValueError, match="digits: too large"):
        expected(10**6, 0.5, law="paper")


@pytest.mark.parametrize("law", ["beta", "normal"])
def test_negative_thresholds(law):
    counts = [
        expected(100, threshold, law=law) for threshold in (-0.99, -0.3, -0.1, -0.02, 0, 0.02)
    ]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[4] == 12  # P(A) = 1/2, whatever the law


@settings(derandomize=True, deadline=None)
@given(dim=st.integers(2, 2_000), threshold=st.floats(-0.5, 0.5))
def test_beta_law_is_scipys_where_that_has_digits(dim, threshold):
    a = (dim - 1) / 2
    log_probability = float(stats.beta.logcdf((1 + threshold) / 2, a, a))
    numerator = math.log(-math.expm1(math.log(0.01) / 10_000))
    if log_probability < -1e-6:
        assert expected(dim, threshold) == pytest.approx(
            numerator / log_probability + 1, abs=1, rel=1e-8
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 1}, "dim=1 is too small"),
        ({"dim": 10.5}, "dim=10.5 must be a whole number"),
        ({"threshold": 1.0}, "threshold=1.0"),
        ({"threshold": -1.0}, "threshold=-1.0"),
        ({"threshold": math.nan}, "threshold=nan"),
        ({"max_tries": 0}, "max_tries=0"),
        ({"confidence": 0.0}, "confidence=0.0"),
        ({"confidence": 1}, "confidence=1 "),
        ({"law": "cauchy"}, "law='cauchy' is not known: choose one of 'beta', 'normal', 'paper'"),
    ],
)
def test_expected_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        expected(**{"dim": 100, "threshold": 0.15} | arguments)


def test_likely_is_near_the_known_table_and_the_law_in_many_dimensions():
    for dim, threshold, found in TABLE:
        assert likely(dim, threshold) == pytest.approx(found, rel=0.12)
    assert likely(10**6, 0.01) == pytest.approx(expected(10**6, 0.01), rel=1e-4)
    assert likely(2, -0.99) == 2  # opposite each other


def test_advice_is_the_smallest_of_its_kind():
    threshold, dim = threshold_for(200, dim=100), dim_for(200, threshold=0.15)
    assert threshold is not None
    assert dim is not None
    assert threshold == round(threshold / 0.005) * 0.005
    # It allows for less than what is expected, but is no guess into the blue either.
    assert 220 < expected(100, threshold) < 320
    assert 220 < expected(dim, 0.15) < 320
    assert threshold_for(200, dim=100, above=threshold) == pytest.approx(threshold + 0.005)
    assert dim_for(200, threshold=0.15, above=dim) == dim + 1


def test_no_advice_where_there_is_none():
    assert threshold_for(10_000, dim=2) is None
    assert dim_for(100, threshold=0.0) is None
    assert dim_for(3, threshold=-0.4) is None
    assert dim_for(10**6, threshold=1e-5) is None


def test_advice_for_astronomic_counts_and_single_tries():
    # With one try each, all n²/2 pairs must do at the first go: the tail is to be about 1e-43.
    n, dim = 10**20, 100
    threshold = threshold_for(n, dim, max_tries=1)
    assert threshold is not None
    assert 1e-46 < stats.beta.sf((1 + threshold) / 2, (dim - 1) / 2, (dim - 1) / 2) < 1e-43
    assert threshold_for(n, dim=10, max_tries=1) is None
