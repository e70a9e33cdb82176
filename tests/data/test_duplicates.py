import io

import numpy as np
import pytest
from PIL import Image

from lmrc.data.duplicates import duplicates, thumbprint


def picture(seed, side=120):
    """A smooth picture: as a photograph, unlike noise, it survives JPEG and scaling."""
    small = np.random.default_rng(seed).integers(0, 255, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC)


def encoded(image, quality):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file)


CHANGES = {
    "same pixels": lambda image: image,
    "similar": lambda image: encoded(image, 50).resize((70, 70)),
    "mirrored": lambda image: encoded(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 80),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_changed_copy_is_found_among_others(kind):
    images = [picture(seed) for seed in range(20)]
    images.append(CHANGES[kind](images[7]))
    pairs = duplicates([thumbprint(np.asarray(image.convert("RGB"))) for image in images])
    assert [pair[:3] for pair in pairs] == [(7, 20, kind)]


def test_plain_images_are_alike_only_if_they_are_the_same():
    plain = [np.full((16, 16), grey, np.uint8) for grey in (10, 200, 200)]
    assert [pair[:3] for pair in duplicates([*map(thumbprint, plain)])] == [(1, 2, "same pixels")]


def test_no_images_have_no_duplicates():
    assert duplicates([]) == []


def test_many_copies_of_one_image_are_one_pair_each():
    one, other = np.asarray(picture(0)), np.asarray(picture(1))
    prints = [*map(thumbprint, [one] * 300 + [other, one[:, ::-1]] + [other] * 200)]
    pairs = [pair[:3] for pair in duplicates(prints)]
    assert len(pairs) == 299 + 200 + 1
    assert pairs[0] == (0, 1, "same pixels")
    assert pairs[-1] == (300, 501, "same pixels")
    assert (0, 301, "mirrored") in pairs
