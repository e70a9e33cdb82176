"""The process that learns a task for the server: ``python -m lmrc.serve.learner``.

It reads a line of JSON from standard input, then the images, which it keeps in memory. It writes
its progress to standard output as lines of JSON. After training it waits for a line ``keep`` or
``discard``. When standard input ends, the server is gone: the process ends and the model does not
change.
"""

import io
import json
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any, BinaryIO, NoReturn

SERVER_GONE = 3  # exit code
STAGES = {"image": "computing features", "epoch": "learning"}


class UploadedImage(io.BytesIO):
    """The bytes of an image file, with its name."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


class _Lines(io.TextIOBase):
    """Sends printed lines, which are warnings, to the server."""

    def write(self, text: str) -> int:
        """Send the lines of a text."""
        for line in filter(None, map(str.strip, text.splitlines())):
            tell(warning=line.removeprefix("lmrc: "))
        return len(text)


def tell(**what: Any) -> None:
    """Send a message to the server."""
    sys.__stdout__.write(json.dumps(what) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def main() -> NoReturn:
    """Learn the task that standard input describes."""
    from lmrc.practice.lazy_imports import import_lazily

    import_lazily()
    # First, since it takes long: the server may start this process before there is a task.
    from lmrc.practice.learn import Request, learn
    from lmrc.store.folder import explain_change
    from lmrc.text import in_one_line

    pipe = sys.stdin.buffer
    head = pipe.readline()
    task = json.loads(head) if head else os._exit(SERVER_GONE)
    images = _read_images(pipe, task["images"])
    path, decisions = Path(task["path"]), SimpleQueue[str]()
    threading.Thread(target=_listen, args=(pipe, decisions), daemon=True).start()
    os.nice(5)  # predictions go first
    sys.stdout = sys.stderr = _Lines()
    tell(stage="preparing")
    warnings.showwarning = lambda message, *_, **__: tell(warning=in_one_line(message).strip())
    started: dict[str, tuple[float, int]] = {}

    def progress(noun: str, done: int, total: int) -> None:
        now = monotonic()
        began, before = started.setdefault(noun, (now, done))
        left = (now - began) / (done - before) * (total - done) if done > before else None
        tell(stage=STAGES.get(noun, noun), done=done, total=total, seconds_left=left)

    def accept(note: Mapping[str, Any]) -> bool:
        if not task["keep"]:
            explain_change(path, "whose result waits in lmrc serve for Keep or Discard")
        tell(stage="waiting", note=dict(note))
        keeps = task["keep"] or decisions.get() == "keep"
        tell(stage="writing" if keeps else "discarded")
        return keeps

    try:
        learn(
            path,
            Request(**task["request"]),
            say=lambda line: None,
            quiet=True,
            images=images,
            progress=progress,
            accept=accept,
        )
    except Exception as error:
        tell(error=f"{error}" or type(error).__name__, kind=type(error).__name__)
    else:
        tell(stage="done")
    os._exit(0)  # a thread still reads standard input


def _read_images(pipe: BinaryIO, listed: list[dict[str, Any]]) -> dict[str, list[UploadedImage]]:
    images: dict[str, list[UploadedImage]] = {}
    for entry in listed:
        content = pipe.read(entry["bytes"])
        if len(content) < entry["bytes"]:
            os._exit(SERVER_GONE)
        images.setdefault(entry["label"], []).append(UploadedImage(content, entry["name"]))
    return images


def _listen(pipe: BinaryIO, decisions: SimpleQueue[str]) -> None:
    while line := pipe.readline():
        decisions.put(line.decode().strip())
    os._exit(SERVER_GONE)  # files are written atomically


if __name__ == "__main__":
    main()
