import io
from base64 import b64decode

import numpy as np
import pytest
from PIL import Image

from lmrc.data.images import THUMBNAIL, thumbnail


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((8, 8), (96, 96)),
        ((300, 200, 3), (64, 96)),
        ((32, 32, 1), (96, 96)),
        ((60, 40, 4), (40, 60)),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_of_all_kinds_become_small(shape, size, dtype):
    pixels = np.full(shape, 200 if dtype == np.uint8 else 200 / 255, dtype)
    image = Image.open(io.BytesIO(b64decode(thumbnail(pixels))))
    assert image.size == size
    assert max(image.size) <= THUMBNAIL
    assert abs(int(np.asarray(image).mean()) - 200) <= 2


def test_vectors_are_no_images():
    assert thumbnail(np.zeros(5)) == thumbnail(np.zeros((4, 4, 7))) == ""
