import io
import shutil
import sys
import time

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

import lmrc
from lmrc.data.datasets import digits
from lmrc.practice.learn import Request, learn
from lmrc.serve.app import create_app
from lmrc.serve.learner import UploadedImage
from lmrc.serve.settings import Settings

NAMES = ("zero", "one", "two", "three", "four", "five", "six")
# A learner that learns nothing: it follows the protocol, and waits for the decision.
FAKE = """
import json, os, sys, time
task = json.loads(sys.stdin.buffer.readline())
sys.stdin.buffer.read(sum(i["bytes"] for i in task["images"]))
def tell(**what): print(json.dumps(what), flush=True)
tell(stage="learning", done=1, total=4, seconds_left=30.0)
{before}
tell(warning="few images of zero in " + task["path"])
note = {{"new_accuracy": 0.75, "new_tested": 8, "images": 40, "seconds": 3}}
tell(stage="waiting", note=note)
tell(stage="writing" if sys.stdin.buffer.readline() == b"keep\\n" else "discarded")
tell(stage="done")
"""
QUICK = {"backbone": "mlp", "epochs": 30, "batch_size": 8}


@pytest.fixture(scope="session")
def pictures():
    """Return PNG files of digits by the name of the class."""
    data = digits()
    return {
        name: [png(image) for image in data.X_train[data.y_train == number][:20]]
        for number, name in enumerate(NAMES)
    }


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="session")
def two_versions(tmp_path_factory, pictures):
    """A model of four digits, learnt in two tasks."""
    path = tmp_path_factory.mktemp("trained") / "pets.lmrc"
    for names in (NAMES[:2], NAMES[2:4]):
        images = {name: [UploadedImage(c, name) for c in pictures[name]] for name in names}
        settings = {} if path.exists() else QUICK
        request = Request("digits", settings, device="cpu", keep=5)
        learn(path, request, images=images, quiet=True, say=lambda line: None)
    return path


@pytest.fixture(scope="session")
def calibrated(tmp_path_factory):
    """The path of a model of three digits that has probabilities."""
    data = digits()
    rows = np.flatnonzero(data.y_train < 3)[:150]
    model = lmrc.LMRCPlusClassifier(backbone="identity", random_state=0)
    model.partial_fit(data.X_train[rows], np.array(NAMES)[data.y_train[rows]])
    path = tmp_path_factory.mktemp("calibrated") / "pets.lmrc"
    model.save(path)
    return path


@pytest.fixture
def place(tmp_path, two_versions):
    """The path of a copy of the model."""
    return shutil.copytree(two_versions, tmp_path / "pets.lmrc")


@pytest.fixture
def serve():
    """Return what serves a path, with settings, to a client."""
    clients = []

    def start(path, **settings):
        app = create_app(Settings(path, device="cpu", **settings))
        client = TestClient(app, base_url="http://localhost")
        clients.append(client)
        return client.__enter__()

    yield start
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def client(place, serve):
    """A client of a server with one model, ``pets.lmrc``."""
    return serve(place)


@pytest.fixture
def wait():
    """Return what waits until a job is in one of some states."""

    def until(client, job, *states):
        while True:
            found = client.get(f"/v1/jobs/{job}").json()
            if found["state"] in states:
                return found
            assert found["state"] not in ("failed", "kept", "discarded", "cancelled"), found
            time.sleep(0.02)

    return until


@pytest.fixture
def fake_learner():
    """Return what lets the jobs of an application run a fake learner, and a program before."""

    def replace(app, before=""):
        program = FAKE.format(before=before)
        app.state.jobs.command = (sys.executable, "-S", "-c", program)

    return replace
