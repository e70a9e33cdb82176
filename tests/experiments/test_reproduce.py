import csv
import shutil
from dataclasses import replace

import numpy as np
import pytest

from lmrc import load
from lmrc.data.datasets import load_dataset
from lmrc.experiments.inputs import open_stream
from lmrc.experiments.options import UsageError
from lmrc.experiments.recipe import load_recipe
from lmrc.experiments.reproduce import main
from lmrc.methods.base import IncrementalClassifier
from lmrc.report.page import read_contents, write_report
from lmrc.report.records import append_record, read_description, read_records, write_description
from lmrc.report.summary import summarize_methods

SMALL = {"seeds": 1, "epochs": 1, "limit": 12, "device": "cpu", "quiet": True}


@pytest.fixture(scope="module")
def suppression(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "suppression"
    main("softmax-suppression", "digits", out, **SMALL)
    return out


def percent(share):
    return f"{100 * share:.1f}"


def test_incremental_shows_its_records(incremental, rows):
    summaries = summarize_methods(read_records(incremental))
    assert [s.method for s in summaries] == ["LMRC", "LM", "LwF.MT"]
    shown = rows(incremental)
    for s in summaries:
        steps = [percent(spread.mean) for spread in s.accuracy]
        assert [s.method, percent(s.average.mean), *steps] in shown
    text = (incremental / "report.html").read_text(encoding="utf-8")
    assert "average incremental accuracy" in text
    assert "shuffled by the run&#39;s seed" in text


def test_methods_that_store_images_are_named_on_an_exemplar_free_page(tmp_path):
    main("incremental", "digits", tmp_path, **SMALL, methods=["finetune", "joint"], tasks=2)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Methods that store images by themselves: Joint." in page


def test_classifiers_of_scikit_learn_run_beside_ours(tmp_path):
    methods = ["finetune", "sklearn.linear_model.SGDClassifier", "sklearn.linear_model.Perceptron"]
    changes = SMALL | {"methods": methods, "tasks": 2}
    with pytest.raises(UsageError, match=r"SGDClassifier needs all .*: add --announce-classes"):
        main("incremental", "digits", tmp_path, **changes)
    main("incremental", "digits", tmp_path, **changes, announce_classes=True)
    records = read_records(tmp_path)
    assert [r.method for r in records[::2]] == ["Fine-tuning", *methods[1:]]
    assert all(r.record.accuracy > 0.2 and r.record.top5 >= 0.5 for r in records[2:])
    assert len({r.extra["data"] for r in records}) == 1
    assert records[2].settings["learning_rate"] == "optimal"  # not the recipe's
    assert records[2].settings["announce_classes"] is True
    assert "–: unknown" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_classes_may_recur(tmp_path, rows):
    changes = SMALL | {"methods": ["lmrc"], "order": [[0, 1], [2, 3], [1, 0]]}
    main("incremental", "digits", tmp_path, **changes)
    records = read_records(tmp_path)
    assert [r.record.classes for r in records] == [[0, 1], [2, 3], [1, 0]]
    assert records[0].settings["order"] == [[0, 1], [2, 3], [1, 0]]
    assert rows(tmp_path)[0][2:] == ["task 1, 2 classes", "task 2, 4 classes", "task 3, 4 classes"]
    (axes,) = read_contents(tmp_path)[1].drawings["accuracy"].figure.axes
    assert axes.get_xlabel() == "task"
    before = (tmp_path / "records.jsonl").read_text()
    main("incremental", "digits", tmp_path, **changes)
    assert (tmp_path / "records.jsonl").read_text() == before
    with pytest.raises(UsageError, match="lists the classes of each task"):
        main("incremental", "digits", tmp_path, **changes, tasks=3)


def test_the_first_task_may_be_larger(tmp_path):
    main("incremental", "digits", tmp_path, **SMALL, methods=["lm"], first_classes=4, tasks=4)
    records = read_records(tmp_path)
    assert [r.record.n_classes_seen for r in records] == [4, 6, 8, 10]
    assert records[0].settings["first_classes"] == 4
    with pytest.raises(FileExistsError, match=r"other settings \(first_classes\)"):
        main("incremental", "digits", tmp_path, **SMALL, methods=["lm"], tasks=4)


def test_a_method_whose_code_has_changed_is_not_mixed_with_its_records(tmp_path, monkeypatch):
    code = tmp_path / "changing.py"
    code.write_text("from lmrc import FineTuneClassifier\nclass Own(FineTuneClassifier): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    changes = SMALL | {"tasks": 2}
    out = tmp_path / "runs"
    main("incremental", "digits", out, **changes, methods=["changing.Own", "lm"])
    before = (out / "run.json").read_bytes()
    with code.open("a") as file:
        file.write("# another algorithm\n")
    with pytest.raises(FileExistsError, match=r"changing\.Own has changed since"):
        main("incremental", "digits", out, **changes, methods=["changing.Own"])
    assert (out / "run.json").read_bytes() == before
    main("incremental", "digits", out, **changes, methods=["finetune"])  # which others are free of


def test_wrong_pixels_are_refused_once_and_before_any_run(tmp_path):
    digits = load_dataset("digits", limit=12)
    np.savez(tmp_path / "wrong.npz", X=digits.X_train * 1.0, y=digits.y_train)
    with pytest.raises(ValueError, match="float images must lie in 0…1"):
        main("incremental", f"npz:{tmp_path / 'wrong.npz'}", tmp_path / "runs", **SMALL, tasks=2)
    assert not (tmp_path / "runs").exists()


def test_task_boundaries_may_be_blurry(tmp_path):
    changes = SMALL | {"limit": 30, "seeds": 2, "methods": ["finetune"], "tasks": 2}
    main("incremental", "digits", tmp_path, **changes, blurry=0.2)
    records = read_records(tmp_path)
    assert [r.record.n_classes_seen for r in records] == [10] * 4
    assert {r.settings["blurry"] for r in records} == {0.2}
    recipe = load_recipe("incremental", "digits", tasks=2, blurry=0.2)
    data = load_dataset("digits", limit=30)
    one, other = (open_stream(recipe, seed, data)[0].y_train.tolist() for seed in (0, 1))
    assert one != other
    with pytest.raises(UsageError, match="add --blurry"):
        main("incremental", "digits", tmp_path, **changes, disjoint=0.5)


def test_rehearsal_has_the_layout_of_table_1(tmp_path, rows):
    main(
        "rehearsal",
        "digits",
        tmp_path,
        **SMALL,
        methods=["finetune", "lmrc"],
        memory=[1, 2],
        tasks=2,
    )
    average = {s.method: s.average.mean for s in summarize_methods(read_records(tmp_path))}
    shown = rows(tmp_path)
    assert shown[0] == ["method", "1 per class", "2 per class"]
    for row, method in zip(shown[1:3], ("Fine-tuning", "LMRC"), strict=True):
        ours = [percent(average[f"{method} + {pool} per class"]) for pool in (1, 2)]
        assert row == [method, *ours]


def test_exemplars_may_be_counted_in_total(tmp_path, rows):
    changes = SMALL | {"methods": ["finetune"], "memory": [20], "total": True, "tasks": 2}
    main("rehearsal", "digits", tmp_path, **changes, settings={"exemplars": "herding"})
    records = read_records(tmp_path)
    assert {r.method for r in records} == {"Fine-tuning + 20 in total"}
    wanted = {"memory_per_class": 0, "memory_total": 20, "exemplars": "herding"}
    assert wanted.items() <= records[0].settings.items()
    assert {r.extra["stored_bytes"]["images"] for r in records} == {20 * 64}
    assert rows(tmp_path)[0] == ["method", "20 in total"]
    with pytest.raises(FileExistsError, match="total"):
        main("rehearsal", "digits", tmp_path, **changes | {"total": None})


def test_suppression_shows_mean_outputs_on_the_samples_of_each_class(suppression, rows):
    records = read_records(suppression)
    ends = {r.method: r.extra["outputs"] for r in records if r.record.task == 1}
    assert list(ends) == ["Fine-tuning", "EWC", "LwF.MC", "LMRC"]
    assert not any("outputs" in r.extra for r in records if r.record.task == 0)
    shown = rows(suppression)
    for method, outputs in ends.items():
        assert outputs["classes"] == [0, 1, 2, 3]
        similar = method == "LMRC"
        assert outputs["kind"] == ("similarity" if similar else "probability")
        name = "LMRC (similarities)" if similar else method
        for true, means in enumerate(outputs["means"]):
            assert [name, f"class {true}", *(f"{mean:.2f}" for mean in means)] in shown
    assert {"outputs.svg", "outputs.png", "outputs.csv"} <= {p.name for p in suppression.iterdir()}
    assert "similarity, not a probability" in (suppression / "outputs.svg").read_text()


def test_a_data_set_with_too_few_classes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="takes 11 classes, but digits has 10"):
        main("softmax-suppression", "digits", tmp_path, **SMALL, classes=11)


def test_suppression_is_resumed(suppression, tmp_path, records_of):
    whole = (suppression / "records.jsonl").read_text()
    (tmp_path / "run.json").write_text((suppression / "run.json").read_text())
    lines = whole.splitlines(keepends=True)
    (tmp_path / "records.jsonl").write_text("".join(lines[:-1]))  # LMRC lacks its second task
    main("softmax-suppression", "digits", tmp_path, **SMALL)
    assert records_of(tmp_path) == records_of(suppression)


def test_nothing_is_run_twice(suppression, ablation, no_training):
    for experiment, folder in (("softmax-suppression", suppression), ("ablation", ablation)):
        before = (folder / "records.jsonl").read_text()
        main(experiment, "digits", folder, **SMALL)
        assert (folder / "records.jsonl").read_text() == before


def test_a_kept_model_predicts_as_its_record_says(tmp_path):
    options = {**SMALL, "tasks": 2, "methods": ["lmrc", "lmrc+"], "keep_models": True}
    main("incremental", "digits", tmp_path, **options)
    # To leave it out takes nothing away.
    main("incremental", "digits", tmp_path, **options | {"keep_models": False})
    data = load_dataset("digits", limit=SMALL["limit"])
    for method, title in {"lmrc": "LMRC", "lmrc+": "LMRC+"}.items():
        model = load(tmp_path / "trained" / f"{method}-s0")
        last = [r for r in read_records(tmp_path) if r.method == title][-1].record
        assert model.score(data.X_test, data.y_test) == pytest.approx(last.accuracy)
    assert not (tmp_path / "models").exists()


def test_a_kept_model_that_could_not_be_written_is_written_by_the_same_command(
    tmp_path, monkeypatch
):
    def full(self, path):
        if path.parent.name == "trained":
            raise OSError("no space left on device")
        save(self, path)

    save = IncrementalClassifier.save
    options = {**SMALL, "tasks": 2, "methods": ["lmrc"], "keep_models": True}
    monkeypatch.setattr(IncrementalClassifier, "save", full)
    with pytest.raises(RuntimeError, match="failed, see above"):
        main("incremental", "digits", tmp_path, **options)
    monkeypatch.undo()
    main("incremental", "digits", tmp_path, **options)
    assert len(load(tmp_path / "trained" / "lmrc-s0").classes_) == 10
    assert [r.record.task for r in read_records(tmp_path)] == [0, 1]


def test_runs_that_were_finished_before_have_no_kept_model(
    incremental, tmp_path, no_training, capsys
):
    shutil.copytree(incremental, tmp_path, dirs_exist_ok=True)
    options = {**SMALL, "methods": ["lmrc", "lm"], "keep_models": True}
    main("incremental", "digits", tmp_path, **options)
    out, errors = capsys.readouterr()
    assert "No models of LMRC with seed 0; LM with seed 0" in errors
    assert "trained" not in out


def test_the_page_of_the_ablation_shows_the_prediction_rules(ablation):
    records = [r for r in read_records(ablation) if r.method == "+ λ = 3, statistics"]
    end = records[-1].extra["prediction_rules"]
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


@pytest.mark.parametrize("made", [False, True])
def test_a_command_that_is_refused_leaves_no_folder_behind(tmp_path, made):
    out = tmp_path / "out"
    if made:
        out.mkdir()
    with pytest.raises(OSError, match="no folder"):
        main("incremental", "cifar100", out, **SMALL, data_dir=tmp_path / "nowhere")
    assert out.exists() == made
    assert not made or not list(out.iterdir())


def test_an_existing_folder_is_not_removed(incremental, tmp_path):
    shutil.copy(incremental / "run.json", tmp_path)
    with pytest.raises(OSError, match="no folder"):
        main("incremental", "cifar100", tmp_path, **SMALL, data_dir=tmp_path / "nowhere")
    assert (tmp_path / "run.json").exists()


def test_heads_shows_task_id_and_task_aware_accuracy_and_confusion(incremental, tmp_path, rows):
    main("heads", "digits", tmp_path, source=incremental, **SMALL)
    shown = rows(tmp_path)
    for method in ("LMRC", "LwF.MT", "LM"):
        run = [r.record for r in read_records(tmp_path) if r.method == method]
        assert [method, *(percent(r.task_id_accuracy) for r in run)] in shown
        assert [method, *(percent(r.task_aware_accuracy) for r in run)] in shown
    counts = (tmp_path / "confusion.csv").read_text().splitlines()
    end = [r.record for r in read_records(tmp_path) if r.method == "LM"][-1]
    assert f"LM,1,5,{end.task_confusion[0][4]}" in counts
    assert (tmp_path / "confusion-lwf.mt.svg").exists()


def test_a_validation_split_leaves_the_test_set_alone(tmp_path, monkeypatch, records_of):
    opened = []

    def open_dataset(*args, **kwargs):
        whole = load_dataset(*args, **kwargs)
        opened.append(replace(whole, X_test=np.zeros_like(whole.X_test)))
        return opened[-1]

    monkeypatch.setattr("lmrc.experiments.inputs.load_dataset", open_dataset)
    whole = {**SMALL, "limit": 20, "methods": ["lm"], "validate": 0.25}
    main("incremental", "digits", tmp_path / "a", **whole)
    monkeypatch.undo()  # had it been scored on the blackened test images, these would differ
    main("incremental", "digits", tmp_path / "b", **whole)
    assert records_of(tmp_path / "a") == records_of(tmp_path / "b")
    record = read_records(tmp_path / "a")[-1]
    assert record.settings["validate"] == 0.25
    assert sum(map(sum, record.record.task_confusion)) == 10 * 5
    assert read_description(tmp_path / "a").recipe["validate"] == 0.25
    text = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    assert "A validation split: 25&nbsp;% of each class" in text


def test_a_chosen_setting_reaches_those_methods_that_have_it(tmp_path):
    chosen = {**SMALL, "limit": 3, "tasks": 2, "methods": ["lmrc", "lm", "ewc"]}
    main("incremental", "digits", tmp_path, **chosen, settings={"response_weight": 3})
    weights = {r.method: r.settings.get("response_weight") for r in read_records(tmp_path)}
    assert weights == {"LMRC": 3, "LM": 0.0, "EWC": None}
    with pytest.raises(FileExistsError, match=r"with other settings \(response_weight\)"):
        main("incremental", "digits", tmp_path, **chosen, settings={"response_weight": 2})


def test_a_folder_refuses_another_experiment_or_other_settings(incremental, tmp_path):
    with pytest.raises(FileExistsError, match="holds incremental, not heads"):
        main("heads", "digits", incremental, **SMALL)
    with pytest.raises(FileExistsError, match=r"with other settings \(epochs, limit\)"):
        main("incremental", "digits", incremental, **{**SMALL, "epochs": 2, "limit": 5})
    (tmp_path / "records.jsonl").write_text("")
    with pytest.raises(FileExistsError, match=r"records but no run\.json"):
        main("incremental", "digits", tmp_path, **SMALL)


def test_a_folder_keeps_all_commands_that_reproduce_it(tmp_path, monkeypatch):
    def command(*options, **asked):
        monkeypatch.setattr("sys.argv", ["lmrc", "reproduce", "incremental", *options])
        main("incremental", "digits", tmp_path, **{**SMALL, "limit": 3, "tasks": 2, **asked})
        return [
            c.words.removeprefix("lmrc reproduce ") for c in read_description(tmp_path).commands
        ]

    command("--methods", "lm", methods=["lm"])
    both = command("--methods", "finetune", "--seeds", "2", methods=["finetune"], seeds=2)
    assert both == ["incremental --methods lm", "incremental --methods finetune --seeds 2"]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "\n".join(f"lmrc reproduce {words}" for words in both) in page
    assert "is not finished" not in page
    recipe = read_description(tmp_path).recipe
    assert (recipe["methods"], recipe["seeds"]) == (["lm", "finetune"], 2)
    # What asks for as much, or more, takes the place of the earlier.
    again = command("--methods", "lm", "--seeds", "2", methods=["lm"], seeds=2)
    assert again == [both[1], "incremental --methods lm --seeds 2"]


def test_a_page_with_fewer_seeds_does_not_wait_for_an_earlier_command(
    incremental, tmp_path, no_training, rows
):
    out = shutil.copytree(incremental, tmp_path / "runs")
    asked = read_description(out)
    (command,) = asked.commands
    write_description(out, replace(asked, commands=[replace(command, seeds=3)]))
    append_record(out, replace(read_records(out)[0], seed=1))  # there it was stopped
    write_report(out)
    assert "This run is not finished." in (out / "report.html").read_text(encoding="utf-8")
    main("incremental", "digits", out, **SMALL, methods=command.methods)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "is not finished" not in page
    assert "average incremental accuracy" in page
    assert (
        "not included here: LM with seeds 1, 2; LMRC with seeds 1, 2; LwF.MT with seeds 1, 2."
        in page
    )
    assert rows(out)[:5] == rows(incremental)[:5]
    assert len(read_description(out).commands) == 2
    assert len(read_records(out)) == len(read_records(incremental)) + 1
    # Nor is it waited for when other methods join these.
    for record in read_records(incremental):
        if record.method == "LM":
            append_record(out, replace(record, method="Fine-tuning"))
    asked = read_description(out)
    more = replace(command, words="lmrc reproduce …", methods=["finetune"])
    write_description(out, replace(asked, commands=[*asked.commands, more]))
    write_report(out)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "is not finished" not in page
    assert "LwF.MT with seeds 1, 2." in page


@pytest.mark.parametrize(("method", "keeps_out"), [("ewc", False), ("lwf-mt", True)])
def test_a_folder_refuses_new_settings_of_a_method_that_it_has(
    incremental, tmp_path, no_training, method, keeps_out
):
    """As when a later lmrc has found a better strength for one of the methods."""
    out = shutil.copytree(incremental, tmp_path / "runs")
    methods = {"methods": ["lmrc", "lm", "lwf-mt"]}
    own = {method: {"penalty_weight": 3.0, "temperature": 3.0}}
    if keeps_out:
        differs = r"other settings \((penalty_weight, )?temperature"
        with pytest.raises(FileExistsError, match=differs):
            main("incremental", "digits", out, **SMALL, **methods, by_method=own)
    else:
        main("incremental", "digits", out, **SMALL, **methods, by_method=own)
