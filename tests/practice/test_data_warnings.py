"""Warnings about the data of a task, before it is learnt."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from lmrc import LMRCClassifier, LMRCPlusClassifier
from lmrc.practice.data_warnings import warn_about
from lmrc.practice.settings import for_inputs
from lmrc.practice.source import LabelledSamples

NONE = np.zeros((0, 16, 16, 3), np.uint8)
HINT = "--backbone cnn"


def samples(shape=(40, 16, 16, 3)):
    labels = np.repeat(["cat", "dog"], shape[0] // 2)
    return LabelledSamples(np.zeros(shape, np.uint8), labels, NONE, labels[:0])


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
def test_warns_of_slow_training_of_a_resnet_on_a_cpu(shape, settings, told, capsys):
    found = samples(shape)
    warn_about(found, for_inputs(LMRCClassifier(device="cpu", **settings), found.X))
    assert (HINT in capsys.readouterr().err) == told


def test_warns_of_new_classes_of_few_images_with_a_frozen_backbone(capsys):
    y = np.repeat(["cat", "dog", "fox", "owl"], [6, 6, 4, 1])
    found = LabelledSamples(np.random.default_rng(0).random((17, 64)), y, NONE, y[:0])
    model = LMRCPlusClassifier(projections=20)
    warn_about(found, for_inputs(model, found.X))
    told = "owl has only 1 vector, and 1 other class fewer than 5: add vectors\n"
    assert told in capsys.readouterr().err
    warn_about(found, model.fit(found.X, y))  # they are known now
    assert "has only" not in capsys.readouterr().err


def test_a_pretrained_backbone_is_advised_for_a_new_model_only(capsys):
    """The first task fixes the backbone."""
    found = samples((8, 16, 16, 3))
    model = for_inputs(LMRCClassifier(backbone="cnn", epochs=1), found.X)
    for advice in (", or use a pre-trained backbone (--backbone efficientnet-lite0)\n", "\n"):
        warn_about(found, model)
        assert f"fewer than 20: add images{advice}" in capsys.readouterr().err
        model.fit(found.X, found.y)


@pytest.mark.parametrize(("white", "told"), [(15, True), (200, False)])
def test_warns_of_nearly_black_images(white, told, capsys):
    """For example 12-bit images in 16-bit files."""
    images = samples()
    images.X[20:] = 255
    images.X[:20, 0, 0] = white
    model = for_inputs(LMRCClassifier(backbone="cnn"), images.X)
    warn_about(replace(images, mode="RGB"), model)
    words = "the images of cat are nearly black, no pixel above 15 of 255"
    assert (words in capsys.readouterr().err) == told


def test_warns_of_class_names_that_are_nearly_the_same(place, learn, monkeypatch):
    learn("week1", "-q", fast=True)
    (place / "week2" / "two").rename(place / "week2" / "ONE ")
    told = (
        "lmrc: the new class 'ONE ' has nearly the same name as the known class 'one': if they are "
        "the same class, give them the same name (lmrc rollback undoes this learn)\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr("lmrc.practice.learn._train", lambda *_: 1 / 0)
        assert told in learn("week2", code=1)[2]
    learn("--discard")
    assert learn("week2", "-q")[2] == told
    assert "the same name" not in learn("week2", "-q")[2]  # known by now
    shutil.copytree(place / "week1" / "zero", place / "week1" / "Zero")
    shutil.copytree(place / "week1" / "zero", place / "week1" / "ZERO")
    shutil.rmtree(place / "m")
    err = learn("week1", "-q", fast=True)[2]
    assert err.startswith(
        "lmrc: the new class 'Zero' has nearly the same name as the new class 'ZERO' (and 1 more "
        "such pair): if they are the same class, give them the same name\n"
    )
