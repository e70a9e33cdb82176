import os
import pickle
import struct
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


def test_object_arrays_are_refused(marker):
    payload = Payload(os.system, f"touch {marker}")
    for inside in (payload, "harmless"):
        array = np.array([inside, None], dtype=object)
        with pytest.raises(PlainPickleError, match=r"names|type .*not plain numbers"):
            load_plain_pickle(pickle.dumps([array], protocol=2))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, dtype=[("x", "u1"), ("y", "O")]),
        np.zeros(2, dtype=[("x", "u1")]),
        np.array(["text"]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        np.ma.masked_array([1, 2]),
    ],
)
def test_arrays_of_other_things_than_numbers_are_refused(array):
    with pytest.raises(PlainPickleError):
        load_plain_pickle(pickle.dumps(array, protocol=2))


def reduce_with(function, *args):
    return pickle.dumps(Payload(function, *args), protocol=2)


@pytest.mark.parametrize("codec", ["rot13", "zlib_codec", "utf-8", "unicode_escape"])
def test_text_is_encoded_as_latin1_alone(codec):
    import _codecs

    with pytest.raises(PlainPickleError, match=f"encodes with '{codec}'"):
        load_plain_pickle(reduce_with(_codecs.encode, "text", codec))


CALL = b"c_codecs\nencode\n"
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (CALL + b"}X\x04\x00\x00\x00nameK\x01sb", "alters a function"),
        (CALL + b"N}X\x04\x00\x00\x00nameK\x01s\x86b", "alters a function"),
        (b"cnumpy\nndarray\n}X\x04\x00\x00\x00nameK\x01sb", "not a whole pickle"),
        (b"cnumpy\nndarray\n)\x81", "not a whole pickle"),  # __new__ of what is not a class
        (RECONSTRUCT + b"cnumpy\ndtype\nK\x00\x85U\x01b\x87R", "of the class"),
        (RECONSTRUCT + RECONSTRUCT + b"K\x00\x85U\x01b\x87R", "of the class"),
    ],
)
def test_the_allowed_names_cannot_be_misused(content, why):
    with pytest.raises(PlainPickleError, match=why):
        load_plain_pickle(b"\x80\x02" + content + b".")


def test_an_array_larger_than_its_content_is_refused():
    content = pickle.dumps(np.zeros(7, np.uint8), protocol=2)
    assert content.count(b"K\x07\x85") == 1
    huge = content.replace(b"K\x07\x85", b"J\xff\xff\xff\x7f\x85")
    with pytest.raises(PlainPickleError, match=r"shape \(2147483647"):
        load_plain_pickle(huge)


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"PK\x03\x04 not a pickle", b"\x80\x02]"])
def test_damaged_pickles_are_reported(content):
    with pytest.raises(PlainPickleError, match="not a whole pickle"):
        load_plain_pickle(content)


def test_a_truncated_pickle_is_reported():
    whole = pickle.dumps({"data": np.arange(1000)}, protocol=2)
    with pytest.raises(PlainPickleError, match="not a whole pickle"):
        load_plain_pickle(whole[:-500])


def tuples():
    """Return tuples within tuples, each twice the same one: to hash them takes for ever."""
    whole = (0,)
    for _ in range(200):
        whole = (whole, whole)
    return whole


LONG = b"X" + struct.pack("<I", 10**5) + b"a" * 10**5


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (pickle.dumps([tuples()], protocol=4), "no program writes"),
        (b"\x80\x02]K\x00\x85Nbq\x00h\x00\x86.", "no program writes"),  # a tuple, built by None
        (b"\x80\x02K\x00\x852\x86.", "no program writes"),  # a tuple, doubled
        (b"\x80\x02](" + LONG + b"q\x00" + b"h\x00" * 9 + b"e.", "no program writes"),
        (b"\x80\x02" + b"]" * 1_000_001 + b".", "more than 1,000,000 values"),
        (b"\x80\x02cnumpy\n" + b"x" * 10**5 + b"\n.", r"names numpy\.x+ … x+: only arrays"),
    ],
)
def test_a_pickle_that_takes_without_end_is_refused(content, told):
    with pytest.raises(PlainPickleError, match=told) as raised:
        load_plain_pickle(content)
    assert len(str(raised.value)) < 400


def test_what_is_there_twice_comes_back():
    shared, names = [1, 2], ["a.png"] * 3
    content = pickle.dumps([shared, shared, names, np.zeros(2), np.ones(2)])
    assert load_plain_pickle(content)[:3] == [shared, shared, names]
