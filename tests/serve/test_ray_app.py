"""Replicas of Ray Serve that read one model folder."""

import json
import socket
import urllib.request

import pytest

from lmrc.practice.usage import UsageError
from lmrc.serve import ray_app

TOKEN = "a-token-of-some-length"


def test_replicas_only_predict_and_need_a_token(place):
    settings = ray_app.settings_from({"path": place, "token": TOKEN, "allow_host": "a.org,b.org"})
    assert settings.read_only
    assert settings.hosts == ("a.org", "b.org")
    with pytest.raises(UsageError, match="give a token"):
        ray_app.settings_from({"path": place})
    with pytest.raises(UsageError, match="path is missing"):
        ray_app.settings_from({"token": TOKEN})
    with pytest.raises(UsageError, match="no argument 'tokn'"):
        ray_app.settings_from({"path": place, "tokn": TOKEN})


def test_predicts_and_switches_versions_on_ray(place, pictures, monkeypatch, call):
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "120")  # a busy machine takes longer
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Half a minute: .ci/run does not install it.
    missing = "ray[serve] is not installed: pip install '.[serve,ray-serve]' runs this test"
    ray = pytest.importorskip("ray", reason=missing)
    serve = pytest.importorskip("ray.serve", reason=missing)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def predicted():
        address = f"http://127.0.0.1:{port}/v1/models/pets.lmrc/predict"
        headers = {"Content-Type": "image/png", "Authorization": f"Bearer {TOKEN}"}
        asked = urllib.request.Request(address, pictures["one"][0], headers)
        with urllib.request.urlopen(asked, timeout=300) as answer:
            return json.load(answer)["predictions"][0]["class"]

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        serve.start(http_options={"port": port}, logging_config={"log_level": "ERROR"})
        serve.run(ray_app.build({"path": str(place), "token": TOKEN, "replicas": 1}))
        assert predicted() == "one"
        assert call("rename", str(place), "one", "uno")[0] == 0
        while (found := predicted()) != "uno":
            assert found == "one"
    finally:
        serve.shutdown()
        ray.shutdown()
