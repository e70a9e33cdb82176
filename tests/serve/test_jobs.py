"""Learning by the API, in a process of its own."""

import asyncio
import io
import json
import os
import random
import shutil
import sys
import threading
import time

import pytest
from fastapi.testclient import TestClient
from PIL import Image, ImageOps

import lmrc
from lmrc.lock import LockedError
from lmrc.serve import job_routes
from lmrc.serve.app import create_app
from lmrc.serve.jobs import Job
from lmrc.serve.settings import Settings
from lmrc.store import folder as store

MODEL = "/v1/models/pets.lmrc"

# The real learner, killed at the n-th step: something it tells, or a change of the model's folder.
KILLED = """
import os, signal, sys
from lmrc.serve import learner
steps, told = 0, learner.tell
def step():
    global steps
    steps += 1
    if steps == {0}:
        os.kill(os.getpid(), signal.SIGKILL)
def tell(**what):
    told(**what)
    step()
def hook(event, args):
    if event == "open" and not (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return
    if event in ("open", "os.rename", "os.mkdir", "os.remove") and "pets.lmrc" in str(args[0]):
        step()
learner.tell = tell
sys.addaudithook(hook)
learner.main()
"""
WRITING, STEPS = 40, 55  # the step before the model is written; the last of thirty epochs' task


def code(answer):
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture
def fake(client, fake_learner):
    """Return what lets the fake learner run a program first."""
    fake_learner(client.app)
    return lambda before="": fake_learner(client.app, before)


def form(pictures, *names, n=10):
    return [(name, (f"{i}.png", pictures[name][i])) for name in names for i in range(n)]


def start(client, pictures):
    answer = client.post(f"{MODEL}/learn", files=form(pictures, "four", "five", n=2))
    assert answer.status_code == 202
    return answer.json()["id"]


def follow(client, job):
    """Wait until a job has ended."""
    assert client.get(f"/v1/jobs/{job}/events").status_code == 200


def test_teach_keep_ask(tmp_path, serve, pictures, wait, monkeypatch):
    """A model that does not exist yet learns two classes, then predicts."""
    told, progress = [], []

    def update(job, change=Job.update, **values):
        change(job, **values)
        progress.append(job.describe()["progress"])

    monkeypatch.setattr(Job, "update", update)  # a stream may miss some, if much is told at once
    client = serve(tmp_path / "pets.lmrc")
    assert client.get(MODEL).json()["empty"]
    assert code(client.post(f"{MODEL}/predict", content=b"x")) == (409, "empty_model")
    job = client.post(f"{MODEL}/jobs").json()["id"]
    for label in ("zero", "one"):
        sent = [("image", (f"{i}.png", c)) for i, c in enumerate(pictures[label])]
        answer = client.post(f"/v1/jobs/{job}/images", params={"label": label}, files=sent)
        assert [a["error"] for a in answer.json()["added"]] == [None] * 20
    assert answer.json()["job"]["images"] == {"zero": 20, "one": 20}
    options = {"backbone": "mlp", "epochs": 10}
    assert client.post(f"/v1/jobs/{job}/learn", json=options).status_code == 202
    assert client.app.state.jobs.held == 0  # the images have left the server
    thread = threading.Thread(target=lambda: told.append(client.get(f"/v1/jobs/{job}/events").text))
    thread.start()
    wait(client, job, "waiting")
    assert client.get(MODEL).json()["empty"]  # nothing is written before Keep
    assert client.post(f"/v1/jobs/{job}/keep").json()["state"] == "kept"
    thread.join()
    assert told[0].startswith("event: job\ndata: {")
    events = [event for event in told[0].split("\n\n")[:-1] if event != ": alive"]
    states = [json.loads(event.partition("data: ")[2]) for event in events]
    assert states[-1]["state"] == "kept"
    assert any(found["done"] == 9 and found["seconds_left"] for found in progress)
    assert states[-1]["result"]["new_tested"] == 8
    assert states[-1]["result"]["new_accuracy"] > 0.5
    answer = client.post(f"{MODEL}/predict", files=form(pictures, "zero", "one", n=5))
    found = [p["class"] for p in answer.json()["predictions"]]
    assert found == ["zero"] * 5 + ["one"] * 5
    assert not store.changing(tmp_path / "pets.lmrc")
    assert lmrc.load(tmp_path / "pets.lmrc").classes_.tolist() == ["one", "zero"]


def test_a_frozen_backbone_learns_all_images(calibrated, serve, pictures, wait, tmp_path):
    place = shutil.copytree(calibrated, tmp_path / "pets.lmrc")
    client = serve(place)
    job = client.post(f"{MODEL}/learn", files=form(pictures, "four", "five")).json()["id"]
    result = wait(client, job, "waiting")["result"]
    why = r"\d, whose result waits in lmrc serve for Keep or Discard: wait until that has ended"
    with pytest.raises(LockedError, match=why), store.writing(place):
        pass
    assert (result["images"], result["new_tested"], result["left_out"]) == (20, 20, True)
    assert 0.5 < result["new_accuracy"] <= 1
    client.post(f"/v1/jobs/{job}/keep")
    assert len(lmrc.load(place).classes_) == 5


