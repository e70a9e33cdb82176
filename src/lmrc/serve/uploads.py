"""Images that clients upload: read into memory, never to disk, and decoded within limits."""

import asyncio
import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from lmrc.data.images import Mode, UnreadableImageError, read_image
from lmrc.serve.errors import ApiError
from lmrc.serve.settings import Settings

FORM = "multipart/form-data"
_threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "lmrc-decode")


@dataclass(frozen=True, eq=False)
class Upload:
    """An uploaded image file: the field of the form, the file's name, its bytes."""

    field: str
    name: str
    content: bytes


async def read_uploads(request: Request, settings: Settings) -> list[Upload]:
    """Return the images of a request: those of a form, or its body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == FORM:
        return await _read_form(request, settings.max_pictures)
    content = await request.body()
    if not content:
        raise ApiError(400, "no_image", "the request has no image: send one as body, or a form")
    return [Upload("image", "image", content)]


async def _read_form(request: Request, max_files: int) -> list[Upload]:
    parser = MultiPartParser(
        request.headers, request.stream(), max_files=max_files, max_fields=max_files
    )
    parser.spool_max_size = 2**62  # in memory: the length of the request is limited
    try:
        form = await parser.parse()
    except (MultiPartException, UnicodeError, ValueError, KeyError) as error:
        text = getattr(error, "message", "") or "the form cannot be read"
        if text.startswith("Too many"):
            raise ApiError(413, "too_many", f"{text} at once") from error
        raise ApiError(400, "bad_form", text) from error
    found = [
        Upload(field, file.filename or "image", await file.read())
        for field, file in form.multi_items()
        if isinstance(file, UploadFile)
    ]
    await form.close()
    if not found:
        raise ApiError(400, "no_image", "the form has no file")
    return found


async def decode(
    uploads: Sequence[Upload], size: tuple[int, int], mode: Mode, max_pixels: int
) -> list[NDArray[np.uint8] | dict[str, str]]:
    """Return the pixels of each image, or the code and message of the error; few at a time."""
    loop = asyncio.get_running_loop()

    async def pixels_of(upload: Upload) -> NDArray[np.uint8] | dict[str, str]:
        file = io.BytesIO(upload.content)
        try:
            return await loop.run_in_executor(_threads, read_image, file, size, mode, max_pixels)
        except UnreadableImageError as error:  # the client knows the image's name
            message = str(error).removeprefix("cannot read the file as an image: ")
            return {"code": "unreadable_image", "message": message}

    return await asyncio.gather(*map(pixels_of, uploads))
