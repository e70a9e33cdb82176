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

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
ALONE = """
import sys
sys.modules["torch"] = sys.modules["lmrc"] = None
seen = {}
exec(sys.stdin.read(), seen)
print(seen["pixels"].tobytes().hex())
"""


def photo(folder, kind):
    """Save a photo of some kind under the name that the page has."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    image = coarse.resize((700, 500), Image.Resampling.BICUBIC)
    path = folder / "photo.jpg"
    if kind == "turned":
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
    return path


@pytest.fixture(scope="module", params=[(24, 20, 3), (16, 16)], ids=["colour", "grey"])
def exported(request, tmp_path_factory):
    """The shape of the images, a model of them, and the folder with its ONNX file."""
    shape, folder = request.param, tmp_path_factory.mktemp("deploy")
    rng = np.random.default_rng(1)
    X, y = rng.integers(0, 256, (40, *shape), dtype=np.uint8), np.repeat(["cat", "dog"], 20)
    X[:20] //= 2
    model = lmrc.LMRCClassifier(epochs=2, backbone="mlp", random_state=0, device="cpu").fit(X, y)
    model.save(folder / "pets.lmrc")
    export(folder / "pets.lmrc", folder / "pets.onnx", say=lambda line: None)
    return shape, model, folder


@pytest.mark.parametrize("kind", ["large", "turned", "transparent", "grey"])
def test_the_lines_answer_as_lmrc_does(exported, kind):
    shape, model, folder = exported
    path = photo(folder, kind)
    (lines,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        input=lines,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    image = read_image(path, shape[:2], "RGB" if len(shape) == 3 else "L")[None]
    similarities = model.similarities(image)[0]
    label, similarity, pixels = done.stdout.split()
    assert pixels == image.tobytes().hex()
    assert label == model.classes_[similarities.argmax()]
    assert float(similarity) == pytest.approx(similarities.max(), abs=6e-4)
