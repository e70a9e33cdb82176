"""Beyond the paper: variants of a method, prediction rules of one network, uneven tasks."""

import csv
import json

import numpy as np
import pytest

from lmrc.evaluation.metrics import task_aware_accuracy
from lmrc.experiments.inputs import open_dataset, open_stream
from lmrc.experiments.recipe import load_recipe
from lmrc.experiments.reproduce import main
from lmrc.methods.base import IncrementalClassifier
from lmrc.methods.catalog import find_method, make_learner
from lmrc.report.records import read_records
from lmrc.statistics import prediction_rules

SMALL = {"seeds": 1, "epochs": 1, "limit": 12, "device": "cpu", "quiet": True}
ROWS = ["LMRC", "+ cosine schedule", "+ λ = 3, statistics", "LMRC+"]


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    """Tuned heads need not be good here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction_rules, "STEPS", 5)
        yield


@pytest.fixture(scope="module")
def ablation(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "ablation"
    main("ablation", "digits", out, **SMALL)
    return out


def by_method(folder):
    records = {}
    for record in read_records(folder):
        records.setdefault(record.method, []).append(record)
    return records


def test_records_carry_the_variants_name_and_all_its_settings(ablation):
    records = by_method(ablation)
    assert list(records) == ROWS
    settings = {method: record[0].settings for method, record in records.items()}
    assert [settings[m]["schedule"] for m in ROWS] == ["halving", "cosine", "cosine", "cosine"]
    assert [settings[m]["response_weight"] for m in ROWS] == [1, 1, 3, 3]
    assert settings["+ λ = 3, statistics"]["classifier"] == "LMRCPlusClassifier"
    assert {len(record) for record in records.values()} == {5}


def test_a_stopped_ablation_is_resumed_in_parallel(ablation, tmp_path):
    def without_seconds(folder):
        lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
        for line in lines:
            line["record"] |= {"train_seconds": 0, "test_seconds": 0}
        return sorted(lines, key=lambda line: (ROWS.index(line["method"]), line["record"]["task"]))

    whole = (ablation / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run.json").write_text((ablation / "run.json").read_text())
    (tmp_path / "records.jsonl").write_text("".join(whole[:7]))  # + cosine schedule lacks three
    main("ablation", "digits", tmp_path, **SMALL, methods=["lmrc", "cosine"], jobs=2)
    assert without_seconds(tmp_path) == without_seconds(ablation)[:10]


def test_nothing_is_trained_again(ablation, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("something was trained")

    before = (ablation / "records.jsonl").read_text()
    monkeypatch.setattr(IncrementalClassifier, "partial_fit", refuse)
    main("ablation", "digits", ablation, **SMALL)
    assert (ablation / "records.jsonl").read_text() == before


def test_prediction_rules_of_one_network_score_as_each_alone(ablation):
    records = by_method(ablation)
    assert all("prediction_rules" not in r.extra for m in ROWS[:2] for r in records[m])
    recipe = load_recipe(
        "ablation", "digits", **{k: SMALL[k] for k in ("seeds", "epochs", "limit")}
    )
    method = find_method("statistics", recipe.variants)
    stream = open_stream(recipe, 0, open_dataset(recipe, None))
    for rule in prediction_rules.RULES[:-1]:  # the backbone is not frozen
        learner = make_learner(method, recipe.settings | {"random_state": 0, "device": "cpu"})
        for task in stream[:3]:
            learner.partial_fit(task.X_train, task.y_train)
        learner.set_params(predict_with=rule)
        X, y = stream.test_up_to(2)
        found = records[ROWS[2]][2].extra["prediction_rules"][rule]
        assert found["accuracy"] == np.mean(learner.predict(X) == y)
        if rule == "ensemble":
            main_record = records[ROWS[2]][2].record
            assert found == {name: getattr(main_record, name) for name in found}
        scores, classes = learner.similarities(X), learner.classes_
        assert found["task_aware_accuracy"] == task_aware_accuracy(
            y, scores, classes, stream.task_of
        )


def test_the_page_of_the_ablation_shows_the_prediction_rules(ablation):
    end = by_method(ablation)["+ λ = 3, statistics"][-1].extra["prediction_rules"]
    with (ablation / "ablation.csv").open(newline="") as file:
        # A cell that begins with a plus is a formula to a spreadsheet, hence the apostrophe.
        rows = {row["row"].removeprefix("'"): row for row in csv.DictReader(file)}
    names = {"wta": "+ λ = 3", "lda": "+ statistics: LDA"}
    names |= {"finetuned": "+ statistics: fine-tuned heads"}
    names |= {"linear": "+ statistics: linear classifier"}
    assert list(rows) == [
        "LMRC",
        "+ cosine schedule",
        *names.values(),
        "+ statistics: ensemble",
        "LMRC+",
    ]
    for rule, name in names.items():
        assert float(rows[name]["final_accuracy"]) == end[rule]["accuracy"]
    assert (ablation / "ablation.png").exists()
    assert (ablation / "task-id-accuracy.png").exists()


def test_what_is_stored_beside_the_network_is_recorded(ablation, tmp_path):
    end = {
        method: records[-1].extra["stored_bytes"] for method, records in by_method(ablation).items()
    }
    assert end["LMRC"] == {"images": 0, "statistics": 0}
    assert end["LMRC+"]["images"] == 0 < end["LMRC+"]["statistics"]
    main("incremental", "digits", tmp_path, **SMALL, methods=["joint"])
    kept = by_method(tmp_path)["Joint"]
    assert [r.extra["stored_bytes"]["images"] for r in kept] == [
        2 * 12 * 64 * (i + 1) for i in range(5)
    ]


def test_the_first_task_may_be_larger(tmp_path):
    main("incremental", "digits", tmp_path, **SMALL, methods=["lm"], first_classes=4, tasks=4)
    records = by_method(tmp_path)["LM"]
    assert [r.record.n_classes_seen for r in records] == [4, 6, 8, 10]
    assert records[0].settings["first_classes"] == 4
    with pytest.raises(FileExistsError, match=r"other settings \(first_classes\)"):
        main("incremental", "digits", tmp_path, **SMALL, methods=["lm"], tasks=4)


@pytest.mark.parametrize("jobs", [1, 2])
def test_tasks_of_unequal_size_are_refused_before_anything_is_run(tmp_path, jobs):
    with pytest.raises(ValueError, match="leaves 5 of 10 classes to 3 more tasks"):
        main("incremental", "digits", tmp_path, **SMALL, first_classes=5, tasks=4, jobs=jobs)
