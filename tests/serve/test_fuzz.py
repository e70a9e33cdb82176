"""Malformed requests, odd images and what the OpenAPI description allows: never a 500."""

import random
import runpy
from pathlib import Path

import pytest

MODEL = "/v1/models/pets.lmrc"
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")
WORDS = (
    "/", "v1", "models", "pets.lmrc", "predict", "jobs", "learn", "images", "events", "keep", "..",
    "%2e%2e", "%00", "static", "onnx", "folder", "rename", "forget", "ü", "%ff", "?top=", "?label=",
    "&val=", "-1", "1e999", "nan", "null", "{}", "a" * 300,
)  # fmt: skip
TYPES = (
    "application/json", "multipart/form-data", "multipart/form-data; boundary=x", "image/png", "",
    "multipart/form-data; boundary=" + "b" * 300, "text/plain; charset=\u00ff", "application/zip",
)  # fmt: skip
BODIES = (
    b"", b"{", b"[]", b"null", b'{"class": 3}', b'{"class": "one"}', b'{"val": 9}', b"\xff" * 40,
    b'--x\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\nc\r\n--x--\r\n',
    b'--x\r\nContent-Disposition: form-data\r\n\r\nc\r\n--x--\r\n', b"--x\r\n", b"--x--\r\n",
    b'--x\r\nContent-Disposition: form-data; name="\xff"; filename="\xff"\r\n\r\nc\r\n--x--\r\n',
    b"[" * 5000, b'{"class": "\\ud800", "to": "x"}', b'{"class": "one", "to": "\\u0000"}',
)  # fmt: skip
HEADERS = (
    ("Content-Length", "-5"), ("Content-Length", "x"), ("Transfer-Encoding", "chunked"),
    ("Authorization", "Bearer"), ("Authorization", "\u00fc"), ("Cookie", "lmrc=\u00ff; ;;="),
    ("Origin", "http://["), ("Host", "["), ("Sec-Fetch-Site", "x"), ("Accept", "\u00ff"),
    ("Expect", "100-continue"), ("Range", "bytes=9-1"), ("X-Forwarded-Proto", "https"),
)  # fmt: skip


@pytest.fixture
def safe(place, serve):
    """A client of a server that learns nothing, whose errors are responses."""
    client = serve(place, hosts=("testserver",))
    client.app.state.jobs.command = ("false",)
    client.raise_server_exceptions = False
    return client


def check(answer):
    """No unexpected error; an error has the one form."""
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400 and answer.request.method != "HEAD":
        assert set(answer.json()["error"]) == {"code", "message"}


def test_malformed_requests(safe, request):
    rng, is_full = random.Random(0), request.config.getoption("torture")
    described = safe.app.openapi()["paths"].items()
    routes = [(verb.upper(), path) for path, verbs in described for verb in verbs]
    for _ in range(10_000 if is_full else 500):
        method, path = rng.choice(METHODS), "/" + "/".join(rng.choices(WORDS, k=rng.randint(1, 5)))
        if rng.random() < 0.7:
            method, path = rng.choice(routes)
            path = path.replace("{model}", "pets.lmrc").replace("{image}", "none")
            if "{job}" in path:
                path = path.replace("{job}", safe.post(f"{MODEL}/jobs").json()["id"])
            path += rng.choice(("", "?label=a", "?top=x", "?label=%00", "?val=nan"))
        headers = {"Content-Type": rng.choice(TYPES)}
        if rng.random() < 0.3:
            headers |= [rng.choice(HEADERS)]
        body = bytearray(rng.choice(BODIES))
        if body and rng.random() < 0.3:
            body[rng.randrange(len(body))] = rng.randrange(256)
        if "onnx" in path or "events" in path:  # slow, or without end
            continue
        sent = {name: value.encode("latin-1") for name, value in headers.items()}
        address = f"http://localhost{path}"
        check(safe.request(method, address, content=bytes(body), headers=sent))


def test_odd_images_as_uploads(safe):
    """Those of the torture suite: each is predicted and collected, or refused with the reason."""
    zoo = runpy.run_path(str(Path(__file__).parents[1] / "torture" / "test_images.py"))
    job = safe.post(f"{MODEL}/jobs").json()["id"]
    for name, (content, expected) in zoo["odd_images"]().items():
        is_good = expected == zoo["GOOD"]
        answer = safe.post(f"{MODEL}/predict", content=content)
        assert answer.status_code == (200 if is_good else 422 if content else 400), name
        check(answer)
        sent = [("image", (name, content))]
        (added,) = safe.post(f"/v1/jobs/{job}/images?label=a", files=sent).json()["added"]
        assert (added["error"] is None) == is_good, name


def test_openapi_description(safe):
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error

    schema = schemathesis.openapi.from_asgi("/openapi.json", safe.app)
    slow = ("/v1/models/{model}/onnx", "/v1/jobs/{job}/events")
    n = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path in slow:
            continue

        @given(case=operation.as_strategy())
        @settings(
            max_examples=8,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        def ask(case):
            if "model" in case.path_parameters:
                case.path_parameters["model"] = "pets.lmrc"
            if "job" in case.path_parameters:
                case.path_parameters["job"] = safe.post(f"{MODEL}/jobs").json()["id"]
            case.call_and_validate(checks=[not_a_server_error])

        ask()
        n += 1
    assert n > 15
