"""Where the files of public data sets are: found on this machine, or downloaded."""

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmrc.cache_folder import cache_folder

DATA_VARIABLE = "LMRC_DATA"

_CONNECT_AND_READ_SECONDS = (10, 60)


class DatasetNotFoundError(FileNotFoundError):
    """Files of a data set are missing and could not be downloaded."""


@dataclass(frozen=True)
class RemoteFile:
    """A file that its publishers offer for download."""

    name: str  # what it is called, there and here
    urls: tuple[str, ...]  # its addresses, the best first
    checksum: str  # such as "md5:…" or "sha256:…": what is downloaded must match


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of the public data sets.

    One that is named, by `data_dir` or by the environment variable ``LMRC_DATA``, must exist; else
    it is `cache_folder`.

    >>> data_folder("/no/such/folder")
    Traceback (most recent call last):
        ...
    lmrc.data.sources.DatasetNotFoundError: data_dir names /no/such/folder, which is no folder: ...
    """
    chosen, by = data_dir, "data_dir"
    if not chosen:
        chosen, by = os.environ.get(DATA_VARIABLE), f"the environment variable {DATA_VARIABLE}"
    if not chosen:
        return cache_folder()
    folder = Path(chosen).expanduser()
    if not folder.is_dir():  # not created: a typo would download everything again
        raise DatasetNotFoundError(
            f"{by} names {folder}, which is no folder: correct it, or make the folder to have "
            "data sets downloaded into it."
        )
    return folder


def find_first(folder: Path, places: Sequence[str], names: Sequence[str]) -> Path | None:
    """Return the file with the first of these names that is there, in the first of these places.

    The names may be patterns, such as ``"tiny-imagenet-*.zip"``.
    """
    for name in names:
        for place in places:
            for path in sorted((folder / place).glob(name)):
                if path.is_file():
                    return path
    return None


def download(title: str, files: Sequence[RemoteFile], folder: Path) -> None:
    """Download files into a folder, each checked against its checksum.

    Raises `DatasetNotFoundError` if that fails: names each file, its address and the place where it
    is looked for.
    """
    for done, file in enumerate(files):
        if reasons := _try_addresses(file, folder):
            raise DatasetNotFoundError(_how_to_get(title, files[done:], folder, reasons))


def _try_addresses(file: RemoteFile, folder: Path) -> list[str]:
    """Download from the first address that works; else return why each did not."""
    import pooch  # slow to import, and needed here alone

    reasons = []
    for url in file.urls:
        try:
            with _progress(file.name) as bar:
                downloader = pooch.HTTPDownloader(
                    progressbar=bar, chunk_size=2**18, timeout=_CONNECT_AND_READ_SECONDS
                )
                pooch.retrieve(url, file.checksum, file.name, folder, downloader=downloader)
            return []
        except (OSError, ValueError) as error:  # no network, no right to write, wrong checksum
            unreachable = type(error).__name__ in ("ConnectionError", "ConnectTimeout")
            why = textwrap.shorten(str(error), 300, placeholder=" …")
            reasons.append(f"{url} {'cannot be reached' if unreachable else f'gave: {why}'}")
    return reasons


def _how_to_get(
    title: str, missing: Sequence[RemoteFile], folder: Path, reasons: Sequence[str]
) -> str:
    them = "it" if len(missing) == 1 else "them"
    places = ";\n".join(f"  {file.name} from {' or '.join(file.urls)}" for file in missing)
    # Full stops and semicolons, since the command line makes one line of it.
    return (
        f"{title} is not in {folder}, and could not be downloaded: {'; '.join(reasons)}.\n"
        f"Missing:\n{places}.\n"
        f"Put {them}, as downloaded, into {folder}; or name the folder that has {them} with "
        f"data_dir (--data-dir) or the environment variable {DATA_VARIABLE}."
    )


@contextmanager
def _progress(name: str) -> Iterator[Any]:
    """Show a progress bar, on a terminal only, with the interface that pooch expects."""
    if not sys.stderr.isatty():
        yield False
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("[bold]{task.description}"), BarColumn(), DownloadColumn()
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        yield _Bar(progress, progress.add_task(name, total=None))


class _Bar:
    def __init__(self, progress: Any, task: Any) -> None:
        self._progress, self._task = progress, task
        self.total = 0

    def update(self, amount: int) -> None:
        self._progress.update(self._task, advance=amount, total=self.total or None)

    def reset(self) -> None:
        self._progress.reset(self._task, total=self.total or None)

    def close(self) -> None:
        """Nothing to do: the context manager closes it."""
