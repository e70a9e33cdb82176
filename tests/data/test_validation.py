import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from lmrc.data.validation import encode_labels, read_dataset, read_images, read_labels

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (5, 6, 7, 3), dtype=np.uint8)


def test_arrays_have_channels_last_and_tensors_first():
    images = read_images(BYTES)
    assert images.shape == (5, 3, 6, 7)
    assert images.dtype == torch.uint8
    assert torch.equal(images, read_images(torch.from_numpy(BYTES).permute(0, 3, 1, 2)))
    assert read_images(BYTES[..., 0]).shape == (5, 1, 6, 7)
    assert read_images(torch.from_numpy(BYTES[..., 0].copy())).shape == (5, 1, 6, 7)


def test_images_are_viewed_not_copied():
    assert read_images(BYTES).data_ptr() == BYTES.ctypes.data


def test_read_only_and_mirrored_arrays_are_fine():
    locked = BYTES.copy()
    locked.setflags(write=False)
    assert torch.equal(read_images(locked), read_images(BYTES))
    assert torch.equal(read_images(BYTES[:, :, ::-1]), read_images(BYTES).flip(3))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_lie_between_0_and_1(dtype):
    images = read_images((BYTES / 255).astype(dtype))
    assert images.dtype == torch.float32
    torch.testing.assert_close(images, read_images(BYTES) / 255, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (BYTES[:0], "0 sample"),
        (np.moveaxis(BYTES, -1, 1), r"\(5, 3, 6, 7\).*np\.moveaxis"),
        (torch.from_numpy(BYTES), r"\(5, 6, 7, 3\).*permute"),
        (BYTES[..., :2], "1, 3 or 4 channels"),
        (BYTES.astype(np.int64), r"int64.*such as X\.astype\('uint8'\)"),
        (BYTES.astype(np.uint16) * 257, r"uint16.*spans 0…65535, so scale it, as X / 65535"),
        (BYTES > 128, r"bool.*such as X\.astype\(float\)"),
        (BYTES.astype(object), "not numeric"),
        (BYTES.astype(float), r"0…1, but X spans 0…255"),
        (BYTES / 255 - 0.5, "0…1"),
        (np.where(BYTES > 254, np.nan, 0.5), "NaN"),
        (np.where(BYTES > 254, np.inf, 0.5), "infinity"),
    ],
)
def test_wrong_images_are_named_with_the_remedy(X, words):
    with pytest.raises(ValueError, match=words):
        read_images(X)


@pytest.mark.parametrize(
    ("y", "dtype"),
    [
        ([3, 1, 2], "i"),
        (["b", "a", "c"], "U"),
        (np.array(["b", "a", "c"], dtype=object), "U"),
        (np.array([3, 1, 2], dtype=object), "i"),
        (torch.tensor([3, 1, 2]), "i"),
        ([True, False, True], "b"),
        (np.array([True, False, True], dtype=object), "b"),
        (pd.Series([3, 1, 2], dtype="Int64"), "i"),
        (pd.Series(["b", "a", "b"], dtype="category"), "U"),
        ([1.0, 2.0, 3.0], "i"),
        (np.array([3, 1, 200], dtype=np.uint8), "i"),
    ],
)
def test_labels_are_ints_or_strings(y, dtype):
    labels = read_labels(y, 3)
    assert labels.dtype.kind == dtype
    assert labels.tolist() == (y.tolist() if hasattr(y, "tolist") else y)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([1, 2], "3 in X, 2 in y"),
        ([1.5, 2.0, 3.0], "Unknown label type.*1.5"),
        (["a\0", "a", "b"], r"the label 'a\\x00' ends in a zero"),
        ([1, "a", 2], "y holds int, str"),
        ([1.0, np.nan, 3.0], "NaN"),
        (np.array([1, "a", 2], dtype=object), "int, str"),
        ([True, 1, 0], "bool, int"),
        (pd.Series([1, None, 2], dtype="Int64"), "NaN|NAType"),
        (np.array([None, "a", "b"], dtype=object), "NoneType"),
        ([1j, 2j, 3j], "Complex data"),
    ],
)
def test_wrong_labels_are_named(y, words):
    with pytest.raises(ValueError, match=words):
        read_labels(y, 3)


