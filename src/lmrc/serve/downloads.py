"""Downloads of a model: its folder as a ZIP file, or an ONNX file."""

import asyncio
import sys
import tempfile
import zipfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lmrc.serve.errors import ApiError
from lmrc.serve.served import Served
from lmrc.store import folder as store

CHUNK = 2**18
EXPORT_SECONDS = 600


def folder_as_zip(served: Served) -> IO[bytes]:
    """Return an unnamed temporary ZIP file with a consistent snapshot of the model's folder."""
    while True:
        before = store.fingerprint(served.path)
        if before is None:
            raise ApiError(409, "empty_model", f"{served.name} has not learnt anything yet")
        try:
            file = _zip(served)
        except FileNotFoundError:
            if store.fingerprint(served.path) == before:
                raise
            continue
        if store.fingerprint(served.path) == before:
            return file
        file.close()


def _zip(served: Served) -> IO[bytes]:
    names = {e["name"] for v in store.versions(served.path) for e in v["files"].values()}
    file = tempfile.TemporaryFile(prefix="lmrc-")  # noqa: SIM115
    try:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name in (store.MANIFEST, *sorted(names)):
                archive.write(served.path / name, f"{served.name}/{name}")
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Iterate over the content of a file, and close it."""
    with file:
        while chunk := file.read(CHUNK):
            yield chunk


class OnnxExport:
    """Exports models, one at a time, in a process of its own: the exporter is not thread-safe."""

    def __init__(self) -> None:
        self._busy = asyncio.Lock()

    async def __call__(self, served: Served) -> bytes:
        """Return a model as ONNX."""
        if self._busy.locked():
            raise ApiError(429, "busy", "another model is being exported", retry_after=10)
        async with self._busy:
            with tempfile.TemporaryDirectory(prefix="lmrc-") as place:
                out = Path(place, "model.onnx")
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "lmrc", "export", str(served.path.absolute()), str(out),
                    "--quiet", stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE,
                )  # fmt: skip
                try:
                    async with asyncio.timeout(EXPORT_SECONDS):
                        _, errors = await process.communicate()
                except BaseException:
                    process.kill()
                    raise
                if process.returncode:
                    text = errors.decode(errors="replace").strip().removeprefix("lmrc: ")
                    text = text.replace(str(served.path.absolute()), served.name)
                    raise ApiError(409, "export_failed", text or "the export failed")
                return await asyncio.to_thread(out.read_bytes)
