import io
import json
import platform
from contextlib import redirect_stderr, redirect_stdout
from functools import partial

import pytest
import torch

from lmrc.data.datasets import load_dataset
from lmrc.experiments import demo
from lmrc.report.records import Description, read_records, write_description
from lmrc.report.summary import Spread, summarize_methods


@pytest.fixture(scope="module", autouse=True)
def few_images():
    """Learn from 12 images of each digit: nothing here need be accurate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "load_dataset", partial(load_dataset, limit=12))
        yield


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A whole demo of one epoch, where other files lie already; what it printed and told."""
    out = tmp_path_factory.mktemp("runs") / "demo"
    out.mkdir()
    (out / "mine.txt").write_text("stays")
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()) as progress:
        demo.main(out, epochs=1)
    return out, printed.getvalue(), progress.getvalue()


@pytest.fixture
def records(ran):
    return read_records(ran[0])


def test_every_method_learns_five_tasks_of_two(records):
    assert len(records) == 5 * 5
    assert list(dict.fromkeys(line.method for line in records)) == list(demo.RUNS)
    for i, line in enumerate(records):
        assert line.seed == 0
        assert line.record.task == i % 5
        assert line.record.classes == [2 * (i % 5), 2 * (i % 5) + 1]


def test_records_hold_versions_hardware_and_settings(records):
    line = records[0]
    assert line.settings["backbone"] == "cnn"
    assert line.settings["batch_size"] == 32
    assert line.settings["epochs"] == 1
    assert line.settings["dataset"] == "digits"
    assert line.versions["torch"] == str(torch.__version__)
    assert set(line.versions) - {"commit"} == {"lmrc", "torch", "numpy", "python", "date"}
    assert line.hardware.startswith(platform.machine())
    assert line.threads == 1
    assert line.extra["augmentation"] == "none"  # whatever the settings would do to other images
    assert platform.node() not in json.dumps([vars(r) for r in records], default=str)


def test_the_methods_differ_in_one_thing_each(records):
    by_method = {line.method: line.settings for line in records}
    plain = by_method[demo.LMRC]
    assert by_method[demo.LM] == {**plain, "response_weight": 0.0}
    assert by_method[demo.LMRC_EXEMPLARS] == {**plain, "memory_per_class": 10}
    assert by_method[demo.FINE_TUNING]["classifier"] == "FineTuneClassifier"
    assert by_method[demo.LMRC_PLUS]["rotations"] == "none"  # a 6 on its head is a 9
    assert by_method[demo.LMRC_PLUS]["memory_per_class"] == 0


def test_the_findings_and_the_page_are_printed(ran, records):
    out, printed, progress = ran
    summaries = summarize_methods(records)
    description = json.loads((out / "run.json").read_text())
    assert description["findings"] == demo.describe(summaries)
    assert description["headline"] == demo.headline(summaries)
    assert " ".join(description["findings"]) in " ".join(printed.split())
    assert "| fine-tuning |" in printed
    assert str(out / "report.html") in printed
    assert "\x1b" not in printed + progress  # there is no terminal
    assert len(progress.splitlines()) == len(records)
    assert [list(command) for command in description["commands"]] == [["words"]]
    assert f"--out {out}" in description["commands"][0]["words"]


def test_the_thread_count_is_restored():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run = demo.run(epochs=1)
        assert next(run).threads == 1
        run.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def with_old(summaries, **old):
    """Return the summaries with other accuracies on old classes."""
    from dataclasses import replace

    by_name = {"lmrc": demo.LMRC, "lm": demo.LM, "finetune": demo.FINE_TUNING}
    by_name["exemplars"] = demo.LMRC_EXEMPLARS
    shares = {by_name[key]: share for key, share in old.items()} | {demo.LMRC_PLUS: 0.75}
    return [
        replace(s, old=Spread(shares[s.method], None), new=Spread(0.98, None)) for s in summaries
    ]


def test_the_findings_follow_the_numbers(records):
    summaries = summarize_methods(records)
    usual = with_old(summaries, lmrc=0.58, lm=0.08, finetune=0.0, exemplars=0.96)
    forgets, keeps, beyond = demo.describe(usual)
    assert "98 % accuracy on the last two digits and 0 % on the eight before: every" in forgets
    assert "exemplar-free LMRC has 58 %, LM, which lets the old responses drift, 8 %" in keeps
    assert "LMRC with 10 exemplars per class 96 %" in keeps
    assert "has 75 %, exemplar-free" in beyond
    assert demo.headline(usual).endswith("LMRC 58 %, LMRC+ 75 %, fine-tuning 0 %.")
    odd = demo.describe(with_old(summaries, lmrc=0.58, lm=0.08, finetune=0.3, exemplars=0.4))
    assert "suppress" not in odd[0]


def test_another_experiments_folder_is_left_alone(tmp_path):
    write_description(tmp_path, Description("incremental", "t", "q", []))
    (tmp_path / "records.jsonl").write_text("")
    with pytest.raises(FileExistsError, match="another experiment; choose another folder"):
        demo.main(tmp_path, epochs=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records.jsonl", "run.json"]


def test_a_second_run_replaces_the_first(ran, tmp_path, records):
    description = Description("demo", "t", "q", [])
    demo.clear_folder(tmp_path, description)
    (tmp_path / "records.jsonl").write_text("old")
    (tmp_path / "report.html").write_text("old")
    (tmp_path / "mine.html").write_text("mine")
    demo.clear_folder(tmp_path, description)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.html", "run.json"]
