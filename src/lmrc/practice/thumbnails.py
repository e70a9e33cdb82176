"""Small images for pages, as text."""

from __future__ import annotations

import io
from base64 import b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIZE = 96  # pixels


def thumbnail(pixels: NDArray[Any]) -> str:
    """Return an image, (height, width) or (height, width, channels), as a small JPEG in base64.

    Empty for inputs that are no image. Values are 0 … 255, or 0 … 1 if they are not whole numbers.
    """
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4)):
        return ""
    if pixels.dtype != np.uint8:
        whole = np.issubdtype(pixels.dtype, np.integer)
        pixels = np.clip(pixels if whole else 255 * pixels, 0, 255).astype(np.uint8)
    if pixels.ndim == 3:
        pixels = pixels[..., 0] if pixels.shape[2] == 1 else pixels[..., :3]
    image = Image.fromarray(np.ascontiguousarray(pixels))
    times = max(1, SIZE // max(image.size))
    image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    image.thumbnail((SIZE, SIZE))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=80)
    return b64encode(data.getvalue()).decode()
