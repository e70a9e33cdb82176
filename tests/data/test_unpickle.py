import os
import pickle
import subprocess

import numpy as np
import pytest

from lmrc.data.unpickle import PlainPickleError, load_plain_pickle


class Payload:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.fixture
def marker(tmp_path):
    path = tmp_path / "it-ran"
    yield path
    assert not path.exists()


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_plain_values_come_back(protocol):
    value = {"names": ["apple", "bär"], "ids": [0, -1, 2**40], "raw": b"\x00\xff", "none": None}
    if protocol < 3:
        value["raw"] = b"\x01\xff"
    assert load_plain_pickle(pickle.dumps(value, protocol=protocol)) == value


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", ">i4", "bool"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_numeric_arrays_come_back(dtype, order, protocol):
    array = np.arange(12).reshape(3, 4).astype(dtype).copy(order=order)
    loaded = np.asarray(load_plain_pickle(pickle.dumps({"data": array}, protocol=protocol))["data"])
    np.testing.assert_array_equal(loaded, array)
    assert loaded.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")


@pytest.mark.parametrize("core", ["core", "_core"])
def test_arrays_of_old_and_of_new_numpy_come_back(core):
    content = pickle.dumps(np.arange(3, dtype=np.uint8), protocol=2)
    for written in (b"numpy._core.multiarray", b"numpy.core.multiarray"):
        content = content.replace(written, f"numpy.{core}.multiarray".encode())
    assert np.asarray(load_plain_pickle(content)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda payload: payload,
        lambda payload: {b"data": [1, {"deep": (payload,)}]},
        lambda payload: {payload: 1},
        lambda payload: [np.arange(3), payload],
    ],
)
def test_no_command_runs(marker, wrap, protocol):
    payload = wrap(Payload(os.system, f"touch {marker}"))
    with pytest.raises(pickle.UnpicklingError, match=r"names (posix|nt)\.system"):
        load_plain_pickle(pickle.dumps(payload, protocol=protocol))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (eval, r"\w+\.eval"),
        (exec, r"\w+\.exec"),
        (getattr, r"\w+\.getattr"),
        (subprocess.check_call, "subprocess.check_call"),
        (np.load, "numpy.load"),
        (np.fromfile, r"numpy\S*\.fromfile"),
    ],
)
def test_every_other_name_is_refused_and_named(marker, function, name):
    content = pickle.dumps(Payload(function, f"open({str(marker)!r}, 'w')"))
    with pytest.raises(PlainPickleError, match=f"names {name}: only arrays"):
        load_plain_pickle(content)


@pytest.mark.parametrize(
    "array",
    [
        np.array(["harmless", None], dtype=object),
        np.zeros(2, dtype=[("x", "u1"), ("y", "O")]),
        np.array(["text"]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
    ],
)
def test_arrays_of_other_things_than_numbers_are_refused(array):
    with pytest.raises(PlainPickleError, match="not plain numbers"):
        load_plain_pickle(pickle.dumps(array, protocol=2))


CALL = b"c_codecs\nencode\n"
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
DTYPE = b"cnumpy\ndtype\n"
NAME = b"}X\x04\x00\x00\x00nameK\x01s"
# A record with the field x, a pointer to an object; its flags say that there is none.
FIELDS = b"(I3\nS'|'\nN(S'x'\nt(dS'x'\n(" + DTYPE + b"(S'%b'\ntRI0\ntsI8\nI1\nI0\ntb"
POINTERS = DTYPE + b"(S'V8'\nI0\nI1\ntR" + FIELDS % b"O8"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (CALL + NAME + b"b", "alters a function"),
        (CALL + b"N" + NAME + b"\x86b", "alters a function"),
        (DTYPE + b"N" + NAME + b"\x86b", "alters a function"),
        (RECONSTRUCT + NAME + b"b", "alters a function"),
        (b"cnumpy\nndarray\n" + NAME + b"b", "not a whole pickle"),
        (b"cnumpy\nndarray\n((I9\ntR", "not a whole pickle"),
        (RECONSTRUCT + b")R(I1\n(I1\ntS'u1'\nI00\nS'A'\ntb", "something else than numbers"),
        (RECONSTRUCT + b")R(I1\n(I9\nt" + DTYPE + b"(S'u1'\ntRI00\nS'A'\ntb", "buffer size"),
        (POINTERS, "'V8': not plain numbers"),  # as an array, it would crash the process
    ],
)
def test_the_allowed_names_cannot_be_misused(content, why):
    with pytest.raises(PlainPickleError, match=why):
        load_plain_pickle(b"\x80\x02" + content + b".")


def test_numbers_are_not_what_their_state_says():
    numbers = DTYPE + b"(S'u8'\nI0\nI1\ntR" + FIELDS % b"u1"
    array = RECONSTRUCT + b")R(I1\n(I1\nt" + numbers + b"I00\nS'AAAAAAAA'\ntb."
    assert load_plain_pickle(b"\x80\x02" + array).dtype == np.uint64


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"PK\x03\x04 not a pickle", b"\x80\x02]"])
def test_damaged_pickles_are_reported(content):
    with pytest.raises(PlainPickleError, match="not a whole pickle"):
        load_plain_pickle(content)


def test_a_truncated_pickle_is_reported():
    whole = pickle.dumps({"data": np.arange(1000)}, protocol=2)
    with pytest.raises(PlainPickleError, match="not a whole pickle"):
        load_plain_pickle(whole[:-500])
