"""Image files, decoded and brought to one size: the same way for learning and for predicting."""

import io
import os
import warnings
from base64 import b64encode
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

Mode = Literal["RGB", "L"]
Size = int | tuple[int, int]
Pixels = NDArray[np.uint8]
ImageFile = Path | BinaryIO

SUFFIXES = frozenset(
    (".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
)
#: Image formats that are not read: those of phones, and raw ones.
NOT_READ = frozenset(
    (".arw", ".avif", ".cr2", ".cr3", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".psd")
)
DEFAULT_SIZE = 64  # that of Tiny-ImageNet
THUMBNAIL = 96  # pixels a side
MAX_KEPT = 256  # pixels a side; networks for small images are no use above

# Named one by one, since Pillow knows formats that start other programs, such as EPS.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
_ORIENTATION = 0x0112  # the EXIF tag: camera orientation
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadableImageError(OSError):
    """A file is not an image that can be read."""


def list_images(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the image files in a folder and its sub-folders, sorted, the same on every machine.

    An image is what has the suffix of one (JPEG, PNG, BMP, GIF, WebP, TIFF), in any case. Hidden
    files and folders are left out, and links to a parent folder. A folder with several links is
    visited once.
    """
    return [Path(folder, name) for name in walk_images(folder)]


def walk_images(
    folder: str | os.PathLike[str], suffixes: Container[str] = SUFFIXES
) -> Iterator[str]:
    """Iterate over the files that `list_images` lists, as paths relative to the folder.

    Or those with other suffixes. Only the names of the folders on the path are in memory.
    """
    first = Path(folder).resolve()
    seen, path = {first}, [(first, _entries(folder, ""))]
    while path:
        name, entry = next(path[-1][1], ("", None))
        if entry is None:
            path.pop()
        elif _is_folder(entry):
            there = Path(entry).resolve()
            back = entry.is_symlink() and any(step.is_relative_to(there) for step, _ in path)
            if there not in seen and not back:  # else cyclic links would never end
                seen.add(there)
                path.append((there, _entries(folder, name)))
        elif Path(entry.name).suffix.lower() in suffixes and not _is_device(entry):
            yield name


def _entries(
    folder: str | os.PathLike[str], below: str
) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
    """Iterate over a sub-folder, sorted, by paths relative to the folder."""
    try:
        with os.scandir(os.path.join(folder, below)) as found:  # noqa: PTH118  # many names
            entries = sorted((e for e in found if not e.name.startswith(".")), key=lambda e: e.name)
    except PermissionError:
        return
    for entry in entries:
        yield f"{below}/{entry.name}" if below else entry.name, entry


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a cyclic link
        return False


def read_image(
    path: str | os.PathLike[str] | BinaryIO,
    size: Size | None = None,
    mode: Mode = "RGB",
    max_pixels: int | None = None,
) -> Pixels:
    """Return the pixels of an image file, upright and of the given size.

    The image is rotated by its EXIF orientation, laid on white where it is transparent, converted,
    and resized: scaled until its shorter side fits (bicubic, with antialiasing) and
    cropped at the centre. Of animations, the first frame is read. The same file gives the same
    pixels every time.

    Parameters
    ----------
    path : path or binary file
        JPEG, PNG, BMP, GIF, WebP or TIFF.
    size : int, (height, width) or None, default=None
        The size to return; an int is a square. None: as it is.
    mode : {"RGB", "L"}, default="RGB"
        Colour, or shades of grey.
    max_pixels : int or None, default=None
        Refuse an image that would be decoded to more pixels; None: Pillow's limit alone.

    Returns
    -------
    ndarray of shape (height, width, 3) or (height, width), uint8
        The pixels.

    Raises `UnreadableImageError`, an `OSError`, if the file is missing, damaged, not an image, or
    absurdly large (Pillow's limit for decompression bombs).

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (300, 200), "teal").save(file, "PNG")
    >>> read_image(file, size=32).shape
    (32, 32, 3)
    """
    shape = None if size is None else _height_and_width(size)
    if mode not in ("RGB", "L"):
        raise ValueError(f'mode must be "RGB" (colour) or "L" (grey), got {mode!r}.')
    try:
        # Warnings tell of odd metadata and of large images: neither stops us from reading.
        with warnings.catch_warnings(action="ignore"), _open(path) as image:
            if shape is not None:
                # A large JPEG is scaled down while it is decoded, to no less than twice the size.
                image.draft(None, (2 * max(shape), 2 * max(shape)))
            if max_pixels is not None and image.width * image.height > max_pixels:
                raise ValueError(f"it has more than {max_pixels:,} pixels")
            pixels = _convert(_upright(image), mode)
            if shape is not None:
                pixels = ImageOps.fit(pixels, shape[::-1], Image.Resampling.BICUBIC)
            return np.array(pixels, dtype=np.uint8)
    except Exception as error:  # Pillow raises about anything on a broken file
        why = f"{_reason(error, path)}. {_advice(error, path)}"
        raise UnreadableImageError(f"cannot read {name_of(path)} as an image: {why}") from error


def common_form(paths: Iterable[ImageFile]) -> tuple[tuple[int, int], Mode]:
    """Return the size and the mode in which to read a collection of images, by their headers alone.

    The size (height, width) is their own, if they all have the same and it is no more than 256
    pixels a side; else 64×64. The mode is grey if they all are; else colour. What is no image is
    skipped.
    """
    sizes: set[tuple[int, int]] = set()
    all_grey = True
    for path in paths:
        if len(sizes) > 1 and not all_grey:  # no other header changes that
            break
        try:
            size, is_grey = _header(path)
        except Exception:  # the error comes when the image is read
            continue
        sizes.add(size)
        all_grey = all_grey and is_grey
    size = sizes.pop() if len(sizes) == 1 else (DEFAULT_SIZE, DEFAULT_SIZE)
    if max(size) > MAX_KEPT:
        size = DEFAULT_SIZE, DEFAULT_SIZE
    return size, "L" if all_grey else "RGB"


def image_size(path: ImageFile) -> tuple[int, int]:
    """Return the height and width of an image that can be read, upright, by its header alone."""
    return _header(path)[0]


def _header(path: ImageFile) -> tuple[tuple[int, int], bool]:
    """Return the size of an image, upright, and whether it is grey."""
    with warnings.catch_warnings(action="ignore"), _open(path) as image:
        # Pillow rotates TIFF files itself.
        is_rotated = image.format != "TIFF" and _orientation(image) >= 5
        return image.size if is_rotated else image.size[::-1], _is_grey(image)


def _open(path: str | os.PathLike[str] | BinaryIO) -> Image.Image:
    if isinstance(path, str | os.PathLike) and _is_device(Path(path)):
        raise ValueError("it is not a file")
    return Image.open(path, formats=_FORMATS)


def _is_device(path: Path | os.DirEntry[str]) -> bool:
    """Tell whether it exists and is not a file: reading from a pipe would block."""
    try:
        return not path.is_file() and Path(path).exists()
    except OSError:  # a cyclic link: there is nothing there
        return False


def _height_and_width(size: Any) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int) and side >= 1 for side in pair):
        raise ValueError(
            f"size must be an int of at least 1 or a pair (height, width), got {size!r}."
        )
    return pair


def _is_grey(image: Image.Image) -> bool:
    return image.mode in ("1", "L", "LA") or image.mode.startswith("I")


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # metadata is often broken where the image is not
        return 1


def _upright(image: Image.Image) -> Image.Image:
    image.load()  # first: here Pillow rotates a TIFF, and updates its orientation
    transpose = _UPRIGHT.get(_orientation(image))
    return image if transpose is None else image.transpose(transpose)


def _convert(image: Image.Image, mode: Mode) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits a pixel: Pillow would clip them, not scale them
        bright = np.clip(np.asarray(image, dtype=np.int64), 0, 2**16 - 1) >> 8
        image = Image.fromarray(bright.astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    if "transparency" in image.info or image.mode in ("LA", "PA", "RGBA"):
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, image)
    if image.mode == "LAB":  # Pillow converts it to colour only
        image = image.convert("RGB")
    return image.convert(mode)


def pixels_of(image: Image.Image) -> NDArray[Any]:
    """Return an image of Pillow as an array: palette indices are converted to colours.

    >>> pixels_of(Image.new("RGB", (2, 2), "teal").convert("P")).shape
    (2, 2, 3)
    """
    plain = image.mode in ("L", "RGB", "RGBA", "F") or image.mode.startswith("I")
    return np.asarray(image if plain else _convert(image, "L" if _is_grey(image) else "RGB"))


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
    times = max(1, THUMBNAIL // max(image.size))
    image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=80)
    return b64encode(data.getvalue()).decode()


def name_of(path: Any) -> str:
    """Return the name of an image file for messages."""
    if isinstance(path, str | os.PathLike):
        return os.fspath(path)
    return str(getattr(path, "name", "the file"))


def _advice(error: Exception, path: Any) -> str:
    if isinstance(error, FileNotFoundError):
        return "Is its name right?"
    if isinstance(error, PermissionError):
        return "Make it readable."
    if isinstance(error, Image.DecompressionBombError):
        return "Scale it down."
    if Path(name_of(path)).suffix.lower() in NOT_READ:
        return "Convert it to JPEG or PNG."
    return "Remove it, or save it again as JPEG or PNG."


def _reason(error: Exception, path: Any) -> str:
    if isinstance(error, UnidentifiedImageError):  # its text repeats the path
        suffix = Path(name_of(path)).suffix.lower()
        return f"{suffix} files are not read" if suffix in NOT_READ else "it has no known format"
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")
