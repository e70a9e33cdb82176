import json
import shutil
from collections import Counter

import numpy as np
import pytest
from PIL import Image

import lmrc
from lmrc.evaluation.model import reject_threshold
from lmrc.evaluation.trust import expected_calibration_error
from lmrc.practice.source import read_source


def test_evaluate_prints_classes_and_writes_a_report(place, model, call):
    code, out, err = call("evaluate", model, "test")
    assert (code, err) == (0, "")
    assert "| **all** | 40 |" in out
    samples = read_source(place / "test", shape=(1, 8, 8))
    predicted = lmrc.load(place / model).predict(samples.X)
    pairs = Counter(zip(samples.y.tolist(), predicted.tolist(), strict=True))
    (true, other), n = next(found for found in pairs.most_common() if len({*found[0]}) > 1)
    assert f"Most frequent mistakes: {n} of 10 {true} taken for {other}" in out
    page = place / "runs" / "evaluate-m" / "report.html"
    assert f"Report: {page.relative_to(place)}" in out
    text = page.read_text("utf-8")
    assert "task-aware accuracy" in text
    for words in (
        "m on test",
        "Accuracy per class",
        "three",
        "Confusion between tasks",
        "lmrc evaluate m test",
    ):
        assert words in text
    assert call("report", "runs/evaluate-m")[0] == 0
    assert page.read_text("utf-8") == text


def test_the_report_shows_the_values_chosen_for_auto(place, call):
    fast = ("--epochs", "1", "--batch-size", "16", "--device", "cpu", "--quiet")
    assert call("learn", "m", "week1", "--set", "schedule=cosine", *fast)[0] == 0
    assert call("evaluate", "m", "test")[0] == 0
    text = (place / "runs" / "evaluate-m" / "report.html").read_text("utf-8")
    settings = text.partition('id="settings"')[2]
    assert "<dt>backbone</dt><dd>cnn</dd>" in settings
    assert "<dt>augment</dt><dd>none</dd>" in settings
    assert ">None<" not in settings
    assert "<dt>halve at</dt>" not in settings


def test_json_has_the_metrics(place, model, call):
    figures = json.loads(call("evaluate", model, "test", "--json", "--out", "page")[1])
    samples = read_source(place / "test", shape=(1, 8, 8))
    assert figures["accuracy"] == pytest.approx(lmrc.load(model).score(samples.X, samples.y))
    assert set(figures["per_class"]) == {"one", "zero", "three", "two"}
    assert (place / "page" / "classes.csv").read_text().startswith("class,images,accuracy\n")


def test_unknown_images_give_a_threshold(place, model, call):
    words = ["evaluate", model, "test", "--unknown", "other"]
    _, out, _ = call(*words)
    assert "--reject-below 0." in out
    found = json.loads(call(*words, "--json")[1])["reject_below"]
    predicted = call("predict", model, "test", "--reject-below", str(found["threshold"]))[1]
    kept = sum("  unknown, " not in line for line in predicted.splitlines())
    assert kept / 40 == found["kept"]
    assert "--unknown other --out" in (place / "runs/evaluate-m/report.html").read_text("utf-8")


def test_a_useless_threshold_is_reported(place, model, call):
    assert "no threshold separates" not in call("evaluate", model, "test", "--unknown", "other")[1]
    for name in ("zero", "one", "two", "three"):
        shutil.copytree(place / "test" / name, place / "same" / f"{name} again")
    out = call("evaluate", model, "test", "--unknown", "same")[1]
    assert "no threshold separates known from unknown images well: at best, --reject-below" in out


def test_known_classes_in_the_folder_of_unknown_images_are_left_out(place, model, call):
    words = ("evaluate", model, "test", "--json", "--unknown")
    expected = json.loads(call(*words, "other")[1])["unknown"]
    shutil.copytree(place / "test", place / "other" / "known")  # below another folder
    code, out, err = call(*words, "other")
    assert code == 0
    assert "left out 40 images of known classes in other: one, three, two, zero\n" in err
    assert json.loads(out)["unknown"] == expected
    code, _, err = call(*words, "test")
    assert code == 1
    assert "test has no readable image of other classes: --unknown needs at least one" in err