def test_discard_and_cancel_leave_the_model(client, fake, pictures, wait, place):
    before = store.fingerprint(place)
    job = start(client, pictures)
    found = wait(client, job, "waiting")
    assert found["warnings"] == ["few images of zero in pets.lmrc"]
    rename = {"class": "one", "to": "uno"}
    for answer in (
        client.post(f"{MODEL}/learn", files=form(pictures, "four")),
        client.post(f"{MODEL}/rename", json=rename),
        client.post(f"{MODEL}/forget", json={"class": "one"}),
        client.post(f"{MODEL}/rollback"),
    ):
        assert code(answer) == (409, "busy")
        assert "is waiting in Teach: keep or discard it first" in answer.text
    assert client.post(f"/v1/jobs/{job}/discard").json()["state"] == "discarded"
    assert code(client.post(f"/v1/jobs/{job}/keep")) == (409, "not_waiting")
    job = start(client, pictures)
    wait(client, job, "waiting")
    assert client.delete(f"/v1/jobs/{job}").json()["state"] == "cancelled"
    assert store.fingerprint(place) == before


def test_a_job_can_be_cancelled_while_its_process_starts(
    client, fake, pictures, place, monkeypatch
):
    fake("tell(stage='done'); sys.exit()")
    jobs, before = client.app.state.jobs, store.fingerprint(place)
    start_process = jobs._start_process

    async def slowly():
        while not any(job.state == "cancelled" for job in jobs):
            await asyncio.sleep(0.01)
        return await start_process()

    monkeypatch.setattr(jobs, "_start_process", slowly)
    job = start(client, pictures)
    assert client.delete(f"/v1/jobs/{job}").json()["state"] == "cancelled"
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled"
    assert store.fingerprint(place) == before


def test_learner_that_dies(client, fake, pictures, wait, place):
    fake("os.kill(os.getpid(), 9)")
    job = start(client, pictures)
    found = wait(client, job, "failed")
    assert found["error"]["code"] == "learner_died"
    fake()
    job = start(client, pictures)
    assert wait(client, job, "waiting")["progress"]["done"] == 1


def test_learner_that_fails_tells_why(client, fake, pictures, wait, place):
    fake("tell(error=task['path'] + ' is full', kind='OSError'); sys.exit()")
    found = wait(client, start(client, pictures), "failed")
    assert found["error"] == {"code": "failed", "message": "pets.lmrc is full"}


def test_time_limits(place, serve, pictures, wait, fake_learner):
    client = serve(place, learn_seconds=0.3)
    fake_learner(client.app, "time.sleep(60)")
    found = wait(client, start(client, pictures), "failed")
    assert found["error"]["code"] == "timeout"


def test_no_decision_in_time_discards(place, serve, pictures, wait, fake_learner):
    client = serve(place, decision_seconds=0.0)
    fake_learner(client.app)
    found = wait(client, start(client, pictures), "discarded")
    assert found["error"]["code"] == "timeout"


def test_locked_or_unfinished_model_is_not_learnt(client, fake, pictures, place):
    with store.writing(place):
        answer = client.post(f"{MODEL}/learn", files=form(pictures, "four"))
        assert code(answer) == (409, "locked")
    (place / "unfinished.json").write_text("{}")
    assert code(client.post(f"{MODEL}/learn", files=form(pictures, "four"))) == (409, "unfinished")
    assert client.get("/v1/jobs").json()["jobs"][-1]["state"] == "cancelled"


