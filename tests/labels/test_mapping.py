import copy
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from threadpoolctl import threadpool_info

from lmrc.labels import search
from lmrc.labels.errors import CapacityError, CapacityWarning
from lmrc.labels.mapping import LabelMapping


def algorithm_1(candidates, threshold, max_tries, n=None):
    """Label Mapping as printed, one candidate after another."""
    kept, tries = [], 0
    for candidate in candidates:
        if len(kept) == n or tries > max_tries:
            break
        wide = candidate.astype(np.float64)
        unit = (wide / np.linalg.norm(wide)).astype(np.float32).astype(np.float64)
        if all(unit @ other <= threshold for other in kept):
            kept.append(unit)
            tries = 0
        else:
            tries += 1
    assert len(kept) == n or tries > max_tries, "there were not enough candidates to end here"
    return np.array(kept)


class Scripted(LabelMapping):
    """Takes its candidates from a list, and then the last one for ever."""

    def __init__(self, script, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.script, self.sampled = np.asarray(script, dtype=np.float32), 0

    def _sample(self, count, stream):
        positions = np.arange(self.sampled, self.sampled + count)
        self.sampled += count
        return self.script[np.minimum(positions, len(self.script) - 1)]


def cosines(vectors):
    wide = vectors.astype(np.float64)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    return (wide @ wide.T)[~np.eye(len(wide), dtype=bool)]


def at(*degrees):
    angles = np.radians(degrees)
    return np.column_stack([np.cos(angles), np.sin(angles)])


# --- Algorithm 1 -------------------------------------------------------------------


@settings(max_examples=80)
@given(
    seed=st.integers(0, 2**32 - 1),
    dim=st.integers(2, 12),
    threshold=st.floats(-0.3, 0.7),
    max_tries=st.integers(1, 60),
    n=st.none() | st.integers(1, 30),
)
def test_same_vectors_as_the_plain_loop_from_the_same_candidates(
    seed, dim, threshold, max_tries, n
):
    script = np.random.default_rng(seed).standard_normal((8_000, dim), dtype=np.float32)
    ours = Scripted(script, dim, threshold, max_tries)
    full = not ours._fill(n)
    expected = algorithm_1(script, threshold, max_tries, n)
    np.testing.assert_array_equal(ours.vectors, expected)
    assert full == (n is None or len(expected) < n)


@pytest.mark.parametrize("seed", range(20))
def test_same_vectors_as_the_plain_loop_when_threads_sample(seed, monkeypatch):
    monkeypatch.setattr(search, "MIN_THREADED", 1)
    sampled = {}

    class Recorded(LabelMapping):
        def _sample(self, count, stream):
            chunk = super()._sample(count, stream)
            sampled.setdefault(id(stream), []).append(chunk)
            return chunk

    ours = Recorded(dim=10, threshold=0.2, max_tries=40, random_state=seed)
    ours._fill(None)
    shares = [sampled[id(stream)] for stream in ours._streams]
    assert len(shares) > 1
    candidates = np.concatenate([share for chunk in zip(*shares, strict=True) for share in chunk])
    assert len(np.unique(candidates)) > 0.99 * candidates.size  # each stream is another one
    np.testing.assert_array_equal(ours.vectors, algorithm_1(candidates, 0.2, 40))


def test_threads_leave_blas_as_it_was(monkeypatch):
    monkeypatch.setattr(search, "MIN_THREADED", 1)
    before = threadpool_info()
    LabelMapping(random_state=0).extend(30)
    assert threadpool_info() == before


@pytest.mark.parametrize("max_tries", [1, 3, 15, 16, 17, 40])
def test_gives_up_after_more_than_max_tries_failures_in_a_row(max_tries):
    good, bad = at(90), at(1)
    enough = np.concatenate([np.repeat(bad, max_tries, axis=0), good, bad])
    Scripted(enough, 2, 0.5, max_tries, vectors=at(0)).extend(1)
    too_many = np.concatenate([np.repeat(bad, max_tries + 1, axis=0), good, bad])
    with pytest.raises(CapacityError):
        Scripted(too_many, 2, 0.5, max_tries, vectors=at(0)).extend(1)


@pytest.mark.parametrize("max_tries", [3, 20, 40])
def test_counts_failures_anew_after_each_success(max_tries):
    bad = np.repeat(at(1), max_tries, axis=0)
    script = np.concatenate([bad, at(90), bad, at(180), bad, at(270), bad, bad])
    mapping = Scripted(script, 2, 0.5, max_tries, vectors=at(0))
    np.testing.assert_allclose(mapping.extend(3), at(90, 180, 270), atol=1e-7)


def test_candidates_of_one_chunk_are_compared_with_each_other():
    mapping = Scripted(at(0, 5, 10, 100, 105, 200, 205), 2, 0.5, max_tries=100)
    np.testing.assert_allclose(mapping.extend(3), at(0, 100, 200), atol=1e-7)


@pytest.mark.parametrize("below", [0, 1e-9], ids=["at", "just below"])
@pytest.mark.parametrize("first", [0.15, -0.2, 0.6])
@pytest.mark.parametrize("same_chunk", [False, True])
def test_threshold_holds_to_the_last_bit(same_chunk, first, below):
    # Candidates whose cosine with (1, 0, 0) is a float32 number next to the threshold. As stored
    # they are not quite of unit length, so inner product and cosine may decide differently.
    threshold = float(np.float32(first)) - abs(first) * below
    rng = np.random.default_rng(0)
    outcomes = set()
    for ulps in np.repeat([-2, -1, 0, 1, 2], 20):
        cosine = float(np.float32(first) + ulps * np.spacing(np.float32(first)))
        angle = rng.uniform(0, 2 * np.pi)
        rest = np.sqrt(1 - cosine**2)
        candidate = [cosine, rest * np.cos(angle), rest * np.sin(angle)]
        label, opposite = [1, 0, 0], [-1, 0, 0]
        if same_chunk:
            mapping = Scripted([label, candidate, opposite], 3, threshold)
            found = mapping.extend(2)[1]
        else:
            mapping = Scripted([candidate, opposite], 3, threshold, vectors=[label])
            found = mapping.extend(1)[0]
        accepted = bool(found[0] != -1)
        wide = np.array(candidate, dtype=np.float32).astype(np.float64)
        unit = (wide / np.linalg.norm(wide)).astype(np.float32).astype(np.float64)
        product, exact = unit[0], unit[0] / np.linalg.norm(unit)
        assert accepted == (max(product, exact) <= threshold)
        outcomes.add((bool(product <= threshold), bool(exact <= threshold)))
    assert len(outcomes) == 3  # clear cases, and one in which the two differ


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), dim=st.integers(5, 120), threshold=st.floats(0.1, 0.9))
def test_unit_vectors_under_the_threshold_in_float64(seed, dim, threshold):
    mapping = LabelMapping(dim, threshold, max_tries=50, random_state=seed)
    mapping._fill(150)
    assert mapping.vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(mapping.vectors, axis=1), 1, atol=1e-6)
    assert (cosines(mapping.vectors) <= threshold).all()


