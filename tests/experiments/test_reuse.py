"""Records of another experiment are copied, not made again."""

import shutil
from dataclasses import replace

import pytest

from lmrc.experiments.reproduce import main
from lmrc.report.records import append_record, read_description, read_records

SMALL = {"seeds": 1, "epochs": 1, "limit": 12, "device": "cpu", "quiet": True}


@pytest.mark.parametrize(
    ("experiment", "methods"),
    [("consolidation", ["LMRC", "LM"]), ("heads", ["LMRC", "LwF.MT", "LM"])],
)
def test_records_of_incremental_are_copied_and_nothing_is_trained(
    experiment, methods, incremental, tmp_path, no_training, capsys
):
    main(experiment, "digits", tmp_path, source=incremental, **SMALL)
    theirs = {r.method: [] for r in read_records(incremental)}
    for record in read_records(incremental):
        theirs[record.method].append(record)
    assert read_records(tmp_path) == [r for method in methods for r in theirs[method]]
    note = f"Copied from the records in {incremental}, not trained again: LMRC with seed 0; L"
    assert note in read_description(tmp_path).notes[0]
    assert note in capsys.readouterr().err
    assert note in (tmp_path / "report.html").read_text()


def test_a_parameter_that_was_removed_is_no_difference(incremental, tmp_path, no_training):
    source = tmp_path / "old"
    shutil.copytree(incremental, source)
    (source / "records.jsonl").unlink()
    for record in read_records(incremental):
        append_record(source, replace(record, settings=record.settings | {"swa_epochs": 0}))
    main("consolidation", "digits", tmp_path / "new", source=source, **SMALL)


def test_the_default_folder_of_incremental_is_found(incremental, tmp_path, no_training):
    no_training.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "incremental-digits").symlink_to(incremental)
    main("consolidation", "digits", **SMALL)
    assert (tmp_path / "runs" / "consolidation-digits" / "consolidation.png").exists()


def test_records_with_other_settings_are_not_copied(incremental, tmp_path, no_training, capsys):
    with pytest.raises(RuntimeError, match="lmrc-s0, lwf-mt-s0, lm-s0 failed, see above"):
        main("heads", "digits", tmp_path, source=incremental, **{**SMALL, "epochs": 2})
    assert "LMRC with seed 0; LwF.MT with seed 0; LM" in (said := capsys.readouterr().err)
    assert "other settings (epochs), so trained here" in said


def test_a_folder_to_copy_from_must_hold_records(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no records\.jsonl: give a run folder"):
        main("heads", "digits", tmp_path / "out", source=tmp_path, **SMALL)
