"""Your own images: one sub-folder per class."""

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

import numpy as np

from lmrc.data.class_names import class_name
from lmrc.data.dataset import Array, Dataset, check_limit, limit_note, sample_share, text_labels
from lmrc.data.image_files import (
    FORKS,
    MEMORY_SHARE,
    ImageFiles,
    Names,
    available_memory,
    in_workers,
    progress,
    read_or_error,
)
from lmrc.data.images import (
    NOT_READ,
    SUFFIXES,
    ImageFile,
    Mode,
    Pixels,
    Size,
    UnreadableImageError,
    common_form,
    name_of,
    walk_images,
)

TEST_SHARE = 0.2
FEW_IMAGES = 5  # of a class: more make it more reliable

VALIDATION = ("val", "valid", "validation")
SET_ASIDE = ("test", *VALIDATION)  # sub-folders beside train/; the first that has classes counts
_MACOS_FOLDER = "__MACOSX"  # in zip files made on a Mac
_MAX_UNREADABLE = 10_000  # give up if none of so many files can be read
_MAX_NAMED = 5  # unreadable files in a warning

Files = Mapping[str, Sequence[ImageFile]]  # the images of each class

T = TypeVar("T")


def folder(
    path: str | os.PathLike[str], *, size: Size | None = None, limit: int | None = None
) -> Dataset:
    """Return the images of a folder; the names of its sub-folders are the labels.

    Either the folder has one sub-folder per class, and then a fifth of each class's images (at
    least one; chosen at random, but the same every time) becomes the test part. Or it has ``train``
    and ``test`` (or ``val``), with one sub-folder per class in each. `note` of the data set says
    which. Images are found at any depth, and read by `lmrc.data.images.read_image`; files that
    cannot be read are left out, with a warning.

    If the images would take more than half of the available memory, they stay on disk and are
    decoded each time they are needed, with a warning.

    Parameters
    ----------
    path : path
        The folder.
    size : int, (height, width) or None, default=None
        Images are scaled and cropped to this size. None: as they are, if all have one size of no
        more than 256 pixels a side; else 64×64.
    limit : int or None, default=None
        Take only the first `limit` images of each class, of the training and of the test part
        alike.

    Returns
    -------
    Dataset
        Images of shape (height, width, 3), or (height, width) if all are grey.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for colour in ("red", "green"):
    ...         Path(place, colour).mkdir()
    ...         for shade in range(10):
    ...             image = Image.new("RGB", (40 + shade, 30), colour)
    ...             image.save(Path(place, colour, f"{shade}.png"))
    ...     folder(place).X_test.shape
    (4, 64, 64, 3)
    """
    root = Path(path).expanduser()
    train, test, note = _parts(root)
    if limit is not None:
        check_limit(limit)
        note = f"{note} {limit_note(limit)}"
    common_size, mode = _form(train, test, limit)
    skipped: list[UnreadableImageError] = []
    form = size or common_size, mode
    X_train, y_train = read_files(train, *form, skipped, limit)
    X_test, y_test = read_files(test, *form, skipped, limit, use="to test with")
    if skipped:
        warnings.warn(describe_skipped(skipped, f" of {root}"), stacklevel=2)
    return Dataset(root.resolve().name, X_train, y_train, X_test, y_test, note=note)


def size_of(path: str | os.PathLike[str], limit: int | None = None) -> tuple[int, int]:
    """Return the height and width of the images of `folder` without a given size.

    No image is decoded: only the header of each file is read.
    """
    train, test, _ = _parts(Path(path).expanduser())
    return _form(train, test, limit)[0]


def _parts(root: Path) -> tuple[Files, Files, str]:
    """Return the images to learn from and to test with, and a note on which these are."""
    train, test, place = image_files(root)
    if place:
        _check_known(test, train, root)
        return train, test, f"Test images from {place}/."
    note = f"Test images: {100 * TEST_SHARE:.0f} % of each class, drawn once and for all."
    return *_split(train), note


def _form(train: Files, test: Files, limit: int | None) -> tuple[tuple[int, int], Mode]:
    of_classes = [*train.values(), *test.values()]
    return common_form(file for files in of_classes for file in files[:limit])


def image_files(
    root: Path, parts: Sequence[str] = SET_ASIDE, *, allow_empty: bool = False
) -> tuple[Files, Files, str]:
    """Return the images of each class in a folder: all, or those to learn from and to test with.

    The folder has one sub-folder per class, or ``train`` and maybe ``test`` (or ``val``) with one
    sub-folder per class in each. `parts` are those of `SET_ASIDE` to test with, the preferred one
    first. The last value is the name of the sub-folder that they are in; without one, it is empty,
    and so are the images to test with. A class without images is refused, unless `allow_empty`.
    """
    if not root.is_dir():
        raise FileNotFoundError(
            f"{root} is no folder; name one with a sub-folder of images for each class."
        )
    train, aside = folders_of_classes(root)
    for name in parts:
        if name in aside:
            held = _classes(aside[name], allow_empty)
            return _classes(train, allow_empty), held, aside[name].name
    return _classes(train, allow_empty), {}, ""