def test_a_full_large_mapping_keeps_the_threshold():
    mapping = LabelMapping(200, 0.15, random_state=3)
    mapping._fill(None)
    assert len(mapping) > 380
    wide = mapping.vectors.astype(np.float64)
    assert cosines(mapping.vectors).max() <= 0.15
    assert (wide @ wide.T)[~np.eye(len(wide), dtype=bool)].max() <= 0.15


def test_directions_are_uniform():
    dim = 5
    vectors = LabelMapping(dim, 0.9999, random_state=0).extend(2_000).astype(np.float64)
    law = stats.beta((dim - 1) / 2, (dim - 1) / 2).cdf  # of (t + 1)/2, Lemma 2
    for direction in [*np.eye(dim), np.ones(dim) / dim**0.5]:
        assert stats.kstest((vectors @ direction + 1) / 2, law).pvalue > 0.01


# --- growing ----------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    counts=st.lists(st.integers(0, 40), max_size=8),
    seed=st.integers(0, 2**32 - 1),
)
def test_earlier_vectors_never_move(counts, seed):
    mapping = LabelMapping(60, 0.4, random_state=seed)
    given_out, views = [], []
    for count in counts:
        new = mapping.extend(count)
        assert new.shape == (count, 60)
        assert new.dtype == np.float32
        given_out.append(new)
        views.append((len(mapping), mapping.vectors))
    assert len(mapping) == sum(counts)
    everything = np.concatenate([np.empty((0, 60)), *given_out])
    np.testing.assert_array_equal(mapping.vectors, everything)
    for size, view in views:
        np.testing.assert_array_equal(view, everything[:size])


def test_vectors_are_read_only_and_what_extend_returns_belongs_to_the_caller():
    mapping = LabelMapping(random_state=0)
    new = mapping.extend(4)
    with pytest.raises(ValueError, match="read-only"):
        mapping.vectors[0, 0] = 1
    new[:] = 0
    assert (np.linalg.norm(mapping.vectors, axis=1) > 0.99).all()


def test_a_few_vectors_cost_a_few_candidates():
    class Counted(LabelMapping):
        sampled = 0

        def _sample(self, count, stream):
            self.sampled += count
            return super()._sample(count, stream)

    mapping = Counted(random_state=0)
    mapping.extend(10)
    assert mapping.sampled < 100


