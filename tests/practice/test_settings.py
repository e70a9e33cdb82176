"""Settings of a model: how they are given, kept and refused."""

import inspect
import json
import re

import numpy as np
import pytest

import lmrc
from lmrc.nets.backbones import BACKBONES
from lmrc.nets.packaged import PACKAGED
from lmrc.practice import commands, options
from lmrc.practice.defaults import DEFAULTS
from lmrc.practice.settings import METHODS
from lmrc.statistics.covariances import COVARIANCES, LowRankShared
from lmrc.statistics.prediction_rules import RULES


def test_any_parameter_can_be_set_and_is_kept(place, learn):
    more = ("--set", "momentum=0.5", "--set", "halve-at=[1,2]", "--set", "precision=fp32")
    more += ("--set", "compile=false", "--set", "first_epochs=2", "--memory-per-class", "4")
    learn("week1", *more, fast=True)
    learn("week2", "--set", "momentum=0.8")
    model = lmrc.load("m")
    assert (model.memory_per_class, len(model.memory_), model.verbose) == (4, 16, 0)
    assert (model.momentum, model.halve_at, model.precision) == (0.8, (1, 2), "fp32")
    assert model.compile is False
    assert [record["task"] for record in model.history_] == [0, 0, 1, 1, 1]
    learn("week2", "--set", "first_epochs=null")
    assert lmrc.load("m").first_epochs is None


def test_choices_may_be_in_capitals(place, learn):
    learn("week1", "--method", "LMRC+", "--rotations", "None", "--augment", "NONE", fast=True)
    model = lmrc.load("m")
    assert type(model) is lmrc.LMRCPlusClassifier
    assert (model.rotations, model.augment) == ("none", "none")
    assert model.label_vectors_.shape == (2, 100)


def test_settings_that_are_kept_are_printed(place, learn, call):
    words = ("--epochs", "1", "--learning-rate", "0.01", "--label-dim", "50")
    assert "settings kept" not in learn("week1", *words)[1]
    told = "settings kept from before: epochs 1, learning_rate 0.01\n"
    assert told in learn("week2")[1]
    assert "settings kept from before: learning_rate 0.01\n" in learn("week2", "--epochs", "2")[1]
    told = "settings other than the defaults: batch_size 32, epochs 2, label_dim 50"
    assert f"{told}, learning_rate 0.01\n" in call("info", "m")[1]
    found = json.loads(call("info", "m", "--json")[1])["settings_not_default"]
    assert found == {"batch_size": 32, "epochs": 2, "label_dim": 50, "learning_rate": 0.01}


def test_a_model_with_defaults_prints_no_settings(place, call):
    X, y = np.zeros((4, 6, 6), np.uint8), np.array(["ape", "yak"] * 2)
    clf = lmrc.LMRCClassifier(backbone="mlp", epochs=1).fit(X, y)
    clf.set_params(epochs=70).save("m")
    assert "other than the defaults" not in call("info", "m")[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--set", "momentun=0.5"), "no such parameter; did you mean momentum?"),
        (("--set", "colour=red"), "no such parameter; use one of augment, backbone"),
        (("--set", "momentum"), "'momentum' is not NAME=VALUE"),
        (("--set", "epochs=3"), "use --epochs"),
        (("--set", "random_state=3"), "use --seed"),
        (("--set", "momentum=2"), "momentum=2 is not valid"),
        (
            ("--method", "lmrc+", "--set", "statistics=none", "--set", "predict_with=lda"),
            "statistics='none' keeps none",
        ),
        (("--learning-rate", "-1"), "learning_rate=-1.0 is not valid"),
        (("--threshold", "3"), "threshold=3.0 is not valid"),
        (("--epochs", "0"), "epochs=0 is not valid; it must be a whole number of at least 1"),
        (("--seed", "-1"), "random_state=-1 is not valid"),
        (("--backbone", "vgg"), "vgg"),
        (("--augment", "blur"), "blur"),
        (("--device", "tpu"), "device='tpu' is not known"),
    ],
)
def test_invalid_settings_are_refused_before_reading(place, learn, monkeypatch, words, told):
    def read(*_, **__):
        raise AssertionError("images are read")

    monkeypatch.setattr("lmrc.practice.learn.read_source", read)
    _, out, err = learn("week1", *words, code=2)
    assert out == ""
    assert told in err
    assert err.count("\n") == 1
    assert not (place / "m").exists()


def test_fixed_parameters_cannot_be_changed_by_set(place, learn):
    plus = ("--method", "lmrc+", "--rotations", "none", "--set", "predict_with=lda")
    learn("week1", "-q", *plus, fast=True)
    err = learn("week2", "--set", "statistics=shared", code=2)[2]
    told = "--set statistics was fixed by the first learn of m (low-rank)"
    assert told in err
    learn("week2", "--set", "statistics=low-rank")


def test_the_backbone_can_be_frozen_after_the_first_task(place, learn, call):
    err = learn("week1", "--set", "freeze=later", fast=True)[2]
    assert "--freeze without --weights" not in err  # it is trained now
    first = lmrc.load("m").network_.encoder.backbone.state_dict()
    learn("week2")
    model = lmrc.load("m")
    assert model.freeze == "later"
    for name, weight in model.network_.encoder.backbone.state_dict().items():
        assert weight.equal(first[name])
    assert "--set freeze=later" in " ".join(call("learn", "--help")[1].replace("│", "").split())
    learn("week2", "--no-freeze")
    assert lmrc.load("m").freeze is False


def test_class_weight_can_be_reset(place, learn):
    learn("week1", "--class-weight", "balanced", fast=True)
    learn("week2", "--class-weight", "none")
    assert lmrc.load("m").class_weight is None


def test_every_option_is_a_parameter_and_in_the_help(call):
    parameters = {n for c in METHODS.values() for n in inspect.signature(c).parameters}
    assert set(options.OPTIONS) <= parameters
    help_text = call("learn", "--help")[1]
    for option in options.OPTIONS.values():
        assert option in help_text


@pytest.mark.parametrize("name", ["epochs", "learning_rate", "response_weight", "rotations"])
def test_help_shows_the_defaults_of_both_methods(name):
    typed = inspect.signature(commands.learn, eval_str=True).parameters[name]
    (option,) = typed.annotation.__metadata__
    of_both = [cls().get_params() for cls in METHODS.values()]
    values = {of_one.get(f"{first}{name}") for of_one in of_both for first in ("", "first_")}
    for value in values - {None}:
        words = f"{value:g}" if isinstance(value, float) else str(value)
        assert words in re.findall(r"[\w.]+", option.show_default)


def test_defaults_are_those_of_the_classifiers():
    for cls in METHODS.values():
        assert DEFAULTS[cls.__name__] == cls().get_params(deep=False)
    assert len(DEFAULTS) == len(METHODS)


def test_choices_are_those_of_the_package():
    """They are declared where torch is not imported."""
    named = re.findall(r"[\w-]+", options.PARAMETERS["backbone"].help)
    assert {"auto", *BACKBONES, *PACKAGED} <= set(named)
    choices = ("none", *(kind for kind in COVARIANCES if kind != LowRankShared.name))
    assert options.PARAMETERS["statistics"].choices == choices
    assert options.PARAMETERS["predict_with"].choices == ("auto", *RULES)


def test_a_parameter_of_another_method_is_refused(place, learn):
    assert "--rotations needs --method lmrc+" in learn("week1", "--rotations", "all", code=2)[2]
    said = learn("week1", "--set", "statistics=full", code=2)[2]
    assert "--set statistics needs --method lmrc+" in said