def test_a_threshold_separates_similarities_that_are_very_close():
    known, unknown = np.float32([0.99998, 0.99999, 0.99997]), np.float32([0.99994, 0.99995])
    threshold, kept, rejected = reject_threshold(known, unknown)
    assert (kept, rejected) == (1.0, 1.0)
    assert unknown.max() < float(str(threshold)) <= known.min()


def test_a_threshold_maximises_balanced_accuracy():
    """All known images and 45 % of the unknown ones, not 70 % of each (more by their product)."""
    known = np.repeat([0.2, 0.9], [3, 7])
    unknown = np.repeat([0.1, 0.3, 0.95], [9, 5, 6])
    assert reject_threshold(known, unknown) == pytest.approx((0.15, 1.0, 0.45))


def test_unknown_classes_are_left_out(place, model, call):
    shutil.copytree(place / "other" / "four", place / "test" / "four")
    _, out, err = call("evaluate", model, "test")
    assert "left out 10 images of classes unknown to the model: four" in err
    for i in range(6):
        shutil.copytree(place / "other" / "four", place / "test" / f"four{i}")
    (place / "test" / "four").rename(place / "test" / "five")
    _, _, err = call("evaluate", model, "test")
    assert "unknown to the model: five, four0, four1, four2, four3 and 2 more\n" in err
    assert "| **all** | 40 |" in out
    code, _, err = call("evaluate", model, "other")
    assert code == 1
    assert "has none of the model's classes, only four" in err


def test_known_classes_without_test_images_are_named(place, model, call):
    for name in ("one", "two"):
        shutil.rmtree(place / "test" / name)
    code, out, err = call("evaluate", model, "test")
    assert (code, err) == (0, "")
    told = "no test images of 2 known classes: one, two"
    assert f"{told}\n" in out
    assert f'<p class="caveat">{told}</p>' in (place / "runs/evaluate-m/report.html").read_text()


def test_test_images_are_preferred(place, model, call):
    shutil.copytree(place / "week1", place / "mixed" / "train")
    shutil.copytree(place / "test", place / "mixed" / "test")
    assert "| **all** | 40 |" in call("evaluate", model, "mixed")[1]


def test_folders_of_other_experiments_are_not_overwritten(place, model, call):
    (place / "page").mkdir()
    (place / "page" / "records.jsonl").write_text("{}\n")
    code, _, err = call("evaluate", model, "test", "--out", "page")
    assert code == 1
    assert "another experiment" in err
    (place / "void").mkdir()
    assert "needs at least one" in call("evaluate", model, "test", "--unknown", "void")[2]


def test_probabilities_and_the_unknown_are_measured(place, calibrated, call):
    words = ("evaluate", calibrated, "test", "--unknown", "other")
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    figures = json.loads(call(*words, "--json")[1])
    assert f" on average (expected calibration error {figures['ece']:.3f})\n" in out
    page = (place / "runs/evaluate-m/report.html").read_text("utf-8")
    assert f"The expected calibration error, the mean gap, is {figures['ece']:.3f}." in page
    model = lmrc.load(calibrated)
    known, others = (read_source(place / name, shape=(1, 8, 8)) for name in ("test", "other"))
    scores, of_others = model.unknown_scores(known.X), model.unknown_scores(others.X)
    pairs = scores[:, None] < of_others
    found = figures["unknown"]
    assert found["scores"]["unknown score"]["auroc"] == pytest.approx(pairs.mean())
    assert set(found["scores"]) == {"unknown score", "maximum similarity"}
    threshold = model.unknown_threshold(0.05)
    assert found["lost"] == (scores > threshold).mean()
    assert found["found"] == (of_others > threshold).mean()
    assert f"predict --unknown rejects {100 * found['lost']:.1f} % of these images" in out
    confidence = model.predict_proba(known.X).max(axis=1)
    ece = expected_calibration_error(confidence, model.predict(known.X) == known.y)
    assert figures["ece"] == pytest.approx(ece)
    assert "reject_below" not in figures  # its own threshold is better


