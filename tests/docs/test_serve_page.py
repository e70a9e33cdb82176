"""The requests in docs/serve.md, sent as they stand to a server with a model of two digits."""

import io
import re
import shutil
import subprocess
import sys
import threading
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lmrc
from lmrc.data.datasets import digits

uvicorn = pytest.importorskip("uvicorn", reason="the extra serve is not installed")
PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
# Learns nothing, but says that it has.
LEARNER = """
import json, sys
task = json.loads(sys.stdin.buffer.readline())
sys.stdin.buffer.read(sum(i["bytes"] for i in task["images"]))
def tell(**what): print(json.dumps(what), flush=True)
tell(stage="waiting", note={"classes": sorted({i["label"] for i in task["images"]})})
if not task["keep"]: sys.stdin.buffer.readline()
tell(stage="writing")
tell(stage="done")
"""


def block(kind):
    return re.search(rf"^```{kind}\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the model and the files that the page names."""
    folder, data = tmp_path_factory.mktemp("page"), digits()
    rows = np.flatnonzero(data.y_train < 2)[:40]
    names = np.array(["cat", "dog"])[data.y_train[rows]]
    clf = lmrc.LMRCPlusClassifier(backbone="identity", random_state=0)
    clf.partial_fit(data.X_train[rows], names).save(folder / "pets.lmrc")
    files = (
        "photo.jpg a.jpg b.jpg cat1.jpg cat2.jpg dog1.jpg dog2.jpg week1/cat/1.jpg week1/dog/1.jpg"
    )
    for row, name in zip(rows, files.split(), strict=False):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.X_train[row]).save(folder / name)
    return folder


@pytest.fixture
def address(place):
    """The address of a server, in place of ``localhost:8000``."""
    from lmrc.serve.app import create_app
    from lmrc.serve.settings import Settings

    app = create_app(Settings(place / "pets.lmrc", device="cpu"))
    app.state.jobs.command = (sys.executable, "-S", "-c", LEARNER)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield f"localhost:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_curl(place, address):
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    lines = block("bash").replace("localhost:8000", address).replace("curl ", "curl -sSf ")
    first, after = lines.split("curl -sSf -N")  # which follows the job that came before
    done = subprocess.run(first, shell=True, cwd=place, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.count('"class":"') >= 3
    job = re.search('"id":"(.*?)"', done.stdout)[1]
    keep = after.replace("JOB", job).split("curl -sSf")[1]
    events = subprocess.Popen(
        f"curl -sSf -N {address}/v1/jobs/{job}/events",
        shell=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    while "waiting" not in events.stdout.readline():
        pass
    kept = subprocess.run(f"curl -sSf{keep}", shell=True, capture_output=True, text=True)
    assert '"state":"kept"' in kept.stdout, kept.stderr
    assert '"state": "kept"' in events.communicate()[0]


def test_python(place, address, monkeypatch):
    pytest.importorskip("httpx")
    monkeypatch.chdir(place)
    said, names = io.StringIO(), {}
    with redirect_stdout(said):
        exec(block("python").replace("localhost:8000", address), names)
    names["server"].close()
    lines = said.getvalue().splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["a.jpg", "b.jpg"]
    assert all(0.3 <= float(line.split()[2]) <= 1 for line in lines[:2])
    assert '"state": "kept"' in lines[-2]
