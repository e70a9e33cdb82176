import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import lmrc
from lmrc.methods.state import pack
from lmrc.practice import info
from lmrc.practice.usage import format_bytes
from lmrc.store import files, folder, unfinished


def test_info_describes_a_model(model, call):
    code, out, _ = call("info", model)
    assert code == 0
    for line in (
        "m: 4 classes, 2 heads",
        "  head 2: three, two",
        "input: grey images, resized to 8×8 pixels (height × width)",
        "exemplars: none, no images are stored in this model",
        "room for about 100 more classes: label vectors of 100 dimensions, threshold 0.15",
    ):
        assert line in out.splitlines()
    facts = json.loads(call("info", model, "--json")[1])
    assert facts["heads"] == [["one", "zero"], ["three", "two"]]
    assert facts["exemplars"] == 0
    assert facts["bytes"] > 10_000
    assert call("info", model, "--quiet") == (0, "", "")
    on_disk = sum(p.stat().st_size for p in Path(model).glob("*.safetensors"))
    assert facts["bytes_of_all_versions"] == on_disk > facts["bytes"]
    assert f"; all 2 versions: {format_bytes(on_disk)}\n" in out


def test_info_reports_exemplars_also_in_earlier_versions(place, learn, call):
    learn("week1", "--memory-per-class", "5", "-q", fast=True)
    assert "exemplars: 10 training samples are stored\n" in call("info", "m")[1]
    out = learn("week2", "--memory-per-class", "0")[1]
    assert (
        "no exemplars, but some in 1 earlier version (lmrc prune deletes earlier versions)\n" in out
    )
    line = "exemplars are stored in 1 earlier version (lmrc prune deletes earlier versions)"
    lines = call("info", "m")[1].splitlines()
    assert lines[lines.index(line) - 1].startswith("exemplars: none")
    assert learn("week2")[1].endswith("no exemplars\n")
    assert "earlier version" not in call("info", "m")[1]


def test_info_tells_no_seed_that_forget_has_chosen(model, call):
    before = json.loads(call("info", model, "--json")[1])
    assert call("forget", model, "three")[0] == 0
    after = json.loads(call("info", model, "--json")[1])
    assert after["settings"]["random_state"] != before["settings"]["random_state"]
    assert after["settings_not_default"] == before["settings_not_default"]
    assert "random_state" not in call("info", model)[1]


def test_log_lists_versions_and_rollback_deletes_the_newest(model, call):
    newest, oldest = call("log", model)[1].splitlines()
    assert newest.startswith("version 2  2")
    assert "4 classes  2 new in 60 images" in newest
    assert oldest.startswith("version 1  2")
    assert [v["classes"] for v in json.loads(call("log", model, "--json")[1])] == [2, 4]
    assert "m is back at version 1, saved 2" in call("rollback", model)[1]
    assert lmrc.load(model).classes_.tolist() == ["one", "zero"]
    code, _, err = call("rollback", model)
    assert code == 1
    assert "none to go back to" in err


HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "PIL")


@pytest.mark.parametrize("command", ["info", "log"])
def test_info_and_log_import_nothing_heavy(command, model, call):
    unfinished.write(Path(model), {}, {"x": torch.zeros(1)})  # it tells of that, too
    alone = (
        f"import sys; sys.modules.update(dict.fromkeys({HEAVY})); from lmrc.cli import main; main()"
    )
    words = [sys.executable, "-c", alone, command, model]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, call(command, model)[1]), done.stderr


@pytest.mark.parametrize("method", [lmrc.LMRCClassifier, lmrc.LMRCPlusClassifier])
def test_info_agrees_with_the_loaded_model(method, tmp_path):
    X = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), dtype=np.uint8)
    few = {"epochs": 1, "first_epochs": 1, "memory_per_class": 2, "class_weight": {0: 2.0}}
    fitted = method(label_dim=20, augment="none", random_state=0, **few).fit(X, np.arange(9) % 3)
    fitted.save(tmp_path / "m")
    told, model = info.describe(tmp_path / "m"), lmrc.load(tmp_path / "m")
    assert told["parameters"] == sum(p.numel() for p in model.network_.parameters())
    assert (told["classes"], told["backbone"]) == ([0, 1, 2], "cnn")
    kept = getattr(model, "statistics_", {}) | getattr(model, "classifiers_", {})
    assert told["statistics_bytes"] == sum(tensor.nbytes for tensor in kept.values())
    kept = getattr(model, "earlier_", {})
    assert told["earlier_bytes"] == sum(tensor.nbytes for tensor in kept.values())
    assert told["exemplars"] == len(model.memory_) == 6
    single = {"members": 1} if method is lmrc.LMRCPlusClassifier else {}  # which is not stored
    assert told["settings"] == pack(model)[0]["settings"] | single
    changed = {*few, "label_dim", "augment"}
    assert told["settings_not_default"].keys() == changed


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("class", "EWCClassifier"), ("class", []), ("head_sizes", [1, 1]), ("classes", [[], []])],
        *[("input_shape_", [0]), ("input_shape_", "xyz"), ("threshold_", "high"), ("settings", 3)],
        *[("settings", {"label_dim": 10**30}), ("settings", {"shell": "rm"})],
    ],
)
def test_info_refuses_a_forged_description_in_one_line(key, value, model, call):
    manifest = json.loads(Path(model, "manifest.json").read_text())
    del manifest["sha256"]
    manifest["versions"][-1]["model"][key] = value
    files.write_json(Path(model, "manifest.json"), manifest)
    code, out, err = call("info", model)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "--debug" not in err


def test_info_detects_damage(model, call):
    for path in Path(model).glob("weights-*"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert "is damaged: its checksum does not match" in call("info", model, "--quiet")[2]


def test_info_distinguishes_a_running_task_from_an_interrupted_one(model, call):
    me = f"by process {os.getpid()} on "
    with folder.writing(model) as held:
        assert f"it is being changed {me}" in call("info", model)[1]
        unfinished.write(held, {}, {})
        assert f"a task is being learnt {me}" in call("info", model)[1]
        assert "--resume" not in call("info", model)[1]
        (held / folder.LOCK).rename("lock")
    Path("lock").rename(Path(model) / folder.LOCK)  # as a killed process leaves it
    out = call("info", model)[1]
    assert "continue it with lmrc learn m --resume" in out
    assert me not in out
