"""``lmrc export``: a model as one ONNX file that needs neither torch nor lmrc."""

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

from lmrc.methods.calibrated import UNKNOWN_SHARE
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.practice.models import (
    is_calibrated,
    open_to_predict,
    outputs_of,
    prediction_rule,
    unknown_threshold,
)
from lmrc.practice.usage import Say, UsageError, count, format_bytes
from lmrc.store.files import write_atomically

INPUT, OUTPUT = "images", "similarities"
MORE = ("probabilities", "unknown")  # outputs of a model that is calibrated
TOLERANCE = 1e-4
# Standardised scores of similar classes amplify rounding errors: in torch itself, the score of an
# image alone then differs by 1e-4 from its score in a mini-batch.
SCORE_TOLERANCE = 1e-3
CHECKED_BATCH_SIZES = (1, 5, 16)
MANY = 10**6  # images that the file will be given, for which the network is prepared
PACKAGES = "'.[onnx]' in lmrc's folder"


class ExportError(RuntimeError):
    """The outputs of an exported model differ from those of the model."""


class _Exported(nn.Module):
    """Maps uint8 images (n, height, width, channels) to similarities (n, classes), and more."""

    def __init__(self, model: LMRCClassifier) -> None:
        super().__init__()
        self.network, self.model = model._network_for(MANY), model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the model's `similarities`; if it has them, also probabilities, unknown scores."""
        x = images.permute(0, 3, 1, 2)
        if is_calibrated(self.model):
            return self.model._all_outputs(self.network, x)
        return (self.model.scores(self.network, x),)


def export(path: Path, out: Path, *, say: Say = print) -> None:
    """Write a model as ONNX, after comparing the outputs of onnxruntime with those of torch."""
    model, content = convert(path, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, content)
    channels, height, width = model.input_shape_
    outputs = "similarities" if prediction_rule(model) == "wta" else "scores"
    if is_calibrated(model):
        outputs += ", probabilities and unknown scores"
    say(
        f"{out}: {format_bytes(len(content))}, {count(len(model.classes_), 'class', 'classes')}; "
        f"input: uint8 images of shape (n, {height}, {width}, {channels}), output: {outputs}"
    )


def convert(path: Path, out: Path) -> tuple[LMRCClassifier, bytes]:
    """Return a model and its verified ONNX file, which the caller writes to `out`."""
    if out.resolve().is_relative_to(path.resolve()):
        raise UsageError(f"{out} is inside the model's folder: choose another place")
    model = open_to_predict(path, "cpu")
    if len(model.input_shape_) != 3 or model.input_shape_[0] not in (1, 3):
        raise ValueError(
            f"the inputs of {path} are arrays of shape {model.input_shape_}: only models of grey "
            "or colour images can be exported, use lmrc.load in Python"
        )
    content = to_onnx(model)
    check_outputs(model, content)
    return model, content


def to_onnx(model: LMRCClassifier) -> bytes:
    """Return a model as an ONNX file: normalisation, network and label vectors in one graph.

    For LMRC+ the graph includes the four rotations and the prediction rule. The metadata holds the
    class names (``classes``, a JSON list) and the image size (``height``, ``width``,
    ``channels``). If the model has probabilities, they are an output, too, as are unknown scores
    (``unknown``); the metadata holds the ``unknown_threshold`` that loses ``unknown_share`` of
    images of known classes.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError as error:
        raise RuntimeError(
            f"export needs additional packages: pip install {PACKAGES} ({error})"
        ) from error
    channels, height, width = model.input_shape_
    example = torch.zeros(2, height, width, channels, dtype=torch.uint8)
    exported = _Exported(model).eval()
    with torch.no_grad():
        exported(example)  # makes the random projection, which is kept, and cannot be traced
    with _silenced():
        program = torch.onnx.export(
            exported,
            (example,),
            dynamo=True,
            input_names=[INPUT],
            output_names=[OUTPUT, *(MORE if is_calibrated(model) else ())],
            dynamic_shapes={INPUT: {0: torch.export.Dim("n", min=1, max=2**31 - 1)}},
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    form = {"height": str(height), "width": str(width), "channels": str(channels)}
    classes = json.dumps(model.classes_.tolist())
    if is_calibrated(model):
        form["unknown_threshold"] = repr(unknown_threshold(model, UNKNOWN_SHARE))
        form["unknown_share"] = str(UNKNOWN_SHARE)
    onnx.helper.set_model_props(proto, {"classes": classes, **form})
    onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString()
    return content


def check_outputs(model: LMRCClassifier, content: bytes) -> None:
    """Compare the outputs of onnxruntime with those of torch, for several batch sizes.

    Raises `ExportError` if a similarity differs by more than 1e-4, or a score, a probability or an
    unknown score by more than 1e-3, or if another class wins without a tie.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise RuntimeError(
            f"export verifies its file with onnxruntime: pip install {PACKAGES} ({error})"
        ) from error
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    allowed = TOLERANCE if prediction_rule(model) in ("wta", "finetuned") else SCORE_TOLERANCE
    for n in CHECKED_BATCH_SIZES:
        images = _test_images(n, model.input_shape_)
        expected, *more = outputs_of(model, images)
        channels_last = images.reshape(n, *images.shape[1:3], -1)
        outputs, *others = session.run(None, {INPUT: channels_last})
        compare(expected, outputs, allowed)
        for wanted, found in zip(more, others, strict=False):  # none for an uncalibrated model
            if wanted is not None:
                _compare_values(wanted, found, max(allowed, SCORE_TOLERANCE))


def compare(expected: NDArray[Any], outputs: NDArray[Any], allowed: float = TOLERANCE) -> None:
    """Raise an ExportError if scores or predicted classes differ from those expected."""
    _compare_values(expected, outputs, allowed)
    rows = np.arange(len(expected))
    margin = expected.max(axis=1) - expected[rows, outputs.argmax(axis=1)]
    if (margin > allowed).any():
        raise ExportError(
            "the exported model predicts another class than torch: nothing was written"
        )


def _compare_values(expected: NDArray[Any], outputs: NDArray[Any], allowed: float) -> None:
    if outputs.shape != expected.shape:
        raise ExportError(
            f"the exported model's output has shape {outputs.shape}, not {expected.shape}: nothing "
            "was written"
        )
    difference = float(np.abs(outputs - expected).max())
    if not difference <= allowed:  # detects NaN, too
        raise ExportError(
            f"the exported model's outputs differ from torch's by {difference:.3g}, more than "
            f"{allowed:.3g}: nothing was written"
        )


def _test_images(n: int, input_shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return noise images, from uniform grey to black and white."""
    channels, height, width = input_shape
    rng = np.random.default_rng(n)
    strength = np.linspace(0, 1, n).reshape(n, 1, 1, 1)
    noise = rng.normal(size=(n, height, width, channels)) * strength
    images = np.clip(128 + 127 * noise, 0, 255).astype(np.uint8)
    return images[..., 0] if channels == 1 else images


@contextmanager
def _silenced() -> Iterator[None]:
    """Suppress the logs and warnings of torch's exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