def test_no_vectors():
    mapping = LabelMapping(dim=7)
    assert mapping.extend(0).shape == (0, 7)
    assert mapping.vectors.shape == (0, 7)


@pytest.mark.parametrize(
    ("n", "options", "message"),
    [
        (-1, {}, "n=-1 is too small"),
        (2.5, {}, "n=2.5 must be a whole"),
        (3, {"on_full": "ignore"}, "'ignore' is not known: choose 'raise'"),
    ],
)
def test_extend_refuses(n, options, message):
    with pytest.raises(ValueError, match=message):
        LabelMapping().extend(n, **options)


# --- a full mapping ---------------------------------------------------------------------------


def test_error_says_what_was_found_and_adds_nothing():
    mapping = LabelMapping(dim=50, threshold=0.15, random_state=0)
    before = mapping.extend(20)
    with pytest.raises(CapacityError) as caught:
        mapping.extend(80)
    error = caught.value
    assert 5 < error.found < 30
    assert (error.requested, error.size, error.dim, error.threshold) == (80, 20, 50, 0.15)
    assert (error.max_tries, error.holds, error.advised_dim) == (10_000, 43, None)
    assert error.advised_threshold > 0.15
    for part in [
        f"found only {error.found} of the 80",
        "the 20 it has",
        "nothing was added",
        "dim=50, threshold=0.15",
        "holds about 43",
        f"To almost surely hold 100, raise the threshold to {error.advised_threshold:g}",
    ]:
        assert part in str(error)
    np.testing.assert_array_equal(mapping.vectors, before)
    assert len(mapping.extend(5)) == 5  # it still works


def test_error_of_an_empty_mapping_advises_a_dimension_too():
    with pytest.raises(CapacityError, match=r"raise the threshold to 0\.\d+ or .* dim=\d+") as info:
        LabelMapping(dim=20, threshold=0.1, random_state=0).extend(100)
    assert info.value.advised_dim > 20


def test_error_where_no_threshold_would_do():
    with pytest.raises(CapacityError, match="request fewer") as info:
        LabelMapping(dim=2, threshold=0, max_tries=50, random_state=0).extend(1_000)
    assert info.value.advised_threshold is None
    assert info.value.advised_dim is None


@pytest.mark.parametrize("duplicate", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_error_survives_pickling_and_copying(duplicate):
    error = CapacityError(found=9, requested=80, size=20, dim=50, threshold=0.15, max_tries=10_000)
    twin = duplicate(error)
    assert type(twin) is CapacityError
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)


@pytest.mark.parametrize(
    ("dim", "threshold", "max_tries", "n"),
    [
        (100, 0.15, 10_000, 200),
        (100, 0.15, 500, 100),
        (30, 0.1, 10_000, 60),
        (10, 0.15, 2_000, 40),
        (20, 0.2, 10, 50),
        (3, 0.1, 1_000, 15),
        (2, 0.1, 1_000, 8),
        (20, -0.1, 1_000, 10),
    ],
)
def test_advice_works(dim, threshold, max_tries, n):
    error = CapacityError(0, n, 0, dim, threshold, max_tries)
    started = LabelMapping(dim, threshold, max_tries, random_state=99)
    started._fill(None)
    assert len(started) < n
    for seed in range(10):
        LabelMapping(dim, error.advised_threshold, max_tries, seed).extend(n)
        if error.advised_dim is not None:
            LabelMapping(error.advised_dim, threshold, max_tries, seed).extend(n)
    size = len(started)  # a mapping that is full already can go on as advised
    later = CapacityError(0, n - size, size, dim, threshold, max_tries)
    started.threshold = later.advised_threshold
    started.extend(n - size)


def test_advice_always_goes_beyond_what_just_failed():
    error = CapacityError(found=4, requested=5, size=0, dim=100, threshold=0.15, max_tries=10_000)
    assert error.advised_threshold == 0.155
    assert error.advised_dim == 101


def test_relax_raises_the_threshold_and_warns_once():
    mapping = LabelMapping(dim=30, threshold=0.1, max_tries=300, random_state=0)
    before = mapping.extend(8)
    with pytest.warns(CapacityWarning) as caught:
        new = mapping.extend(40, on_full="relax")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert 0.15 < mapping.threshold < 0.4
    assert str(round(mapping.threshold * 200) / 200) == str(mapping.threshold)  # no 0.30000000004
    assert f"from 0.1 to {mapping.threshold:g}" in str(caught[0].message)
    np.testing.assert_array_equal(mapping.vectors, np.concatenate([before, new]))
    assert 0.1 < cosines(mapping.vectors).max() <= mapping.threshold
    mapping.extend(0, on_full="relax")  # nothing to do, nothing to warn of


