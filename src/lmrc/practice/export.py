"""``lmrc export``: a model as one ONNX file that needs neither torch nor lmrc."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmrc.methods.lmrc import LMRCClassifier
from lmrc.practice.models import open_to_predict, prediction_rule
from lmrc.practice.usage import Say, UsageError, bytes_in_words, count
from lmrc.store.files import write_atomically

INPUT, OUTPUT = "images", "similarities"
TOLERANCE = 1e-4
# Standardised scores of classes that are near to each other enlarge what was rounded: torch itself
# then gives an image alone a score that is 1e-4 from the one among others.
SCORE_TOLERANCE = 1e-3
CHECKED_TASKS = (1, 5, 16)
PACKAGES = "'torch>=2.7' onnx onnxruntime onnxscript"


class ExportError(RuntimeError):
    """An exported model does not answer as the model does."""


class _Exported(nn.Module):
    """From uint8 images (n, height, width, channels) to similarities (n, classes)."""

    def __init__(self, model: LMRCClassifier) -> None:
        super().__init__()
        self.network, self.model = model.network_, model

    def forward(self, images: Tensor) -> Tensor:
        """Return what `similarities` of the model returns."""
        return self.model.scores(self.network, images.permute(0, 3, 1, 2))


def export(path: Path, out: Path, *, say: Say = print) -> None:
    """Write a model as ONNX, once onnxruntime gives the answers that torch gives.

    Parameters
    ----------
    path : Path
        The model.
    out : Path
        The file to write.
    say : callable
        Takes a line about it.
    """
    if out.resolve().is_relative_to(path.resolve()):
        raise UsageError(f"{out} is within the model, which it would spoil: choose another place")
    model = open_to_predict(path, "cpu")
    if len(model.input_shape_) != 3 or model.input_shape_[0] not in (1, 3):
        raise ValueError(
            f"{path} takes arrays of shape {model.input_shape_}: export is for models of grey and "
            "colour images, use lmrc.load in Python"
        )
    content = to_onnx(model)
    check_answers(model, content)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, content)
    channels, height, width = model.input_shape_
    answers = "similarities" if prediction_rule(model) == "wta" else "scores"
    say(
        f"{out}: {bytes_in_words(len(content))}, {count(len(model.classes_), 'class', 'classes')}; "
        f"takes uint8 images of shape (n, {height}, {width}, {channels}), gives {answers}"
    )


def to_onnx(model: LMRCClassifier) -> bytes:
    """Return a model as an ONNX file: normalisation, network and label vectors in one graph.

    The four turns of LMRC+ and what it goes by at prediction are in it, too.

    The names of the classes are in the metadata, under ``classes``, as a JSON list; the size of
    images under ``height``, ``width`` and ``channels``.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  # torch's exporter asks for it
    except ImportError as error:
        raise RuntimeError(
            f"export needs more packages: pip install {PACKAGES} ({error})"
        ) from error
    channels, height, width = model.input_shape_
    example = torch.zeros(2, height, width, channels, dtype=torch.uint8)
    with _hushed():
        program = torch.onnx.export(
            _Exported(model).eval(),
            (example,),
            dynamo=True,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes={INPUT: {0: torch.export.Dim("n", min=1, max=2**31 - 1)}},
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx gave no program")
    proto = program.model_proto
    form = {"height": str(height), "width": str(width), "channels": str(channels)}
    classes = json.dumps(model.classes_.tolist())
    onnx.helper.set_model_props(proto, {"classes": classes, **form})
    onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString()
    return content


def check_answers(model: LMRCClassifier, content: bytes) -> None:
    """Compare the answers of onnxruntime with those of torch, for several sizes of batch.

    Raises
    ------
    ExportError
        If a similarity differs by more than 1e-4, or a score by more than 1e-3, or another class
        wins where it is no tie.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise RuntimeError(
            f"export checks its work with onnxruntime: pip install {PACKAGES} ({error})"
        ) from error
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    allowed = TOLERANCE if prediction_rule(model) in ("wta", "finetuned") else SCORE_TOLERANCE
    for n in CHECKED_TASKS:
        images = _test_images(n, model.input_shape_)
        expected = model.similarities(images)
        channels_last = images.reshape(n, *images.shape[1:3], -1)
        (answers,) = session.run([OUTPUT], {INPUT: channels_last})
        compare(expected, answers, allowed)


def compare(expected: NDArray[Any], answers: NDArray[Any], allowed: float = TOLERANCE) -> None:
    """Raise an ExportError if answers are not those expected."""
    if answers.shape != expected.shape:
        raise ExportError(f"the exported model answers with {answers.shape}, not {expected.shape}")
    furthest = float(np.abs(answers - expected).max())
    if not furthest <= allowed:  # so that NaN is noticed, too
        raise ExportError(
            f"the exported model disagrees with torch by {furthest:.3g}, more than {allowed:.3g}: "
            "nothing was written"
        )
    rows = np.arange(len(expected))
    lost = expected.max(axis=1) - expected[rows, answers.argmax(axis=1)]
    if (lost > allowed).any():
        raise ExportError("the exported model names another class than torch: nothing was written")


def _test_images(n: int, input_shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return noise of several strengths, from flat grey to all black and white."""
    channels, height, width = input_shape
    rng = np.random.default_rng(n)
    strength = np.linspace(0, 1, n).reshape(n, 1, 1, 1)
    noise = rng.normal(size=(n, height, width, channels)) * strength
    images = np.clip(128 + 127 * noise, 0, 255).astype(np.uint8)
    return images[..., 0] if channels == 1 else images


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep to ourselves what torch says on the way: it is about itself."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