def test_encoding_refuses_what_was_not_announced_and_changed_types():
    known = np.array([4, 2])
    with pytest.raises(ValueError, match=r"7.*classes=\[2, 4\]"):
        encode_labels(np.array([2, 7]), known, [2, 4])
    with pytest.raises(ValueError, match=r"'cat' is text: keep to one kind"):
        encode_labels(np.array(["cat"]), known)
    with pytest.raises(ValueError, match=r"numbers, but True is a truth value: keep to one kind"):
        encode_labels(np.array([True]), known)


@pytest.mark.parametrize("then", ["int8", "uint8", "int64", "uint64", "float32", "float64"])
@pytest.mark.parametrize("now", ["uint8", "int64", "uint64", "float64"])
def test_a_label_is_the_same_number_whatever_its_type(then, now):
    known = read_labels(np.array([4, 2], dtype=then), 2)
    new, index = encode_labels(read_labels(np.array([4, 7, 200], dtype=now), 3), known)
    assert np.concatenate([known, new]).tolist() == [4, 2, 7, 200]
    assert new.dtype == np.int64
    assert index.tolist() == [0, 2, 3]


def test_large_numbers_stay_apart_and_those_beyond_64_bits_are_refused():
    for large in ([2**60, 2**60 + 1], [2**63 - 2, 2**63 - 1]):
        for dtype in (np.int64, np.uint64):
            assert read_labels(np.array(large, dtype), 2).tolist() == large
    for y in (np.array([2**63], dtype=np.uint64), np.array([1e19]), np.array([-1e19])):
        with pytest.raises(ValueError, match="too large"):
            read_labels(y, 1)


def test_datasets_of_tensors_arrays_and_pillow_images(as_dataset):
    labels = ["cat", "dog", "cat", "cow", "dog"]
    kinds = [
        [torch.from_numpy(x).permute(2, 0, 1) for x in BYTES],
        list(BYTES),
        [Image.fromarray(x) for x in BYTES],
    ]
    for items in kinds:
        X, y = read_dataset(as_dataset(list(zip(items, labels, strict=True))))
        assert y == labels
        assert torch.equal(read_images(X), read_images(BYTES))
        X, y = read_dataset(as_dataset(items))
        assert y is None
        assert len(X) == 5


@pytest.mark.parametrize("mode", ["P", "1", "LA", "CMYK", "PA"])
def test_pillow_images_are_brightness_and_no_bare_numbers(mode, as_dataset):
    """Those of a palette would be learnt, and say nothing."""
    white = Image.new("RGB", (4, 4), "white")
    images = [white, Image.new("RGB", (4, 4), "black")]
    converted = [image.convert("P").convert(mode) for image in images]
    X, _ = read_dataset(as_dataset(converted))
    assert [x.min() for x in X] == [x.max() for x in X] == [255, 0]
    assert read_images(X).shape == (2, 1 if mode in ("1", "LA") else 3, 4, 4)


def test_pillow_images_of_several_kinds_are_to_be_converted(as_dataset):
    kinds = [Image.new("RGB", (4, 4)), Image.new("L", (4, 4))]
    with pytest.raises(ValueError, match="convert them to one"):
        read_dataset(as_dataset(kinds))


def test_datasets_of_mixed_sizes_or_none_are_named(as_dataset):
    with pytest.raises(ValueError, match="resize"):
        read_dataset(as_dataset([torch.zeros(3, 4, 4), torch.zeros(3, 5, 5)]))
    with pytest.raises(ValueError, match="empty"):
        read_dataset(as_dataset([]))


def test_iterable_datasets_are_read():
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([(torch.ones(4), torch.tensor(2)), (torch.zeros(4), torch.tensor(1))])

    X, y = read_dataset(Endless())
    assert X.shape == (2, 4)
    assert y == [2, 1]
