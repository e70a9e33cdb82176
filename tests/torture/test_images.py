"""Odd images and folders: each is learnt, or reported with the reason."""

import io
import json
import os
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lmrc.data.images import UnreadableImageError, read_image

GOOD, BAD = "is read", "is left out"
NOISE = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)


def encoded(form, image=None, **settings):
    file = io.BytesIO()
    (image or Image.fromarray(NOISE)).save(file, form, **settings)
    return file.getvalue()


def png_that_claims(width, height):
    """Return a PNG file of a few bytes whose header claims that many pixels."""

    def chunk(kind, content):
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + content + chunk(b"IEND", b"")


def odd_images():
    """Return files by name, each with the expected result."""
    plain, grey = Image.fromarray(NOISE), NOISE[..., 0]
    palette = plain.convert("P")
    rotated = Image.Exif()
    rotated[0x0112] = 6
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "green", "blue")]
    jpeg, png = encoded("JPEG"), encoded("PNG")
    return {
        "truncated.jpg": (jpeg[: len(jpeg) // 2], BAD),
        "truncated.png": (png[: len(png) // 2], BAD),
        "empty.png": (b"", BAD),
        "text.jpg": (b"this is no image", BAD),
        "program.png": (b"\x7fELF" + bytes(100), BAD),
        "postscript.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", BAD),
        "vector.png": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", BAD),
        "bomb.png": (png_that_claims(30_000, 30_000), BAD),
        "bomb.bmp": (b"BM" + struct.pack("<IHHIIiiHH", 90, 0, 0, 54, 40, 2**30, 2**30, 1, 24), BAD),
        "claims-more.png": (png_that_claims(2000, 2000), BAD),
        "no-pixels.png": (png_that_claims(0, 0), BAD),
        "really-a-png.jpg": (png, GOOD),
        "capitals.JPEG": (jpeg, GOOD),
        "cmyk.jpg": (encoded("JPEG", plain.convert("CMYK")), GOOD),
        "cmyk.tif": (encoded("TIFF", plain.convert("CMYK")), GOOD),
        "16-bit.png": (encoded("PNG", Image.fromarray(grey.astype(np.uint16) * 257)), GOOD),
        "float.tif": (encoded("TIFF", Image.fromarray(grey.astype(np.float32))), BAD),
        "palette.gif": (encoded("GIF", palette), GOOD),
        "palette-alpha.png": (encoded("PNG", palette, transparency=bytes(range(256))), GOOD),
        "alpha.webp": (encoded("WEBP", plain.convert("RGBA")), GOOD),
        "grey-alpha.png": (encoded("PNG", plain.convert("LA")), GOOD),
        "black-or-white.png": (encoded("PNG", plain.convert("1")), GOOD),
        "lab.tif": (encoded("TIFF", Image.fromarray(NOISE, "LAB")), GOOD),
        "rotated.jpg": (encoded("JPEG", exif=rotated), GOOD),
        "animated.gif": (encoded("GIF", frames[0], save_all=True, append_images=frames[1:]), GOOD),
        "animated.webp": (encoded("WEBP", frames[0], save_all=True, append_images=frames), GOOD),
        "one-pixel.png": (encoded("PNG", Image.new("RGB", (1, 1))), GOOD),
        "20000-wide.png": (encoded("PNG", Image.new("RGB", (20_000, 3))), GOOD),
        "20000-high.jpg": (encoded("JPEG", Image.new("L", (2, 20_000))), GOOD),
        "junk-behind.png": (png + bytes(1000), GOOD),
        "name with spaces, ünï© and 🐈.png": (png, GOOD),
        "-dash.png": (png, GOOD),
        "new\nline.png": (png, GOOD),
    }  # fmt: skip


@pytest.fixture
def start(place, run_job):
    """A model ``m`` of colour images."""
    for name in ("zebra", "horse"):
        Path("start", name).mkdir(parents=True)
        for i in range(3):
            Path("start", name, f"{i}.png").write_bytes(encoded("PNG"))
    learn("start", run_job, "m")


def learn(source, run_job, model="n"):
    shutil.rmtree(model, ignore_errors=True)
    return run_job("learn", model, source, "--epochs", "1", "--backbone", "mlp", "--device", "cpu")


def test_odd_images(start, run_job, trial, is_full):
    images = odd_images()
    per_trial = 1 if is_full else len(images)
    for first in range(0, len(images), per_trial):
        names = list(images)[first : first + per_trial]
        good = [name for name in names if images[name][1] is GOOD]
        n_bad = len(names) - len(good)
        shutil.rmtree("odd", ignore_errors=True)
        shutil.copytree("start", "odd")
        paths = [Path("odd/zebra") / name for name in names]
        for path in paths:
            path.write_bytes(images[path.name][0])
        with trial("odd image, learnt and predicted", f"{names}"):
            done = learn("odd", run_job)
            assert done["code"] == 0, done["said"]
            assert f"{6 + len(good)} images for training" in done["said"], done["said"]
            assert not n_bad or f"left out {n_bad} file" in done["said"]
            predicted = run_job("predict", "m", "--json", "--", *map(str, paths), "start")
            assert predicted["code"] == (1 if n_bad else 0), predicted["said"]
            rows = [json.loads(row) for row in predicted["said"].splitlines() if row[0] == "{"]
            assert len(rows) == len(names) + 6, "one stopped the others"
            with_class = {Path(row["path"]).name for row in rows[:-6] if "class" in row}
            assert with_class == set(good)
            assert all(path.read_bytes() == images[path.name][0] for path in paths)


def damaged_images(rng, n):
    whole = [encoded(form) for form in ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")]
    for i in range(n):
        content = bytearray(whole[i % len(whole)])
        for at in rng.integers(0, len(content), int(rng.integers(1, 5))):
            content[at] = int(rng.integers(256))
        end = int(rng.integers(1, len(content))) if rng.random() < 0.3 else None
        yield bytes(content[:end])


def test_damaged_images(trial, is_full):
    contents = damaged_images(np.random.default_rng(3), 10_000 if is_full else 300)
    for i, content in enumerate(contents):
        with trial("damaged image", f"seed 3, number {i}"):
            try:
                assert read_image(io.BytesIO(content), 8).shape == (8, 8, 3)
            except UnreadableImageError:
                continue


def put(place, *names):
    """Save an image at each of these paths."""
    for name in names:
        Path(place, name).parent.mkdir(parents=True, exist_ok=True)
        Path(place, name).write_bytes(encoded("PNG"))


def odd_folders():
    """Create folders; yield each with its number of classes, or the expected error."""
    put("spaces in it", "a cat/1.png", "a dog/ 2 .png")
    yield "spaces in it", 2
    names = ("Kätzchen", "猫", "кот", "🐈", "e\u0301", "é")
    put("ünïcode 🐈", *(f"{name}/1.png" for name in names))
    yield "ünïcode 🐈", 5  # the last two are one name in two forms
    put("nested", "cat/a/b/c/d/e/f/g/1.png", "cat/2.png", "dog/1.png")
    yield "nested", 2
    put("deep", f"cat/{'d/' * 300}1.png", "dog/1.png")
    yield "deep", 2
    put("long", f"{'l' * 250}/1.png", "dog/1.png")
    yield "long", 2
    put("odd names", "a,b/1.png", 'a"b/1.png', "-q/1.png", "new\nline/1.png", "%s{0}/1.png")
    yield "odd names", 5
    put("no encoding", os.fsdecode(b"\xff\xfe/1.png"), "dog/1.png")
    yield "no encoding", 2
    put("one class", "cat/1.png", "cat/2.png")
    yield "one class", 1
    put("one image each", "cat/1.png", "dog/1.png")
    yield "one image each", 2
    Path("empty").mkdir()
    yield "empty", "has no sub-folders"
    put("no class", "1.png", "2.png")
    yield "no class", "has no sub-folders"
    put("empty class", "cat/1.png")
    Path("empty class/dog").mkdir()
    yield "empty class", "no images"
    put("links", "cat/1.png", "dog/1.png")
    Path("links/cat/up").symlink_to("..")
    Path("links/loop").symlink_to(Path("links").absolute())
    Path("links/dog/self.png").symlink_to("self.png")
    Path("links/dog/nowhere.png").symlink_to("nowhere")
    yield "links", 2
    put("pipe", "cat/1.png", "dog/1.png")
    os.mkfifo("pipe/cat/2.png")
    yield "pipe", 2


def test_odd_folders(start, run_job, trial, is_full):
    for name, wanted in odd_folders():
        with trial("odd folder, learnt and predicted", name):
            done = learn(name, run_job)
            if isinstance(wanted, str):
                assert done["code"] == 1, done["said"]
                assert wanted in done["said"]
                assert not Path("n").exists()
                continue
            assert done["code"] == 0, done["said"]
            assert f"n now knows {wanted} class" in done["said"], done["said"]
            commands = [
                ("predict", "n", name, "--json"),
                ("info", "n"),
                ("predict", "n", name, "--csv"),
                ("info", "n", "--json"),
                ("log", "n"),
                ("evaluate", "n", name, "--device", "cpu"),
            ]
            for words in commands if is_full else commands[:1]:
                done = run_job(*words)
                left_out = name == "links" and words[0] == "predict"  # two links lead nowhere
                assert done["code"] == int(left_out), done["said"]


def test_csv_files(start, run_job, trial):
    os.mkfifo("pipe.png")
    put(".", "cat.png", "dog.png")
    fine = "path,label\ncat.png,cat\ndog.png,dog\n"
    for name, content, wanted in (
        ("plain", fine.encode(), "knows 2 classes"),
        ("from Excel", b"\xef\xbb\xbf" + fine.replace("\n", "\r\n").encode(), "knows 2 classes"),
        ("missing file", (fine + "gone.png,cat\n").encode(), "left out 1 file: cannot read"),
        ("missing class", (fine + "gone.png,cow\n").encode(), "no image of class"),
        ("no path", (fine + ",cat\n").encode(), "line 4 has no path"),
        ("no label", (fine + "cat.png\n").encode(), "line 4 has no label"),
        ("a folder", (fine + "start,cat\n").encode(), "left out 1 file"),
        ("a pipe", (fine + "pipe.png,cat\n").encode(), "left out 1 file"),
        ("itself", (fine + "list.csv,cat\n").encode(), "left out 1 file"),
        ("a zero byte", (fine + "c\0at.png,cat\n").encode(), "left out 1 file"),
        ("too long a name", (fine + "x" * 5000 + ",cat\n").encode(), "left out 1 file"),
        ("too long a field", (fine + "x" * 200_000 + ",cat\n").encode(), "not a CSV file"),
        ("latin 1", fine.replace("dog", "dög").encode("latin-1"), "not a CSV file in UTF-8"),
        ("an image", encoded("PNG"), "not a CSV file in UTF-8"),
        ("empty", b"", "has no column 'path'"),
        ("head alone", b"path,label\n", "lists no images"),
    ):
        Path("list.csv").write_bytes(content)
        with trial("odd CSV file", name):
            done = learn("list.csv", run_job)
            said = " ".join(done["said"].split())
            assert wanted in said, said
            assert done["code"] == (0 if "knows" in wanted or "left out" in wanted else 1), said
            assert "--debug" not in said, said


def test_many_files(start, run_job, trial, is_full):
    n_classes, of_class = 10, 10_000 if is_full else 100
    for i in range(n_classes):
        Path("many", f"{i}").mkdir(parents=True)
        first = Path("many", f"{i}", "first.png")
        Image.new("L", (4, 4), 20 * i).save(first)
        for j in range(of_class - 1):
            os.link(first, first.with_name(f"{j}.png"))
    kind = "folder of 100,000 files" if is_full else "folder of many files"
    with trial(kind, "many", timeout=1200):
        done = learn("many", run_job)
        assert done["code"] == 0, done["said"]
        assert f"{n_classes * of_class:,} images for training" in done["said"]
