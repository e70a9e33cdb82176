"""A run that is killed at any moment can be resumed, with the same records."""

import json
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from lmrc import LMRCClassifier
from lmrc.evaluation.metrics import task_aware_accuracy
from lmrc.experiments import runs, workers
from lmrc.experiments.inputs import open_dataset, open_stream
from lmrc.experiments.recipe import load_recipe
from lmrc.methods.catalog import find_method, make_learner
from lmrc.report.records import read_records
from lmrc.statistics import prediction_rules

SMALL = ["--dataset", "digits", "--limit", "12", "--quiet"]
TASKS = 5
KILLED = -signal.SIGKILL

#: Methods of a user's own, which have the command killed or fail where a test's file tells them to.
MODULE = """
import multiprocessing, os, signal, time, warnings
from pathlib import Path
import numpy as np
from lmrc import FineTuneClassifier, LMRCClassifier

if Path("forked").exists():  # quickly: new processes take seconds to import torch
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda _: fork

def perhaps_die(*where):
    moment = Path("die_at")
    if moment.exists() and moment.read_text() == " ".join(map(str, where)):
        moment.unlink()
        command = multiprocessing.parent_process() or multiprocessing.current_process()
        os.kill(command.pid, signal.SIGKILL)
        time.sleep(300)  # a process beside the killed command ends with it, before this does
        Path("outlived").touch()

class KilledClassifier(LMRCClassifier):
    def losses(self, *args):
        perhaps_die("epoch", len(self.history_))
        return super().losses(*args)

    def save(self, path):
        perhaps_die("save", self.n_tasks_)
        super().save(path)

class ForeignClassifier:
    "Nearest mean image: nothing of lmrc in it, and it cannot be saved."

    def __init__(self):
        self.means = {}

    def partial_fit(self, X, y):
        perhaps_die("foreign", len(self.means))
        self.means |= {label: X[y == label].astype(float).mean(axis=0) for label in np.unique(y)}

    def predict(self, X):
        distances = [np.square(X - mean).sum(axis=(1, 2)) for mean in self.means.values()]
        return np.array(list(self.means))[np.argmin(distances, axis=0)]

class FragileClassifier(FineTuneClassifier):
    def losses(self, *args):
        if self.n_tasks_ == 1 and Path("fail").exists():
            warnings.warn("the second task\\nis heavy")
            raise RuntimeError("the second task is too much")
        with open("learnt", "a") as log:
            print(self.n_tasks_, file=log)
        return super().losses(*args)

class DivergingClassifier(FineTuneClassifier):
    def losses(self, *args):
        return {name: term * float("inf") for name, term in super().losses(*args).items()}

class UncompiledClassifier(FineTuneClassifier):
    def losses(self, *args):
        if self.n_tasks_ == 1 and self.compile is not False:
            raise RuntimeError("the compiler is broken")
        return super().losses(*args)
"""


@pytest.fixture(autouse=True)
def here(own_module):
    own_module(MODULE)


@pytest.fixture
def call(call):
    """Run the command in this process, which is quicker; return its exit code and its errors."""

    def run_here(experiment, *words, threads=1):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        code, _, errors = call("reproduce", experiment, *SMALL, *map(str, words))
        torch.set_num_threads(before)
        return code, errors

    return run_here


@pytest.fixture
def run(run_job):
    """Run the command in a process of its own; return its exit code and its errors."""

    def run_there(experiment, *words, **fault):
        words = ["reproduce", experiment, *SMALL, *map(str, words)]
        done = run_job(*words, **fault, undrawn="all")
        return done["code"], done["said"]

    return run_there


def whole_lines(out):
    """Return the records as they are in the file, without an unfinished last one."""
    path = out / "records.jsonl"
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def comparable(out):
    """Return the records as text, without what two runs need not have in common.

    That is seconds, the day, and the commit, which may change while tests run.
    """
    records = [json.loads(line) for line in whole_lines(out)]
    for line in records:
        assert line["record"].pop("train_seconds") > 0
        assert line["record"].pop("test_seconds") > 0
        line["versions"] = {
            n: v for n, v in line["versions"].items() if n not in ("commit", "date")
        }
    return [json.dumps(line, sort_keys=True) for line in records]


def assert_nothing_is_left(out):
    assert not (out / "models").exists()
    assert (out / "report.html").exists()