def test_check_of_images(client, pictures):
    job = client.post(f"{MODEL}/jobs").json()["id"]
    same = [("image", ("a.png", pictures["one"][0])), ("image", ("b.png", pictures["one"][0]))]
    answer = client.post(f"/v1/jobs/{job}/images?label=one", files=same).json()
    assert [f["code"] for f in answer["findings"]] == ["duplicate", "few"]
    assert answer["findings"][0]["images"] == [answer["added"][1]["id"]]
    answer = client.post(f"/v1/jobs/{job}/images?label=two", files=same[:1]).json()
    assert "two_classes" in [f["code"] for f in answer["findings"]]
    mirrored = io.BytesIO()
    ImageOps.mirror(Image.open(io.BytesIO(pictures["four"][0]))).save(mirrored, "PNG")
    for label, content in (("four", pictures["four"][0]), ("six", mirrored.getvalue())):
        sent = [("image", (f"{label}.png", content))]
        more = client.post(f"/v1/jobs/{job}/images?label={label}", files=sent).json()
    text = "four.png of four and six.png of six are nearly the same"
    assert text in [f["message"] for f in more["findings"]]
    for entry in more["findings"]:
        if entry["message"] == text:
            client.patch(f"/v1/jobs/{job}/images", json={"images": entry["images"], "class": None})
    image = answer["added"][0]["id"]
    for label, other in (("ONE", "one"), ("T-WO", "two")):  # of the job; of the model
        moved = {"images": [image], "class": label}
        more = client.patch(f"/v1/jobs/{job}/images", json=moved).json()["findings"]
        text = f"{label} has nearly the same name as {other}: if they are the same class, "
        assert text + "give them the same name" in [f["message"] for f in more]
    for label, left in (("three", {"one": 2, "three": 1}), (None, {"one": 2})):
        moved = {"images": [image, "gone"], "class": label}
        answer = client.patch(f"/v1/jobs/{job}/images", json=moved).json()
        assert answer["job"]["images"] == left
    bad = client.post(f"/v1/jobs/{job}/images?label=two", files=[("i", ("c.txt", b"c"))]).json()
    assert bad["added"][0]["error"]["code"] == "unreadable_image"
    assert bad["job"]["images"] == {"one": 2}


def test_a_job_that_is_cancelled_while_images_arrive_keeps_none(client, pictures, monkeypatch):
    jobs, decode = client.app.state.jobs, job_routes.decode

    async def cancelled_meanwhile(*words):
        found = await decode(*words)
        await jobs.cancel(jobs.get(job))
        return found

    monkeypatch.setattr(job_routes, "decode", cancelled_meanwhile)
    job = client.post(f"{MODEL}/jobs").json()["id"]
    sent = [("image", ("a.png", pictures["one"][0]))]
    answer = client.post(f"/v1/jobs/{job}/images?label=one", files=sent)
    assert code(answer) == (409, "not_collecting")
    assert not jobs.held


@pytest.mark.parametrize("label", ["", " ", "a\nb", "x" * 101, "\ud800"])
def test_names_that_cannot_be_classes(client, label, pictures):
    job = client.post(f"{MODEL}/jobs").json()["id"]
    sent = [("image", ("a.png", pictures["one"][0]))]
    label = label.encode(errors="surrogatepass")
    from urllib.parse import quote

    answer = client.post(f"/v1/jobs/{job}/images?label={quote(label)}", files=sent)
    if label != b"\xed\xa0\x80":  # which arrives as a replacement character
        assert code(answer) == (422, "invalid_request")


def test_collected_images_are_dropped_after_a_while(client, monkeypatch):
    job = client.post(f"{MODEL}/jobs").json()["id"]
    monkeypatch.setattr("lmrc.serve.jobs.IDLE_SECONDS", 0.0)
    assert code(client.get(f"/v1/jobs/{job}")) == (404, "no_job")


def test_end_of_the_server_ends_the_learner(place, pictures, wait, fake_learner):
    app = create_app(Settings(place))
    fake_learner(app)
    with TestClient(app, base_url="http://localhost") as client:
        job = start(client, pictures)
        wait(client, job, "waiting")
        process = app.state.jobs.get(job).process.pid
    for _ in range(30_000):  # minutes, on a busy machine
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail("the learner still runs")


def test_killed_learner_leaves_a_whole_model(client, pictures, place, request, fake_learner):
    """Killed while it writes, it leaves the model as before or as after, and says which.

    In `make torture`, killed at any step, again and again.
    """
    is_full, rng = request.config.getoption("torture"), random.Random(os.getpid())
    for _ in range(100 if is_full else 1):
        before, moment = store.fingerprint(place), rng.randrange(1 if is_full else WRITING, STEPS)
        known = len(lmrc.load(place).classes_)
        jobs = client.app.state.jobs
        jobs.command = (sys.executable, "-c", KILLED.replace("{0}", str(moment)))
        sent = form(pictures, "five", "four", n=4)
        job = client.post(f"{MODEL}/learn?keep=true", files=sent).json()["id"]
        follow(client, job)
        state = client.get(f"/v1/jobs/{job}").json()["state"]
        changed = store.fingerprint(place) != before
        assert state == ("kept" if changed else "failed"), moment
        found = client.get(MODEL).json()
        assert len(found["classes"]) == (6 if changed else known), moment
        answer = client.post(f"{MODEL}/predict?top=9", files=form(pictures, "one", n=1)).json()
        named = {entry["class"] for entry in answer["predictions"][0]["best"]}
        assert named == {entry["name"] for entry in found["classes"]}, moment
        assert set(lmrc.load(place).classes_.tolist()) == named
        assert not store.changing(place)
        if changed:
            assert client.post(f"{MODEL}/rollback").status_code == 200
    fake_learner(client.app)
    assert client.post(f"{MODEL}/learn", files=form(pictures, "four")).status_code == 202
