"""``lmrc export --web``: the page predicts in Chromium as the model does in Python."""

import base64
import io
import shutil
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

import lmrc
from lmrc.data.images import read_image
from lmrc.practice import web_page

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
SIZE = 9, 12  # height and width


def picture(width, height, mode="RGB"):
    """Return a smooth picture with some noise."""
    rng = np.random.default_rng(width)
    coarse = rng.integers(0, 256, (6, 6, len(mode)), dtype=np.uint8)
    image = Image.fromarray(coarse[..., 0] if mode == "L" else coarse)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    noise = rng.integers(-9, 10, np.asarray(image).shape)
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))


def content(image, form, **settings):
    file = io.BytesIO()
    image.save(file, form, **settings)
    return file.getvalue()


def rotated():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be rotated by 90 degrees
    return content(picture(46, 30), "JPEG", quality=95, exif=exif)


#: Pictures, and how far their pixels may be from ours: on average, and the most.
PICTURES = {
    "larger.png": (content(picture(200, 90), "PNG"), 0, 0),
    "smaller.png": (content(picture(8, 7), "PNG"), 0, 0),
    "same.png": (content(picture(12, 9), "PNG"), 0, 0),
    "wide.webp": (content(picture(90, 30), "WEBP", lossless=True), 0, 0),
    # Some versions of Pillow scale the height first: rounding differs.
    "high.png": (content(picture(70, 150), "PNG"), 0.5, 2),
    "grey.png": (content(picture(60, 60, "L"), "PNG"), 0, 0),
    "transparent.png": (content(picture(64, 50, "RGBA"), "PNG"), 0.5, 2),
    "photo.jpg": (content(picture(47, 40), "JPEG", quality=95), 0.2, 2),
    "rotated.jpg": (rotated(), 0.2, 2),
    "large.jpg": (content(picture(900, 700), "JPEG", quality=90), 1, 6),
}


@pytest.fixture(scope="module")
def model():
    """A model of colour pictures that has probabilities."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    X = np.clip(rng.normal(60 + 60 * y[:, None, None, None], 40, (60, *SIZE, 3)), 0, 255)
    clf = lmrc.LMRCPlusClassifier(backbone="identity", device="cpu", random_state=0)
    return clf.partial_fit(X.astype(np.uint8), np.array(["dark", "<b>grey</b>", "bright"])[y])


@pytest.fixture(scope="module")
def site(model, tmp_path_factory, onnx_operators):
    """The folder of the model's page."""
    try:
        web_page._fetched_package(print)
    except (ValueError, OSError) as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("web")
    model.save(folder / "light.lmrc")
    web_page.export_page(folder / "light.lmrc", folder / "out", say=lambda line: None)
    return folder / "out"


@contextmanager
def opened(browser, address):
    """Open the page; errors of scripts and refusals of the policy fail the test."""
    context, errors = browser.new_context(permissions=["camera"]), []
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto(address)
    page.locator("#classify-drop").wait_for()
    yield page
    context.close()
    assert not errors


@pytest.fixture(scope="module")
def page(browser, site):
    """The page, opened from disk."""
    with opened(browser, (site / "index.html").as_uri()) as page:
        yield page


CALL = """async ([name, text]) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const file = new File([bytes], name);
    const [prediction] = await lmrc.predict([file], 3);
    return { pixels: [...await lmrc.pixelsOf(file)], prediction };
}"""


@pytest.mark.parametrize("name", PICTURES)
def test_pixels_and_predictions_are_the_models(page, model, name):
    data, mean, most = PICTURES[name]
    found = page.evaluate(CALL, [name, base64.b64encode(data).decode()])
    pixels = np.array(found["pixels"], dtype=np.uint8).reshape(1, *SIZE, 3)
    wanted = read_image(io.BytesIO(data), SIZE)[None]
    difference = np.abs(pixels.astype(int) - wanted)
    assert difference.mean() <= mean
    assert difference.max() <= most
    told = {s["class"]: s["similarity"] for s in found["prediction"]["best"]}
    scores = model.similarities(pixels)[0]
    np.testing.assert_allclose([told[c] for c in model.classes_], scores, atol=1e-3)
    told = {s["class"]: s["probability"] for s in found["prediction"]["best"]}
    expected = model.predict_proba(pixels)[0]
    np.testing.assert_allclose([told[c] for c in model.classes_], expected, atol=1e-3)
    unknown = model.unknown_scores(pixels)[0] - model.unknown_threshold()
    assert found["prediction"]["known"] == (unknown <= 0) or abs(unknown) < 1e-3
    assert found["prediction"]["best"][0]["class"] == model.predict(wanted)[0]


def test_the_same_from_a_web_server(page, browser, site):
    serve = partial(QuietHandler, directory=site)
    name, (data, _, _) = next(iter(PICTURES.items()))
    words = [name, base64.b64encode(data).decode()]
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with opened(browser, f"http://127.0.0.1:{server.server_port}/") as served:
            assert served.evaluate(CALL, words) == page.evaluate(CALL, words)
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_page_shows_answers_as_text(page):
    black = content(Image.new("RGB", (50, 50), (120, 120, 120)), "PNG")
    files = [("black.png", black), ("notes.png", b"no picture")]
    page.locator("#classify-files").set_input_files(
        [{"name": name, "mimeType": "image/png", "buffer": data} for name, data in files]
    )
    page.locator(".prediction .problem").wait_for()
    assert "cannot read the file" in page.locator(".prediction").nth(1).inner_text()
    assert "<b>grey</b>" in page.locator(".prediction").nth(0).inner_text()
    page.get_by_role("button", name="Use the webcam").click()
    sync_api.expect(page.locator("figcaption")).not_to_be_empty()
    page.get_by_role("button", name="Stop the webcam").click()


def test_nothing_can_be_sent(browser, site):
    """The page's policy forbids connections, whatever its scripts do."""
    context = browser.new_context()
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    with page.expect_console_message(lambda m: "Content Security Policy" in m.text):
        page.evaluate("fetch('http://127.0.0.1:9/').catch(() => null)")
    context.close()


def test_licences_are_beside_it(site):
    assert "Microsoft" in (site / "LICENSE-onnxruntime.txt").read_text()
    assert (site / "ThirdPartyNotices-onnxruntime.txt").stat().st_size > 1000


def test_without_npm(call, model, tmp_path, monkeypatch):
    monkeypatch.setenv("LMRC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    model.save(tmp_path / "m")
    code, _, err = call("export", str(tmp_path / "m"), str(tmp_path / "out"), "--web")
    assert code == 2
    assert "npm is not installed" in err
    assert "--onnxruntime-web" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_other_package_than_expected(call, model, tmp_path, monkeypatch):
    """What npm returns is checked; nothing of it is kept."""
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho something > onnxruntime-web.tgz\n")
    npm.chmod(0o755)
    monkeypatch.setenv("LMRC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda name: str(npm))
    model.save(tmp_path / "m")
    code, _, err = call("export", str(tmp_path / "m"), str(tmp_path / "out"), "--web")
    assert code == 1
    assert "another checksum" in err
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["out", "--web", "--onnxruntime-web", "empty"], "is not the npm package"),
        (["m.txt", "--web"], "is a file"),
        (["empty"], "add --web"),
        (["m.onnx", "--onnxruntime-web", "empty"], "is for --web"),
    ],
)
def test_wrong_arguments(call, model, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "m.txt").touch()
    model.save("m")
    code, _, err = call("export", "m", *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