def test_the_page_shows_images_to_look_at(place, calibrated, call):
    (place / "test/one/000.png").write_bytes((place / "test/zero/000.png").read_bytes())
    (place / "test/one/001.png").write_bytes(b"no image")
    assert call("evaluate", calibrated, "test", "--out", "page")[0] == 0
    page = (place / "page/report.html").read_text("utf-8")
    assert "The most confident mistakes" in page
    assert 'src="data:image/jpeg;base64,/9j/' in page
    assert 'title="test/one/000.png"' in page
    record = json.loads((place / "page/records.jsonl").read_text("utf-8"))
    mistakes, doubtful = record["images"]["mistakes"], record["images"]["doubtful"]
    for name, true, predicted, *_ in (*mistakes, *doubtful):
        assert name.split("/")[1] == true
        pixels = np.asarray(Image.open(place / name))
        assert lmrc.load(calibrated).predict(pixels[None])[0] == predicted
    assert all(true != predicted for _, true, predicted, *_ in mistakes)
    assert all(true == predicted for _, true, predicted, *_ in doubtful)
    assert all(confidence < 0.9 for *_, confidence, _ in doubtful)  # others are not doubtful
    sure = [confidence for *_, confidence, _ in mistakes]
    assert sure == sorted(sure, reverse=True)
    assert "<br>000.<wbr>png" in page or "<br>000.png" in page  # as a tooltip is not for touch
    words = ("evaluate", calibrated, "test", "--unknown", "other", "--out", "page")
    assert call(*words)[0] == 0
    assert "unknown images that look most like a known" in (place / "page/report.html").read_text()
    (record,) = map(json.loads, (place / "page/records.jsonl").read_text("utf-8").splitlines())
    taken = [place / name for name, *_ in record["images"]["taken"]]
    scores = lmrc.load(calibrated).unknown_scores(
        np.stack([np.asarray(Image.open(f)) for f in taken])
    )
    assert len(taken) == 10
    assert (np.diff(scores) >= -1e-6).all()
    assert call("evaluate", calibrated, "test", "--out", "page", "--no-images")[0] == 0
    page = (place / "page/report.html").read_text("utf-8")
    assert "data:image/jpeg" not in page
    assert "test/one/<wbr>000.<wbr>png" in page or "test/one/000.<wbr>png" in page


def test_images_of_arrays_are_shown_without_names(place, calibrated, call):
    samples = read_source(place / "test", shape=(1, 8, 8))
    np.savez("arrays.npz", X=samples.X, y=samples.y)
    assert call("evaluate", calibrated, "arrays.npz", "--out", "page")[0] == 0
    assert "data:image/jpeg" in (place / "page/report.html").read_text("utf-8")
    (record,) = map(json.loads, (place / "page/records.jsonl").read_text("utf-8").splitlines())
    assert {name for shown in record["images"].values() for name, *_ in shown} == {""}


@pytest.mark.parametrize("folder", ["void", "one-class", "one-image"])
def test_few_images_get_a_page_or_one_clear_line(place, calibrated, call, folder):
    (place / folder).mkdir()
    if folder != "void":
        shutil.copytree(place / "test/one", place / folder / "one")
    if folder == "one-image":
        for file in sorted((place / folder / "one").iterdir())[1:]:
            file.unlink()
    code, out, err = call("evaluate", calibrated, folder, "--unknown", "other")
    if folder == "void":
        assert (code, out, err.count("\n")) == (1, "", 1)
    else:
        assert (code, err) == (0, "")
        assert "AUROC" in out