def folders_of_classes(root: Path) -> tuple[Path, dict[str, Path]]:
    """Return the folder whose sub-folders are classes, and the folders of test images, by name."""
    subfolders = {path.name.lower(): path for path in _subfolders(root)}
    train = subfolders.get("train")
    if train is None or not _subfolders(train):  # without, "train" is a class itself
        return root, {}
    named = {name: subfolders[name] for name in SET_ASIDE if name in subfolders}
    # Without sub-folders, there are no labels.
    aside = {name: path for name, path in named.items() if _subfolders(path)}
    if not aside and len(subfolders) > 1 + len(named):
        return root, {}
    return train, aside


def _subfolders(folder: Path) -> list[Path]:
    """Return the visible sub-folders by name, without links to a parent."""
    real = folder.resolve()
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_dir()
        and not path.name.startswith(".")
        and path.name != _MACOS_FOLDER
        and not (path.is_symlink() and real.is_relative_to(path.resolve()))
    ]


def _classes(folder: Path, allow_empty: bool = False) -> dict[str, Sequence[Path]]:
    classes: dict[str, Sequence[Path]] = {}
    for path in _subfolders(folder):
        name, files = class_name(path.name), Names(path)
        classes[name] = [*classes[name], *files] if name in classes else files
    if not classes:
        raise ValueError(
            f"{folder} has no sub-folders; move the images of each class into one of its own."
        )
    empty = [name for name, files in classes.items() if not files]
    if empty and not (allow_empty and len(empty) < len(classes)):
        unread = walk_images(folder, NOT_READ)
        others = next((name for name in unread if class_name(Path(name).parts[0]) in empty), "")
        advice = f"convert others, such as {others}, " if others else "add some, "
        raise ValueError(
            f"{folder} has no images (JPEG, PNG, BMP, GIF, WebP, TIFF) of "
            f"{', '.join(map(repr, empty[:5]))}: {advice}or remove what is empty"
        )
    _warn_of_loose_images(folder)
    _warn_of_nested_classes(folder)
    return classes


def _warn_of_nested_classes(folder: Path) -> None:
    """Warn if every class is made of sub-folders: these are probably the classes.

    Refuse a single folder with sub-folders for training and testing.
    """
    found = _subfolders(folder)
    if len(found) == 1 and folders_of_classes(found[0])[0] != found[0]:
        raise ValueError(
            f"{folder} is one level too high: its only folder, {found[0].name}, has the classes in "
            f"a folder for training; give {found[0]}"
        )
    if all(map(_is_made_of_folders, found)):
        first, second, *_ = _subfolders(found[0])
        named = ", ".join(path.name for path in found[:5]) + ", …" * (len(found) > 5)
        then = " first, then each of the others" if len(found) > 1 else ""
        warnings.warn(
            f"sub-folders of {folder} are taken for classes ({named}): if those below, such as "
            f"{first.name} and {second.name}, are the classes, give {found[0]}{then}",
            stacklevel=2,
        )


def _is_made_of_folders(path: Path) -> bool:
    """Return whether a folder has several sub-folders and no images of its own."""
    with os.scandir(path) as entries:  # an image comes soon, as a rule
        if any(_is_image(Path(entry.name)) for entry in entries):
            return False
    return len(_subfolders(path)) > 1


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _warn_of_loose_images(folder: Path) -> None:
    """Warn of images without a class, outside of all sub-folders."""
    loose = sorted(path.name for path in folder.iterdir() if _is_image(path) and path.is_file())
    if loose:
        warnings.warn(
            f"left out images that are in no sub-folder of {folder}: {loose[0]}"
            f"{f' and {len(loose) - 1:,} more' if loose[1:] else ''}; move each into the folder of "
            "its class",
            stacklevel=2,
        )


def _check_known(test: Files, train: Files, root: Path) -> None:
    unknown = sorted(test.keys() - train.keys())
    if unknown:
        raise ValueError(
            f"class(es) {unknown[:5]} have test images but no sub-folder with those to learn from "
            f"in {root}; add training images, or remove the test images."
        )


