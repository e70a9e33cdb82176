"""The page about deployment: its lines are run as they stand, without torch and lmrc."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lmrc
from lmrc.data.images import read_image
from lmrc.practice.export import export

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.usefixtures("onnx_operators")

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
#: Runs the lines in each of some folders.
ALONE = """
import os, sys
sys.modules["torch"] = sys.modules["lmrc"] = None
lines = sys.stdin.read()
for folder in sys.argv[1:]:
    os.chdir(folder)
    seen = {}
    exec(lines, seen)
    print(seen["pixels"].tobytes().hex())
"""
KINDS = ("large", "rotated", "transparent", "grey")


def photo(folder, kind):
    """Save a photo of some kind under the name that the page has."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    image = coarse.resize((700, 500), Image.Resampling.BICUBIC)
    path = folder / "photo.jpg"
    if kind == "rotated":
        exif = Image.Exif()
        exif[0x0112] = 6
        image.save(path, "JPEG", exif=exif)
    elif kind == "transparent":
        image.putalpha(coarse.convert("L").resize(image.size))
        image.save(path, "PNG")
    elif kind == "grey":
        image.convert("L").save(path, "PNG")
    else:
        image.save(path, "JPEG")


PLUS = {"freeze": True, "rotations": "none", "projections": 20}


@pytest.mark.parametrize(
    ("shape", "method", "settings"),
    [((24, 20, 3), lmrc.LMRCPlusClassifier, PLUS), ((16, 16), lmrc.LMRCClassifier, {})],
    ids=["colour", "grey"],
)
def test_the_lines_predict_as_lmrc_does(shape, method, settings, tmp_path):
    rng = np.random.default_rng(1)
    X, y = rng.integers(0, 256, (40, *shape), dtype=np.uint8), np.repeat(["cat", "dog"], 20)
    X[:20] //= 2
    model = method(epochs=2, backbone="mlp", random_state=0, device="cpu", **settings).fit(X, y)
    model.save(tmp_path / "pets.lmrc")
    export(tmp_path / "pets.lmrc", tmp_path / "pets.onnx", say=lambda line: None)
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        photo(tmp_path / kind, kind)
        (tmp_path / kind / "pets.onnx").hardlink_to(tmp_path / "pets.onnx")

    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    lines = "".join(blocks)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *(tmp_path / kind for kind in KINDS)],
        input=lines,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    words = iter(done.stdout.split())
    for kind in KINDS:
        label, similarity = next(words), next(words)
        sure = next(words) if settings else ""
        pixels = next(words)
        path = tmp_path / kind / "photo.jpg"
        image = read_image(path, shape[:2], "RGB" if len(shape) == 3 else "L")[None]
        similarities = model.similarities(image)[0]
        assert pixels == image.tobytes().hex(), kind
        assert label == model.classes_[similarities.argmax()]
        assert float(similarity) == pytest.approx(similarities.max(), abs=6e-4)
        if settings:
            _, probabilities, unknown = model.outputs(image)
            known = unknown[0] <= model.unknown_threshold()
            assert sure == (f"{probabilities.max():.1%}" if known else "unknown")
    assert next(words, None) is None
