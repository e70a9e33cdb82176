"""What is said before a task is learnt."""

from dataclasses import replace

import numpy as np
import pytest

from lmrc import LMRCClassifier
from lmrc.practice.batch import Batch
from lmrc.practice.cautions import warn_about

NONE = np.zeros((0, 16, 16, 3), np.uint8)
HINT = "--backbone cnn"


def batch(shape=(40, 16, 16, 3)):
    labels = np.repeat(["cat", "dog"], shape[0] // 2)
    return Batch(np.zeros(shape, np.uint8), labels, NONE, labels[:0])


@pytest.mark.parametrize(
    ("shape", "settings", "told"),
    [
        ((40, 16, 16, 3), {}, True),
        ((40, 16, 16, 3), {"epochs": 2}, False),  # soon done
        ((40, 16, 16, 3), {"backbone": "resnet18"}, False),  # as was asked for
        ((40, 16, 16), {}, False),  # "auto" is a small network
        ((40, 16), {}, False),
    ],
)
def test_who_trains_a_resnet_on_a_cpu_without_having_asked_is_told_what_is_quicker(
    shape, settings, told, capsys
):
    warn_about(batch(shape), LMRCClassifier(device="cpu", **settings))
    assert (HINT in capsys.readouterr().err) == told


@pytest.mark.parametrize(("white", "told"), [(15, True), (200, False)])
def test_images_that_came_out_black_are_named(white, told, capsys):
    """As those of 12 bits in files of 16 do."""
    images = batch()
    images.X[20:] = 255
    images.X[:20, 0, 0] = white
    warn_about(replace(images, mode="RGB"), LMRCClassifier(backbone="cnn"))
    words = "the images of cat are nearly black, no pixel above 15 of 255"
    assert (words in capsys.readouterr().err) == told