def test_killed_again_and_again_while_writing(call, run):
    words = ["rehearsal", "--methods", "lmrc,ewc", "--memory", 3, "--epochs", 1, "--seeds", 1]
    words += ["--tasks", 2]
    assert call(*words, "--out", "whole")[0] == 0
    expected = comparable(Path("whole"))
    assert len(expected) == 2 * 2

    out, before, counts = Path("parts"), [], []
    for steps in (4, 9, 24, 34):
        assert run(*words, "--out", out, step=steps, how="killed")[0] == KILLED
        lines = whole_lines(out)
        assert lines[: len(before)] == before, "a finished task was touched"
        before = lines
        counts.append(len(lines))
        # What a kill in the midst of writing leaves, cut within a character.
        with (out / "records.jsonl").open("ab") as file:
            file.write('{"method": "LMRC – λ'.encode()[:-1])
    assert counts[0] == 0 < counts[1] < counts[-1] < len(expected)
    assert run(*words, "--out", out)[0] == 0
    assert whole_lines(out)[: len(before)] == before
    assert (out / "records.jsonl").read_bytes().endswith(b"\n")
    assert comparable(out) == expected
    assert_nothing_is_left(out)


def test_diverged_training_is_reported_in_one_line(call, run):
    words = ["incremental", "--methods", "own.DivergingClassifier", "--epochs", 1, "--seeds", 1]
    for run_it, jobs in ((call, 1), (run, 2)):  # what processes of their own say is theirs
        code, errors = run_it(*words, "--jobs", jobs)
        assert code == 1
        assert "own.DivergingClassifier-s0: the loss is not finite" in errors
        assert "Traceback" not in errors
        Path("forked").touch()  # for those only


def test_a_full_disk_is_reported_in_one_line_and_the_run_can_be_resumed(call, limit_disk):
    words = ["incremental", "--methods", "finetune", "--epochs", 1, "--seeds", 1]
    limit_disk(10_000)  # for what describes the run, and no model
    code, errors = call(*words)
    assert code == 1
    assert "finetune-s0: [Errno 28] No space left on device" in errors
    assert "Traceback" not in errors
    limit_disk(10**9)
    assert call(*words)[0] == 0
    assert_nothing_is_left(Path("runs/incremental-digits"))


def test_a_run_is_resumed_with_other_execution_parameters(call):
    words = ["incremental", "--methods", "own.UncompiledClassifier", "--epochs", 1, "--seeds", 1]
    code, errors = call(*words)
    assert code != 0
    assert "the compiler is broken" in errors
    out = Path("runs/incremental-digits")
    assert len(whole_lines(out)) == 1
    assert call(*words, "--set", "compile=false")[0] == 0
    records = [json.loads(line) for line in whole_lines(out)]
    assert len(records) == TASKS
    assert records[0]["settings"] == records[-1]["settings"]
    assert call(*words, "--set", "compile=perhaps")[0] == 2


def test_killed_during_a_task_and_between_record_and_model(call, run):
    """The moments that matter, each met exactly; with methods of one's own, too."""
    methods = "own.KilledClassifier,own.ForeignClassifier"
    words = ["incremental", "--methods", methods, "--epochs", 2, "--seeds", 1]
    assert call(*words, "--out", "whole")[0] == 0
    expected = comparable(Path("whole"))

    out = Path("parts")
    moments = {
        "epoch 1": 0,  # the first task, half learnt
        "epoch 5": 2,  # the third
        "save 3": 3,  # the third has its record; its model is not there yet
        "foreign 6": TASKS + 3,  # learns again what it knew: it cannot be saved
    }
    before = []
    for moment, n_records in moments.items():
        Path("die_at").write_text(moment)
        assert run(*words, "--out", out)[0] == KILLED, moment
        lines = whole_lines(out)
        assert len(lines) == n_records
        assert lines[: len(before)] == before
        before = lines
    assert call(*words, "--out", out)[0] == 0
    assert whole_lines(out)[: len(before)] == before
    assert comparable(out) == expected
    assert_nothing_is_left(out)


def test_parallel_runs_give_the_same_records_even_if_killed(call, run):
    words = ["incremental", "--methods", "own.KilledClassifier,finetune", "--epochs", 1]
    words += ["--seeds", 1]
    out = Path("parts")
    parallel = [*words, "--jobs", 2, "--out", out]
    Path("forked").touch()
    Path("die_at").write_text("epoch 3")
    assert run(*parallel)[0] == KILLED
    assert not Path("outlived").exists(), "a process of the killed command lived on"
    assert run(*parallel)[0] == 0

    Path("forked").unlink()
    threads = json.loads(whole_lines(out)[0])["threads"]
    assert call(*words, "--out", "whole", threads=threads)[0] == 0
    assert sorted(comparable(out)) == sorted(comparable(Path("whole")))
    assert_nothing_is_left(out)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_run_is_reported_and_does_not_stop_the_others(run, jobs):
    words = ["incremental", "--methods", "own.FragileClassifier,lmrc", "--epochs", 1, "--seeds", 1]
    words += ["--jobs", jobs, "--out", "parts"]
    Path("forked").touch()
    Path("fail").touch()
    code, errors = run(*words)
    assert code == 1
    assert "the second task is too much" in errors
    assert "lmrc: warning: the second task is heavy" in errors.splitlines()
    assert "own.FragileClassifier-s0 failed, see above" in errors.splitlines()[-1]
    before = whole_lines(Path("parts"))
    methods = [json.loads(line)["method"] for line in before]
    assert methods.count("own.FragileClassifier") == 1
    assert methods.count("LMRC") == TASKS

    Path("fail").unlink()
    Path("learnt").unlink()
    assert run(*words)[0] == 0
    lines = whole_lines(Path("parts"))
    assert lines[: len(before)] == before
    assert len(lines) == 2 * TASKS
    assert set(Path("learnt").read_text().split()) == {"1", "2", "3", "4"}  # task 0 was done
    assert_nothing_is_left(Path("parts"))


def test_an_existing_folder_takes_more_seeds_and_methods_and_nothing_else(call):
    words, out = ["--epochs", 1, "--out", "runs"], Path("runs")
    assert call("incremental", *words, "--methods", "lmrc", "--seeds", 1)[0] == 0
    first = whole_lines(out)

    for other in (["--epochs", 2], ["--limit", 10], ["--tasks", 2], ["--order", "natural"]):
        code, errors = call("incremental", *words, "--methods", "lmrc", *other)
        assert (code, errors.count("\n")) == (1, 1)
        assert "runs holds incremental with other settings" in errors
    assert call("consolidation", *words)[0] == 1
    assert whole_lines(out) == first

    assert call("incremental", *words, "--methods", "lmrc,finetune", "--seeds", 2)[0] == 0
    lines = whole_lines(out)
    assert lines[: len(first)] == first
    found = [(line["method"], line["seed"]) for line in map(json.loads, lines)]
    assert {pair: found.count(pair) for pair in found} == dict.fromkeys(
        [("LMRC", 0), ("Fine-tuning", 0), ("LMRC", 1), ("Fine-tuning", 1)], TASKS
    )
    assert_nothing_is_left(out)


def test_removed_records_are_made_again(call):
    """As the message about a damaged line advises: the model on disk is then ahead of them."""
    words = ["incremental", "--methods", "own.FragileClassifier", "--epochs", 1, "--seeds", 1]
    words += ["--out", "parts"]
    out = Path("parts")
    Path("fail").touch()
    assert call(*words)[0] == 1
    before = comparable(out)
    assert len(before) == 1
    (out / "records.jsonl").write_bytes(b"")
    Path("fail").unlink()
    assert call(*words)[0] == 0
    assert comparable(out)[:1] == before
    assert len(whole_lines(out)) == TASKS


def test_a_record_removed_from_the_middle_is_made_again(call):
    words = ["incremental", "--methods", "lm", "--epochs", 1, "--seeds", 1, "--out", "whole"]
    assert call(*words)[0] == 0
    out = Path("whole")
    before, page = comparable(out), (out / "table.csv").read_text()
    lines = (out / "records.jsonl").read_text().splitlines(keepends=True)
    (out / "records.jsonl").write_text("".join([lines[0], *lines[2:]]))
    assert call(*words)[0] == 0
    assert comparable(out)[-4:] == before[1:]
    assert (out / "table.csv").read_text() == page


def test_the_model_of_a_finished_run_is_removed_after_a_kill(tmp_path, monkeypatch):
    recipe = load_recipe("incremental", "digits", methods=["lmrc", "lm"], seeds=1)
    monkeypatch.setattr(runs, "finished", lambda _, run: TASKS if run.method == "lmrc" else 3)
    whole, half = runs.plan(recipe)
    for run_ in (whole, half):
        (tmp_path / "models" / run_.name).mkdir(parents=True)
        (tmp_path / "models" / f"{run_.name}.lock").touch()
    assert runs.unfinished(recipe, [whole, half], tmp_path) == [half]
    left = sorted(path.name for path in (tmp_path / "models").iterdir())
    assert left == ["lm-s0", "lm-s0.lock"]


def test_the_model_of_a_finished_run_is_not_read_while_another_process_removes_it(
    tmp_path, monkeypatch
):
    recipe = load_recipe("incremental", "digits", methods=["lmrc"], seeds=1)
    monkeypatch.setattr(runs, "finished", lambda *_: TASKS)
    (run_,) = runs.plan(recipe)
    path = runs.model_path(tmp_path, run_)
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("half of it")
    assert runs.resume_point(recipe, run_, tmp_path) == (TASKS, None)


def test_a_process_says_what_it_waits_for(tmp_path, monkeypatch):
    told, said = threading.Event(), []
    monkeypatch.setattr(runs, "say", lambda text, **_: (said.append(text), told.set()))
    (run_,) = runs.plan(load_recipe("incremental", "digits", methods=["lmrc"], seeds=1))

    def second():
        with runs.locked_run(tmp_path, run_):
            said.append("its turn")

    waiting = threading.Thread(target=second)
    with runs.locked_run(tmp_path, run_):
        waiting.start()
        assert told.wait(60)
        said.append("first done")
    waiting.join()
    waits = "lmrc-s0: waiting for another process that works on it"
    assert said == [waits, "first done", "its turn"]


def test_only_failures_in_other_code_have_a_traceback(capsys):
    (run_,) = runs.plan(load_recipe("incremental", "digits", methods=["lmrc"], seeds=1))
    for work in (lambda: LMRCClassifier().partial_fit([[0.0]], [0, 1]), lambda: int("own code")):
        try:
            work()
        except ValueError as error:
            workers._print_failure(run_, error)
        shown = capsys.readouterr().err
        assert ("Traceback" in shown) == ("own code" in shown)


# --- What a record holds --------------------------------------------------------------------------

ROWS = ["LMRC", "+ cosine schedule", "+ λ = 3, statistics", "LMRC+"]


def by_method(folder):
    records = {}
    for record in read_records(folder):
        records.setdefault(record.method, []).append(record)
    return records


def test_records_hold_the_variants_name_and_all_its_settings(ablation):
    records = by_method(ablation)
    assert list(records) == ROWS
    settings = {method: record[0].settings for method, record in records.items()}
    assert [settings[m]["schedule"] for m in ROWS] == ["halving", "cosine", "cosine", "cosine"]
    assert [settings[m]["response_weight"] for m in ROWS] == [1, 1, 3, 3]
    assert settings["+ λ = 3, statistics"]["classifier"] == "LMRCPlusClassifier"
    assert {len(record) for record in records.values()} == {5}


def test_prediction_rules_of_one_network_score_as_each_alone(ablation):
    records = by_method(ablation)
    assert all("prediction_rules" not in r.extra for m in ROWS[:2] for r in records[m])
    third = records[ROWS[2]][2]
    recipe = load_recipe("ablation", "digits", seeds=1, epochs=1, limit=12)
    method = find_method("statistics", recipe.variants)
    stream = open_stream(recipe, 0, open_dataset(recipe, None))
    learner = make_learner(method, recipe.settings | {"random_state": 0, "device": "cpu"})
    for task in stream[:3]:
        learner.partial_fit(task.X_train, task.y_train)
    X, y = stream.test_up_to(2)
    # The backbone is not frozen, and networks of earlier tasks do not predict.
    for rule in set(prediction_rules.RULES) - {"snapshots", "ridge"}:
        learner.set_params(predict_with=rule)
        found = third.extra["prediction_rules"][rule]
        assert found["accuracy"] == np.mean(learner.predict(X) == y)
        if rule == "ensemble":
            assert found == {name: getattr(third.record, name) for name in found}
        scores, classes = learner.similarities(X), learner.classes_
        assert found["task_aware_accuracy"] == task_aware_accuracy(
            y, scores, classes, stream.task_of
        )


def test_bytes_stored_beside_the_network_are_recorded(ablation, call):
    records = by_method(ablation)
    end = {method: records[method][-1].extra["stored_bytes"] for method in ROWS}
    assert end["LMRC"] == {"images": 0, "statistics": 0}
    assert end["LMRC+"]["images"] == 0 < end["LMRC+"]["statistics"]
    words = ["--methods", "joint", "--epochs", 1, "--seeds", 1, "--out", "joint"]
    assert call("incremental", *words)[0] == 0
    stored = [r.extra["stored_bytes"]["images"] for r in by_method(Path("joint"))["Joint"]]
    assert stored == [2 * 12 * 64 * (i + 1) for i in range(TASKS)]