def _split(classes: Files) -> tuple[Files, Files]:
    for name, files in classes.items():
        if len(files) < 2:
            raise ValueError(
                f"class {name!r} has a single image, {files[0]}; add at least one, since one is "
                "kept for testing, or sort your images into train/ and test/."
            )
    parts = {name: held_out(files, TEST_SHARE) for name, files in classes.items()}
    train, test = ({name: part[i] for name, part in parts.items()} for i in range(2))
    return train, test


def held_out(items: Sequence[T], share: float) -> tuple[Sequence[T], Sequence[T]]:
    """Split the items of one class: those that stay, and a share (at least one) that is held out.

    At random, but the same every time, and whatever other classes there are. A single item stays.

    >>> held_out("abcdefgh", 0.25)
    (['a', 'b', 'd', 'f', 'g', 'h'], ['c', 'e'])
    """
    single = len(items) == 1 or not share
    held = np.zeros(len(items), dtype=bool)
    held[[] if single else sample_share(len(items), share)] = True
    if isinstance(items, Names):
        return cast(Sequence[T], items.take(~held)), cast(Sequence[T], items.take(held))
    kept = [item for i, item in enumerate(items) if not held[i]]
    return kept, [item for i, item in enumerate(items) if held[i]]


def describe_skipped(skipped: Sequence[UnreadableImageError], place: str = "") -> str:
    """Return how many files were left out, and the names of the first."""
    named = " ".join(str(error) for error in skipped[:_MAX_NAMED])
    more = " …" if len(skipped) > _MAX_NAMED else ""
    files = "file" if len(skipped) == 1 else "files"
    return f"left out {len(skipped):,} {files}{place}: {named}{more}"


def read_files(
    files: Files,
    size: Size,
    mode: Mode,
    skipped: list[UnreadableImageError],
    limit: int | None = None,
    *,
    use: str = "to learn from",
) -> tuple[Array, Array]:
    """Read images of classes: an array of pixels, and the label of each.

    No more than the first `limit` images of each class are read, as `lmrc.data.images.read_image`
    does. Files that cannot be read are left out, and their errors added to `skipped`; if there is
    none of a class, an error names the `use`, unless that is empty.
    """
    height, width = (size, size) if isinstance(size, int) else size
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    n_images = sum(len(of_class[:limit]) for of_class in files.values())
    if n_images * math.prod(shape) > MEMORY_SHARE * available_memory():
        return _streamed(files, (height, width), mode, skipped, limit, use)
    labels: list[str] = []
    every = ImageFiles(list(files.values()), (height, width), mode)
    # Workers would share the position in open files; and with a limit, some are not to be read.
    on_disk = limit is None and not any(hasattr(f[0], "read") for f in files.values() if len(f))
    decoded = in_workers(every.read, len(every)) if on_disk and FORKS else None

    def images() -> Iterator[Pixels]:
        for label, of_class in files.items():
            first = len(labels)
            for path in of_class:
                if len(labels) - first == limit:
                    break
                found = next(decoded) if decoded else read_or_error(path, size, mode)
                if isinstance(found, UnreadableImageError):
                    skipped.append(UnreadableImageError(str(found)))  # without its cause
                    if not labels and len(skipped) >= _MAX_UNREADABLE:
                        raise _none_of(label, of_class, use) from found
                    continue
                labels.append(label)
                yield found
            if use and len(labels) == first:
                raise _none_of(label, of_class, use)

    pixels = np.empty((n_images, *shape), np.uint8)
    for i, image in enumerate(progress(images(), "reading images", n_images)):
        pixels[i] = image
    return pixels[: len(labels)], text_labels(labels)


def _none_of(label: str, files: Sequence[ImageFile], use: str) -> ValueError:
    return ValueError(
        f"no image of class {label!r} {use} can be read, such as {name_of(files[0])}; replace "
        "them, or remove the class."
    )


def _streamed(
    files: Files,
    size: tuple[int, int],
    mode: Mode,
    skipped: list[UnreadableImageError],
    limit: int | None,
    use: str,
) -> tuple[Array, Array]:
    """Keep the images on disk; each is decoded once now, to find those that can be read."""
    parts = [of_class[:limit] for of_class in files.values()]
    images = ImageFiles(parts, size, mode)
    warnings.warn(
        f"the {len(images):,} images would take {images.nbytes / 2**30:.1f} GiB, more than half of "
        "the available memory: they are read from disk each time they are needed, which is slower, "
        "with the same result",
        stacklevel=3,
    )
    labels = np.repeat(text_labels(files), [len(part) for part in parts])
    good = images.readable(skipped)
    lost = sorted(set(files) - set(np.unique(labels[good]).tolist()))
    if use and lost:
        raise _none_of(lost[0], files[lost[0]], use)
    return images[good], labels[good]  # type: ignore[return-value]  # behaves as an array
