import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lmrc.labels.theory import _gamma_ratio, dim_for, expected, likely, threshold_for

# dim, threshold, found by Algorithm 1, and N by the exact law, the normal one and Eq. 5 as printed,
# with γ = 10,000 and τ = 0.99.
TABLE = [
    (50, 0.15, 39, 49, 50, 2.4e14),
    (50, 0.20, 85, 94, 95, 1.0e24),
    (100, 0.10, 40, 45, 45, 1.0e24),
    (100, 0.15, 110, 112, 112, 2.1e51),
    (100, 0.20, 315, 339, 335, 2.8e89),
    (100, 0.25, 1285, 1312, 1234, 2.5e138),
    (200, 0.15, 440, 455, 451, 1.6e198),
    (200, 0.20, 3352, 3475, 3282, math.inf),
]


@pytest.mark.parametrize(("dim", "threshold", "_found", "beta", "normal", "paper"), TABLE)
def test_expected_to_the_last_vector(dim, threshold, _found, beta, normal, paper):
    numerator = math.log(1 - math.exp(math.log(0.01) / 10_000))  # Eq. 4, as printed
    a = (dim - 1) / 2
    for law, count, cdf in (
        ("beta", beta, stats.beta.cdf((threshold + 1) / 2, a, a)),
        ("normal", normal, stats.norm.cdf(threshold * dim**0.5)),
    ):
        assert expected(dim, threshold, law=law) == count == round(numerator / math.log(cdf) + 1)
    if paper < math.inf:
        assert expected(dim, threshold, law="paper") == pytest.approx(paper, rel=0.05)


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


@given(
    dim=st.integers(2, 3_000),
    threshold=st.floats(-0.98, 0.98),
    max_tries=st.integers(1, 10**9),
    confidence=st.floats(0.01, 0.999),
    law=st.sampled_from(["beta", "normal", "paper"]),
)
def test_expected_grows_with_threshold_and_tries(dim, threshold, max_tries, confidence, law):
    count = expected(dim, threshold, max_tries, confidence, law)
    assert count >= 1
    assert expected(dim, threshold + 0.01, max_tries, confidence, law) >= count
    assert expected(dim, threshold, 2 * max_tries, confidence, law) >= count
    if threshold > 0:
        assert expected(dim + 1, threshold, max_tries, confidence, law) >= count


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
    for dim, threshold, found, *_ in TABLE:
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


def test_advice_grows_with_the_count():
    counts = [1, 2, 5, 10, 100, 1_000, 10**6, 10**12]
    thresholds = [threshold_for(n, dim=300) for n in counts]
    dims = [dim_for(n, threshold=0.2) for n in counts]
    assert thresholds == sorted(thresholds)
    assert dims == sorted(dims)


def test_few_vectors_need_two_dimensions():
    assert [dim_for(n, threshold=0.9) for n in (1, 2, 3)] == [2, 2, 2]


@pytest.mark.parametrize("a", [99.9, 100.0, 150.0])
def test_the_expansion_goes_on_where_the_gamma_function_ends(a):
    exact = math.gamma(a + 0.5) / math.gamma(a)
    assert _gamma_ratio(a) == pytest.approx(exact, rel=3e-11)


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
