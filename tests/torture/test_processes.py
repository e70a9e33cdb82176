"""A process that is killed or cannot write leaves a complete model and can be resumed."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from lmrc.store import unfinished

SEED = 1
RESUME = ("learn", "m", "--resume", "-q", "--checkpoint-every", "0")


def names(path="m"):
    return sorted(p.name for p in Path(path).iterdir()) if Path(path).exists() else []


def contents(path):
    return {p.name: p.read_bytes() for p in Path(path).iterdir()}


def next_of(words):
    """Return the next command after these words were interrupted."""
    return RESUME if unfinished.is_there(Path("m")) else words


def is_clear(done):
    """Tell whether a command failed with an error message of lmrc, without a traceback."""
    last = done["said"].strip().splitlines()[-1]
    return done["code"] == 1 and last.startswith("lmrc: ") and "Traceback" not in done["said"]


def test_kill_9_at_random_moments(stages, outputs, run_job, trial, is_full):
    known, commands = stages.known, stages.learn
    stages.go_back(0)
    lengths = [run_job(*words)["seconds"] for words in commands]
    rng, wanted = np.random.default_rng(SEED), 200 if is_full else 10
    stage = 2  # how many tasks the model has learnt

    def current_stage():
        """Return the stage of the model: the one before, or the one after."""
        now = outputs()
        assert now in (known[stage], known[stage + 1]), "neither as before nor as after"
        return known.index(now)

    while wanted:
        if stage == 2:
            stages.go_back(stage := 0)
        moment = rng.random()
        words, length = next_of(commands[stage]), lengths[stage]
        if run_job(*words, kill_after=moment * length)["code"] != -9:
            stage += 1  # it had ended before
            continue
        wanted -= 1
        with trial("`kill -9` at a random moment of learn", f"seed {SEED}, {moment:.4f}"):
            stage = current_stage()
            if stage < 2 and rng.random() < 0.5:  # else the next one is killed, too
                done = run_job(*next_of(commands[stage]))
                assert done["code"] == 0, done["said"]
                stage += 1
                assert outputs() == known[stage]
                assert names() == names(str(stage))
            continue
        stages.go_back(stage := 0)


STAGES = [(0, "learn"), (1, "learn"), (2, "rename"), (2, "forget"), (2, "prune"), (2, "rollback")]


def words_of(stages, stage, command):
    more = {"rename": ("b", "z"), "forget": ("b",)}
    return (
        stages.learn[stage] if command == "learn" else (command, "m", *more.get(command, ()), "-q")
    )


@pytest.mark.parametrize(("stage", "command"), STAGES)
def test_a_reader_never_sees_half_a_model(stages, outputs, run_job, trial, stage, command):
    stages.go_back(stage)
    done = run_job(*words_of(stages, stage, command), step=0, how="watched")
    assert done["code"] == 0, done["said"]
    before, after = stages.known[stage], outputs()
    steps = sorted(Path("steps").iterdir())
    assert len(steps) > 5
    seen = []
    for step in steps:
        shutil.rmtree("m")
        shutil.copytree(step, "m")
        with trial("reader at each step of writing", f"{command} {stage}, step {step.name}"):
            seen.append(outputs())
            assert seen[-1] in (before, after)
            assert seen[-1] == after or after not in seen, "it changed back"


@pytest.mark.parametrize("how", ["killed", "full"])
@pytest.mark.parametrize(("stage", "command"), STAGES)
def test_a_command_stops_at_any_step(stages, outputs, run_job, trial, is_full, stage, command, how):
    known, go_back = stages.known, stages.go_back
    words = words_of(stages, stage, command)
    go_back(stage)
    assert run_job(*words)["code"] == 0
    before, after, whole = known[stage], outputs(), len(names())
    kind = {"killed": "`kill -9` at each step of writing", "full": "disk full from each write on"}
    step, stride = 0, 1 if is_full else 17
    while True:
        go_back(stage)
        stopped = run_job(*words, step=step, how=how)
        with trial(kind[how], f"{command} {stage}, step {step}"):
            now = outputs()
            assert now in (before, after)
            assert stopped["code"] in (0, -9) or is_clear(stopped), stopped["said"]
            assert now == after or stopped["code"], "it reported success without the change"
            if now != after or unfinished.is_there(Path("m")):
                done = run_job(*next_of(words))
                assert done["code"] == 0, done["said"]
            assert outputs() == after
            assert len(names()) == whole or stopped["code"]
        if stopped["code"] == 0 and step > 5:
            break
        step += stride


@pytest.mark.parametrize("stage", [0, 1])
def test_a_file_that_does_not_fit_on_the_disk(stages, outputs, run_job, trial, is_full, stage):
    known, words = stages.known, stages.learn[stage]
    sizes = sorted({p.stat().st_size for p in Path(str(stage + 1)).iterdir()})
    limits = sorted({0, 10, *(size - 1 for size in sizes), *sizes})
    for limit in limits if is_full else limits[::5]:
        stages.go_back(stage)
        with trial("disk full in the middle of a file", f"learn {stage}, {limit} bytes"):
            done = run_job(*words, limit=limit)
            assert is_clear(done) or done["code"] == 0, done["said"]
            now = outputs()
            assert now == known[stage + 1 if done["code"] == 0 else stage]
            if now == known[stage]:
                done = run_job(*next_of(words))
                assert done["code"] == 0, done["said"]
            assert outputs() == known[stage + 1]


def test_folders_that_cannot_be_written(stages, run_jobs, trial):
    with tempfile.TemporaryDirectory() as name:  # others may not look into those of pytest
        place = Path(name)
        place.chmod(0o755)
        for part in ("week1", "m"):
            shutil.copytree(part, place / part)
        (place / "m").chmod(0o555)
        place.chmod(0o555)
        whole = contents(place / "m")

        def run(*words):
            return run_jobs({"words": words, "place": name, "harmless": True})[0]

        for words in (
            ("learn", "m", "week1"),
            ("learn", "new", "week1"),
            ("prune", "m"),
            ("rename", "m", "a", "z"),
            ("forget", "m", "a"),
            ("rollback", "m"),
        ):
            with trial("read-only folder", " ".join(words)):
                done = run(*words)
                assert is_clear(done), done["said"]
                assert "denied" in done["said"]
                assert contents(place / "m") == whole
        for words in (("predict", "m", "week1"), ("info", "m"), ("log", "m")):
            with trial("read-only folder", " ".join(words)):
                assert run(*words)["code"] == 0
        for path in (place / "m").iterdir():
            path.chmod(0)
            with trial("model file without read permission", path.name):
                assert is_clear(done := run("predict", "m", "week1")) or not done["code"]
            path.chmod(0o644)
        place.chmod(0o755)
        (place / "m").chmod(0o755)


def test_two_learns_at_once(stages, outputs, run_jobs, trial, is_full):
    place = os.getcwd()  # noqa: PTH109
    _, model, _, *options = stages.learn[0]
    learners = [
        {"words": ["learn", model, week, *options], "place": place} for week in ("week1", "week2")
    ]
    for i in range(40 if is_full else 2):
        stages.go_back(0)
        with trial("two `learn` at once", f"round {i}"):
            done = run_jobs(*learners)
            codes = [d["code"] for d in done]
            assert 0 in codes
            for loser in (d for d in done if d["code"]):
                assert is_clear(loser), loser["said"]
                assert "is being changed by" in loser["said"]
            learnt = ["a", "b"] * (not codes[0]) + ["c", "d"] * (not codes[1])
            assert sorted(outputs()[0]) == learnt
            assert not unfinished.is_there(Path("m"))
    for i in range(40 if is_full else 2):
        stages.go_back(0)
        with trial("one `learn` beside one that fails", f"round {i}"):
            bad = {"words": ["learn", "m", "nothing"], "place": place}
            Path("nothing").mkdir(exist_ok=True)
            failed, done = run_jobs(bad, learners[0])
            assert is_clear(failed)
            assert done["code"] == 0 or "is being changed by" in done["said"], done["said"]
            assert outputs() == stages.known[1 if done["code"] == 0 else 0]
