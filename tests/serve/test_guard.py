"""Who may ask what, and how much."""

import asyncio
import io

import pytest
from PIL import Image

from lmrc.serve.app import create_app
from lmrc.serve.settings import Settings

TOKEN = "a-token-of-some-length"
MODEL = "/v1/models/pets.lmrc"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def code(answer):
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_loopback_needs_no_token(host, tmp_path):
    Settings(tmp_path, host).check()


def test_token_is_needed_for_everything_but_health(place, serve):
    client = serve(place, token=TOKEN)
    assert client.get("/health").status_code == 200
    described = client.app.openapi()["paths"].items()
    routes = [(verb, path) for path, verbs in described for verb in verbs if path != "/health"]
    assert len(routes) > 15
    for verb, path in [*routes, ("get", "/openapi.json"), ("get", "/static/app.js")]:
        assert code(client.request(verb, path)) == (401, "no_token"), path
        assert client.request(verb, path, headers=BEARER).status_code != 401
    for wrong in (TOKEN[:-1], TOKEN + "x", "", "ü"):
        headers = {"Authorization": f"Bearer {wrong}".encode()}
        assert code(client.get("/v1/models", headers=headers)) == (401, "no_token")


def test_browser_signs_in(place, serve):
    client = serve(place, token=TOKEN)
    page = client.get("/")
    assert page.status_code == 401
    assert 'action="/sign-in"' in page.text
    assert client.post("/sign-in", data={"token": "wrong"}).status_code == 401
    entered = client.post("/sign-in", data={"token": TOKEN}, follow_redirects=False)
    assert entered.status_code == 303
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie
    assert client.get("/").status_code == 200
    assert client.get("/v1/models").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "10.0.0.1", "["])
def test_other_host_names_are_refused(client, host):
    assert code(client.get("/v1/models", headers={"Host": host})) == (421, "bad_host")


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:99", "LOCALHOST"])
def test_own_host_names_are_answered(client, host):
    assert client.get("/v1/models", headers={"Host": host}).status_code == 200


def test_host_names_of_a_public_server(place, serve):
    client = serve(place, host="0.0.0.0", token=TOKEN, hosts=("lmrc.example",))
    for host, status in (("lmrc.example", 200), ("10.1.2.3:80", 200), ("evil.example", 421)):
        assert client.get("/health", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_sites_cannot_change_anything(client, headers):
    assert code(client.post(f"{MODEL}/rollback", headers=headers)) == (403, "cross_site")
    assert len(client.get(MODEL).json()["versions"]) == 2


def test_own_page_can(client):
    headers = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert client.post(f"{MODEL}/rollback", headers=headers).status_code == 200


def test_too_large_requests_are_refused(place, serve):
    client = serve(place, max_upload=1000)
    assert code(client.post(f"{MODEL}/predict", content=bytes(1001))) == (413, "too_large")
    chunks = (bytes(400) for _ in range(3))  # without a length
    assert code(client.post(f"{MODEL}/predict", content=chunks)) == (413, "too_large")
    assert code(client.post(f"{MODEL}/forget", content=bytes(1001))) == (413, "too_large")


def test_too_many_bytes_at_once_are_told_to_wait(place, serve):
    client = serve(place, max_memory=1000)
    answer = client.post(f"{MODEL}/predict", content=bytes(1001))
    assert code(answer) == (429, "busy")
    assert int(answer.headers["retry-after"]) > 0


def test_too_many_images_are_refused(place, serve, pictures):
    client = serve(place, max_pictures=3)
    sent = [("image", (f"{i}.png", pictures["one"][0])) for i in range(4)]
    assert code(client.post(f"{MODEL}/predict", files=sent)) == (413, "too_many")
    job = client.post(f"{MODEL}/jobs").json()["id"]
    address = f"/v1/jobs/{job}/images?label=a"
    assert client.post(address, files=sent[:2]).status_code == 201
    assert code(client.post(address, files=sent[:2])) == (413, "too_many")


def test_full_queue_is_told_to_wait(place, serve, pictures):
    client = serve(place, max_queue=2)
    sent = [("image", (f"{i}.png", pictures["one"][0])) for i in range(3)]
    answer = client.post(f"{MODEL}/predict", files=sent)
    assert code(answer) == (429, "busy")
    assert answer.headers["retry-after"] == "1"


def test_image_of_too_many_pixels_is_not_decoded(place, serve):
    client = serve(place, max_pixels=10_000)
    file = io.BytesIO()
    Image.new("RGB", (101, 100)).save(file, "PNG")
    answer = client.post(f"{MODEL}/predict", content=file.getvalue())
    assert code(answer) == (422, "unreadable_image")
    assert "more than 10,000 pixels" in answer.json()["error"]["message"]


def test_slow_request_ends(place):
    """A client that sends the first bytes and no more does not hold a place for ever."""
    app, sent = create_app(Settings(place, request_seconds=0.01)), []

    async def receive():
        await asyncio.sleep(3600)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": f"{MODEL}/predict",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-length", b"10")],
    }
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 408
    assert b'"timeout"' in sent[1]["body"]


def test_every_response_has_the_headers(client):
    for answer in (client.get("/"), client.get("/nowhere"), client.get("/v1/models")):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers
