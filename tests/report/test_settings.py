"""How a page shows the settings of its records."""

from dataclasses import replace

import pytest

from lmrc.report.page import render
from lmrc.report.records import Command

pytestmark = pytest.mark.usefixtures("undrawn")


def test_an_order_per_seed_is_not_shown_as_that_of_one_seed(description, records):
    shuffled = [replace(r, settings={**r.settings, "order": r.seed}) for r in records]
    run = replace(description, recipe={"order": "per-seed"})
    assert "shuffled by the run&#39;s seed" in render(run, shuffled)


def test_parameters_newer_than_a_record_have_their_defaults(description, records):
    """And not the values of another method."""
    older = {"classifier": "LMRCClassifier", "augment": "auto"}
    newer = {"classifier": "LMRCPlusClassifier", "augment": "auto", "momentum": 0.8}
    settings = {"steady": newer}
    html = render(
        description, [replace(r, settings=settings.get(r.method, older)) for r in records]
    )
    differing, same = html.split("The same for all methods that have it")
    assert "momentum" in differing.rsplit("Settings that differ", 1)[1]
    assert "auto: jitter+cutout for colour images" in differing
    assert "strong augment" not in html
    assert "<dt>momentum</dt>" not in same
    assert "rotations" in differing.rsplit("Settings that differ", 1)[1]  # LMRC has none
    assert "<dt>batch size</dt>" in same


def test_settings_without_effect_are_not_shown(description, records):
    """No halving with a cosine, no test-time flips without flips in training, nothing for None."""
    settings = {"schedule": "cosine", "halve_at": [0.5], "augment": "auto", "test_time_flip": True}
    settings |= {"first_epochs": None, "class_weight": None}
    digits = [replace(r, settings=settings, extra={"augmentation": "none"}) for r in records]
    html = render(description, digits)
    assert "<dt>augment</dt><dd>none</dd>" in html
    assert "<dt>test time flip</dt><dd>no</dd>" in html
    for name in ("halve at", "first epochs", "class weight"):
        assert f"<dt>{name}</dt>" not in html
    settings["classifier"] = "LMRCPlusClassifier"
    colour = [
        replace(r, settings=settings, extra={"augmentation": "jitter+cutout"}) for r in digits
    ]
    assert "strong augment" not in render(description, colour)  # `augment` shows it
    assert "<dt>test time flip</dt><dd>yes</dd>" in render(description, colour)
    unknown = [replace(r, extra={}) for r in digits]  # of before it was recorded
    assert "<dt>test time flip</dt><dd>for colour images</dd>" in render(description, unknown)
    halved = [replace(r, settings={**settings, "schedule": "halving"}) for r in digits]
    assert "<dt>halve at</dt><dd>0.5</dd>" in render(description, halved)


def test_an_augmentation_that_changes_from_task_to_task_is_listed(description, records):
    settings = {"classifier": "LMRCPlusClassifier", "augment": "auto"}
    kinds = ["cutmix", "jitter+cutout"]
    changing = [
        replace(r, settings=settings, extra={"augmentation": kinds[r.record.task > 0]})
        for r in records
    ]
    assert "<dt>augment</dt><dd>cutmix, then jitter+cutout</dd>" in render(description, changing)


def test_a_setting_without_effect_for_one_method_is_not_common(description, records, cells_of):
    settings = {
        "steady": {"schedule": "cosine", "halve_at": [0.5], "first_epochs": 100},
        None: {"schedule": "halving", "halve_at": [0.5], "first_epochs": None},
    }
    html = render(
        description,
        [replace(r, settings=settings.get(r.method, settings[None])) for r in records],
    )
    assert cells_of(html, "halve at")[1:] == ["–", "0.5"]
    assert cells_of(html, "first epochs")[1:] == ["100", "–"]


def test_the_page_has_recipe_and_notes(description, records):
    run = replace(
        description, recipe={"dataset": "pets <x>", "seeds": 2, "limit": None}, notes=["From <a>."]
    )
    html = render(run, records)
    assert "<dt>dataset</dt><dd>pets &lt;x&gt;</dd>" in html
    assert "From &lt;a&gt;." in html
    assert "<dt>limit</dt>" not in html


def test_methods_that_a_later_command_added_are_shown(description, records):
    commands = [Command("lmrc a", ["lmrc"]), Command("lmrc b", ["lmrc", "ewc"])]
    run = replace(description, recipe={"methods": ["lmrc"]}, commands=commands)
    assert "<dt>methods</dt><dd>lmrc, ewc</dd>" in render(run, records)