def test_relax_raises_the_threshold_no_further_than_needed():
    # 90° apart there is room for four in the plane; a fifth, at 84.6° from its neighbours, needs
    # cos 84.6° = 0.094: so 0.095, from 0 in steps of 0.005.
    mapping = Scripted(at(84.6), 2, 0.0, max_tries=5, vectors=at(0, 169.2, 260))
    with pytest.warns(CapacityWarning, match=r"from 0 to 0\.095 "):
        mapping.extend(1, on_full="relax")
    assert mapping.threshold == 0.095


def test_relax_gives_up_below_one_and_adds_nothing():
    mapping = LabelMapping(dim=2, threshold=0.3, max_tries=20, random_state=0)
    before = mapping.extend(2)
    with pytest.raises(CapacityError) as caught:
        mapping.extend(500, on_full="relax")
    assert caught.value.threshold == 0.995
    assert mapping.threshold == 0.3
    np.testing.assert_array_equal(mapping.vectors, before)


def test_without_need_relax_neither_warns_nor_relaxes():
    mapping = LabelMapping(random_state=0)
    mapping.extend(20, on_full="relax")
    assert mapping.threshold == 0.15


def test_a_warning_made_an_error_adds_nothing():
    mapping = LabelMapping(dim=10, threshold=0.1, max_tries=50, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CapacityWarning):
            mapping.extend(30, on_full="relax")
    assert (len(mapping), mapping.threshold) == (0, 0.1)


def test_an_interrupt_adds_nothing():
    class Interrupted(LabelMapping):
        def _sample(self, count, stream):
            if len(self) > 5:
                raise KeyboardInterrupt
            return super()._sample(count, stream)

    mapping = Interrupted(random_state=0)
    with pytest.raises(KeyboardInterrupt):
        mapping.extend(60)
    assert len(mapping) == 0


# --- construction -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        lambda: 7,
        lambda: np.random.SeedSequence(7),
        lambda: np.random.default_rng(7),
        lambda: np.random.RandomState(7),
        lambda: np.random.PCG64(7),
        lambda: [1, 2, 3],
    ],
)
def test_the_same_random_state_gives_the_same_vectors(state):
    first, second = (LabelMapping(random_state=state()).extend(30) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_other_random_states_give_other_vectors():
    rng, old = np.random.default_rng(0), np.random.RandomState(0)
    states = [None, None, 0, 1, rng, rng, old, old]
    firsts = [LabelMapping(random_state=state).extend(1)[0, 0] for state in states]
    # A generator of seed 0 and the seed 0 itself are the same thing.
    assert len(set(firsts)) == len(firsts) - 1
    assert firsts[2] == firsts[4]


def test_starts_from_a_copy_of_given_vectors():
    old = LabelMapping(random_state=0).extend(20)
    mapping = LabelMapping(random_state=1, vectors=old)
    kept = old.copy()
    old[:] = 0
    mapping.extend(20)
    np.testing.assert_array_equal(mapping.vectors[:20], kept)
    assert cosines(mapping.vectors).max() <= 0.15
    as_lists = LabelMapping(dim=2, vectors=[[1.0, 0.0], [0.0, 1.0]])
    assert as_lists.vectors.dtype == np.float32


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.eye(3), r"shape \(3, 3\): it must be \(n, 4\)"),
        (np.ones(4) / 2, r"shape \(4,\)"),
        (np.diag([1, 1, 2, 1]), r"vectors\[2\] has norm 2 instead of 1: divide"),
        (np.full((1, 4), np.nan), r"vectors\[0\] has norm nan"),
    ],
)
def test_refuses_wrong_vectors(vectors, message):
    with pytest.raises(ValueError, match=message):
        LabelMapping(dim=4, vectors=vectors)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"dim": 1}, "dim=1"),
        ({"threshold": 1}, "threshold=1"),
        ({"threshold": float("nan")}, "threshold=nan"),
        ({"max_tries": 0}, "max_tries=0"),
    ],
)
def test_refuses_wrong_settings(setting, message):
    with pytest.raises(ValueError, match=message):
        LabelMapping(**setting)


@pytest.mark.parametrize("duplicate", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy])
def test_a_copy_goes_on_where_the_mapping_was(duplicate):
    mapping = LabelMapping(random_state=0)
    mapping.extend(10)
    twin = duplicate(mapping)
    np.testing.assert_array_equal(twin.extend(10), mapping.extend(10))


def test_repr_tells_the_setting():
    assert repr(LabelMapping()) == (
        "<LabelMapping of 0 vectors, dim=100, threshold=0.15, max_tries=10000>"
    )
