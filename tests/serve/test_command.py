"""``lmrc serve`` as a process: options, address, signals, sudden death."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lmrc
from lmrc.store import folder as store


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "give a token"),
        (["--host", "::"], "give a token"),
        (["--host", "192.168.1.4"], "give a token"),
        (["--host", "example.org"], "give a token"),
        (["--workers", "2"], "--workers needs --read-only"),
        (["--token", "short"], "at least 16 characters"),
    ],
)
def test_unsafe_options_are_one_line(call, tmp_path, words, message):
    code, _, err = call("serve", str(tmp_path / "m"), *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_folder_of_other_things(call, tmp_path):
    (tmp_path / "notes.txt").touch()
    code, _, err = call("serve", str(tmp_path))
    assert code == 1
    assert "holds other files (notes.txt, …) and no model" in err


def test_port_in_use(call, place):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = call("serve", str(place), "--port", str(port))
    assert code == 1
    assert f"cannot listen on 127.0.0.1, port {port}" in err


def test_without_the_extra(call, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "lmrc.serve.app", None)
    code, _, err = call("serve", str(place))
    assert code == 2
    assert "pip install '.[serve]' in lmrc's folder" in err
    assert err.count("\n") == 1


def start(path, *words):
    """Start a server; return its process and its address."""
    command = [sys.executable, "-m", "lmrc", "serve", str(path), "--port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert "pets.lmrc at http://127.0.0.1:" in line, line
    address = line.split(" at ")[1].split()[0]
    wait_for(address)
    return process, address


def wait_for(address):
    for _ in range(6000):  # minutes, on a busy machine
        try:
            urllib.request.urlopen(f"{address}/health").close()
            return
        except OSError:
            time.sleep(0.05)
    pytest.fail(f"no server at {address}")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def post(address, content=b"", kind="application/json"):
    asked = urllib.request.Request(address, content, {"Content-Type": kind}, method="POST")
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)


def test_killed_server_leaves_the_model_and_ends_the_learner(place, pictures, call):
    before = store.fingerprint(place)
    process, address = start(place)
    job = post(f"{address}/v1/models/pets.lmrc/jobs")["id"]
    for label in ("four", "five"):
        for content in pictures[label][:3]:
            post(f"{address}/v1/jobs/{job}/images?label={label}", content, "image/png")
    post(f"{address}/v1/jobs/{job}/learn", b"{}")
    while not (holder := store.changing(place)):  # the learner has the lock
        time.sleep(0.02)
    learner = int(holder.split()[1])
    process.kill()
    process.communicate()
    while True:
        try:
            os.kill(learner, 0)
        except ProcessLookupError:
            break
        if ") Z " in stat_of(learner):
            break  # its parent is gone, and no one has waited for it
        time.sleep(0.02)
    assert store.fingerprint(place) == before
    assert lmrc.load(place).classes_.tolist() == ["one", "zero", "three", "two"]
    # The next server goes on with it; in this process, which is quicker.
    address = f"http://127.0.0.1:{(port := free_port())}"

    def roll_back_and_stop():
        wait_for(address)
        try:
            post(f"{address}/v1/models/pets.lmrc/rollback")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor() as threads:
        stopped = threads.submit(roll_back_and_stop)
        code, out, err = call("serve", str(place), "--port", str(port))
        stopped.result()
    assert (code, out.splitlines()[1:], err) == (0, ["stopped"], "")
    assert lmrc.load(place).classes_.tolist() == ["one", "zero"]


def test_several_processes_predict_and_change_nothing(place, pictures):
    process, address = start(place, "--workers", "2", "--read-only")
    model = f"{address}/v1/models/pets.lmrc"
    found = [post(f"{model}/predict", pictures["one"][0], "image/png") for _ in range(4)]
    assert {answer["predictions"][0]["class"] for answer in found} == {"one"}
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(f"{model}/rollback")
    refused.value.close()
    assert refused.value.code == 403
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 0


def stat_of(process):
    try:
        return Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
