"""Nothing of an image that is sent reaches the disk."""

import io
import os
import sys

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lmrc.store.files import DRAFT, is_tensor_file

MODEL = "/v1/models/pets.lmrc"
MARK = b"a-mark-that-is-nowhere-else"
TORCHS = "_remote_module_non_scriptable.py"  # torch 2.6 writes it when it is imported

# The learner, which notes each file that it opens to write.
NOTING = """
import os, sys, tempfile
tempfile.gettempdir()  # tries once whether the folder can be written
writes = os.O_WRONLY | os.O_RDWR
notes = os.open({notes!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(event, arguments):
    # A number is a file that is open already, such as a pipe.
    if event == "open" and not isinstance(arguments[0], int) and arguments[2] & writes:
        os.write(notes, (str(arguments[0]) + "\\n").encode())
sys.addaudithook(note)
from lmrc.serve.learner import main
main()
"""
_noted = None


def _note(event, arguments):
    if _noted is None or event != "open" or isinstance(arguments[0], int):
        return
    if arguments[2] & (os.O_WRONLY | os.O_RDWR):
        _noted.append(str(arguments[0]))


@pytest.fixture
def noted():
    """The files that this process opens to write."""
    global _noted
    if not hasattr(sys, "_lmrc_notes"):  # a hook cannot be removed
        sys.addaudithook(_note)
        sys._lmrc_notes = True
    _noted = []
    yield _noted
    _noted = None


def photo(seed):
    """Return a PNG file of more than a megabyte, with a mark in its metadata."""
    pixels = np.random.default_rng(seed).integers(0, 256, (640, 640, 3), dtype=np.uint8)
    info, file = PngInfo(), io.BytesIO()
    info.add_text("Comment", MARK.decode())
    Image.fromarray(pixels).save(file, "PNG", pnginfo=info)
    return file.getvalue()


def test_nothing_of_an_image_is_on_disk(tmp_path, serve, wait, noted, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    path, notes = tmp_path / "pets.lmrc", tmp_path / "notes"
    client = serve(path)
    program = NOTING.format(notes=str(notes))
    client.app.state.jobs.command = (sys.executable, "-B", "-c", program)
    images = [photo(seed) for seed in range(4)]
    assert all(len(image) > 2**20 and MARK in image for image in images)
    form = [("cat" if i < 2 else "dog", (f"{i}.png", image)) for i, image in enumerate(images)]
    options = "epochs=1&backbone=mlp&size=16&keep=true&val=0"
    job = client.post(f"{MODEL}/learn?{options}", files=form).json()["id"]
    wait(client, job, "kept")
    assert client.post(f"{MODEL}/predict", files=form).status_code == 200

    opened = [*noted, *notes.read_text().splitlines()]
    others = [name for name in opened if not is_of_model(name, path) and TORCHS not in name]
    assert others == []
    for file in tmp_path.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert MARK not in content, file
            assert not any(image[5000:5064] in content for image in images), file
    assert client.app.state.jobs.held == 0


def is_of_model(name, path):
    """Tell whether a file is one of those that a model consists of."""
    folder, _, base = name.rpartition("/")
    known = base.startswith(DRAFT) or base == "manifest.json" or is_tensor_file(base)
    return (folder == str(path) and known) or name in ("/dev/null",)
