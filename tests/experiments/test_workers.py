import signal
import subprocess
import sys

import pytest
import torch

from lmrc.data.image_files import n_processes
from lmrc.experiments import reproduce, workers
from lmrc.experiments.reproduce import main
from lmrc.experiments.runs import Work

SMALL = {"seeds": 1, "epochs": 1, "limit": 12, "device": "cpu", "quiet": True}


@pytest.mark.parametrize(("threads", "runs", "jobs"), [(2, 12, 2), (2, 1, 1), (64, 99, 8)])
def test_one_run_per_core_by_default(monkeypatch, threads, runs, jobs):
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    assert workers.default_jobs(runs, "cpu") == jobs


def test_a_stopped_ablation_is_resumed_in_parallel(ablation, tmp_path, records_of):
    whole = (ablation / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run.json").write_text((ablation / "run.json").read_text())
    (tmp_path / "records.jsonl").write_text("".join(whole[:7]))  # + cosine schedule lacks three
    main("ablation", "digits", tmp_path, **SMALL, methods=["lmrc", "cosine"], jobs=2)
    expected = [r for r in records_of(ablation) if r["method"] in ("LMRC", "+ cosine schedule")]
    assert records_of(tmp_path) == expected


def test_parallel_runs_share_the_memory(monkeypatch):
    """Each opens the data set: together, they must not take more than half of the memory."""
    seen = []
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setattr("warnings.formatwarning", None)  # restored afterwards
    monkeypatch.setattr(workers, "open_dataset", lambda *_: seen.append(n_processes()))
    monkeypatch.setattr(workers, "execute", lambda *_, **__: ())
    workers._work(Work(None, [], None, None, {}), None, torch.get_num_threads(), jobs=3)
    assert seen == [3]


@pytest.mark.parametrize("jobs", [1, 2])
def test_tasks_of_unequal_size_are_refused_before_anything_is_run(tmp_path, jobs):
    with pytest.raises(ValueError, match="leaves 5 of 10 classes to 3 more tasks"):
        main("incremental", "digits", tmp_path, **SMALL, first_classes=5, tasks=4, jobs=jobs)


def test_ctrl_c_does_not_reach_parallel_runs():
    """Each would print a traceback; the process that started them ends them."""
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with workers._interrupts_blocked():
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.communicate()[0] == "True\n"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_an_interrupted_run_says_how_to_continue(tmp_path, monkeypatch, capsys):
    def interrupted(work):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(reproduce, "run_sequentially", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main("incremental", "digits", tmp_path, **SMALL, methods=["finetune"], jobs=1)
    told = f"tasks recorded in {tmp_path}: 0; the same command continues\n"
    assert capsys.readouterr().err == told
