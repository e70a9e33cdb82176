import csv
import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import lmrc
from lmrc.practice.lazy_imports import import_lazily


@pytest.fixture
def stdin(monkeypatch):
    """Return a function that sets the content of standard input."""

    def hold(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return hold


#: Runs a command, then tells what it imported, and what is imported with the modules of others.
IMPORTED = """
import atexit, sys

def tell():
    print([m for m in HEAVY if m in sys.modules])
    import lmrc.practice.learn, lmrc.serve.learner
    print([m for m in HEAVY if m in sys.modules])

atexit.register(tell)
from lmrc.cli import main
main()
"""


def test_predict_and_learn_import_no_more_than_they_need(tmp_path):
    X = np.zeros((4, 8, 8), np.uint8)
    model = lmrc.LMRCClassifier(backbone="resnet18", label_dim=4, epochs=1, device="cpu")
    model.fit(X, [0, 1, 0, 1]).save(tmp_path / "m")
    np.savez(tmp_path / "x.npz", X=X)
    # Each takes half a second or more: scikit-learn names the first two, torch's compiler is next.
    heavy = ("scipy.stats._stats_py", "pandas.core", "torch._dynamo", "matplotlib")
    heavy += ("sklearn.metrics", "sklearn.datasets")
    script = f"HEAVY = {heavy}\n{IMPORTED}"
    words = [sys.executable, "-c", script, "predict", tmp_path / "m", tmp_path / "x.npz"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[4:]) == (0, ["[]", "[]"]), done.stderr


def test_a_lazy_module_is_imported_when_used(tmp_path, monkeypatch):
    (tmp_path / "lazy_package").mkdir()
    (tmp_path / "lazy_package" / "__init__.py").write_text("value = 3")
    (tmp_path / "lazy_package" / "part.py").write_text("from lazy_package import value")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lazy_package-1.2.dist-info").mkdir()
    (tmp_path / "lazy_package-1.2.dist-info" / "METADATA").write_text("Version: 1.2")
    import_lazily(["lazy_package", "no_such_package"])
    assert "no_such_package" not in sys.modules
    import lazy_package

    assert lazy_package.__version__ == "1.2"
    assert not hasattr(lazy_package, "__file__")  # still empty
    from lazy_package import part

    assert part.value == lazy_package.value == 3
    with pytest.raises(AttributeError, match="nothing"):
        _ = lazy_package.nothing


def test_class_and_similarity_of_files_folders_and_patterns(place, model, call):
    code, out, err = call("predict", model, "test/one/000.png", "test/zero", "test/t*/00[01].png")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines] == [
        "test/one/000.png",
        *(f"test/zero/{i:03}.png" for i in range(10)),
        *(f"test/{name}/00{i}.png" for name in ("three", "two") for i in (0, 1)),
    ]
    # Folders; these and all that is in them; a folder of any place.
    for pattern, n in (("test/[tz]*", 30), ("test/[tz]*/**", 30), ("**/test/zero", 10)):
        _, out, err = call("predict", model, pattern)
        assert (len(out.splitlines()), err) == (n, "")
    (place / "nowhere*.png").symlink_to("void")
    assert "No such file" in call("predict", model, "nowhere[*].png")[2]
    clf = lmrc.load(model)
    image = np.asarray(Image.open(place / "test/one/000.png"))[None]
    label = clf.predict(image)[0]
    assert lines[0][1:] == [label, f"{clf.similarities(image).max():.3f}"]


def test_json_has_one_object_per_line_with_the_best_classes(model, call):
    _, out, _ = call("predict", model, "test/one", "--json", "--top", "3")
    predictions = [json.loads(line) for line in out.splitlines()]
    assert len(predictions) == 10
    first = predictions[0]
    keys = ("class", "similarity", "probability", "head")
    assert first["top"][0] == {key: first[key] for key in keys}
    assert first["known"] is True
    assert first["probability"] is None  # LMRC has none
    similarities = [scored["similarity"] for scored in first["top"]]
    assert similarities == sorted(similarities, reverse=True)
    assert len(similarities) == 3


def test_csv_can_be_read_back(place, model, call):
    (place / "a, b.png").write_bytes((place / "test/one/000.png").read_bytes())
    _, out, _ = call("predict", model, "a, b.png", "--csv", "-k", "2")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["path"], row["rank"]) for row in rows] == [("a, b.png", "1"), ("a, b.png", "2")]
    assert rows[0]["head"] in ("1", "2")


def test_one_bad_file_does_not_stop_the_rest(place, model, call):
    (place / "bad.png").write_bytes(b"no image")
    words = ["predict", model, "bad.png", "gone.png", "test/one/000.png"]
    code, out, err = call(*words)
    assert code == 1
    assert len(out.splitlines()) == 1
    assert "bad.png" in err
    assert "gone.png" in err
    assert len(err.splitlines()) == 2
    assert call(*words, "--quiet")[2] == ""
    predictions = [json.loads(line) for line in call(*words, "--json")[1].splitlines()]
    assert ["error" in prediction for prediction in predictions] == [True, True, False]
    rows = list(csv.DictReader(io.StringIO(call(*words, "--csv")[1])))
    assert [bool(row["error"]) for row in rows] == [True, True, False]


def test_reject_below_predicts_unknown(model, call):
    words = ["predict", model, "test/one/000.png", "--reject-below"]
    assert call(*words, "-1")[1] == call(*words[:-1])[1]
    nearest = call(*words[:-1])[1].split()[1]
    assert call(*words, "1.01")[1] == f"test/one/000.png  unknown, nearest class: {nearest}\n"
    assert json.loads(call(*words, "1.01", "--json")[1])["class"] is None
    assert ",unknown," in call(*words, "1.01", "--csv")[1]


def test_probabilities_of_lmrc_plus(calibrated, call):
    images = np.stack([np.asarray(Image.open(f"test/one/00{i}.png")) for i in range(3)])
    expected = np.sort(lmrc.load(calibrated).predict_proba(images))[:, ::-1].ravel()
    words = ["predict", calibrated, *(f"test/one/00{i}.png" for i in range(3)), "--top", "4"]
    lines = [json.loads(line) for line in call(*words, "--json")[1].splitlines()]
    found = [scored["probability"] for line in lines for scored in line["top"]]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert [line["probability"] for line in lines] == found[::4]
    rows = csv.DictReader(io.StringIO(call(*words, "--csv")[1]))
    assert [float(row["probability"]) for row in rows] == found
    text = [float(p) for p in re.findall(r" (\S+) %$", call(*words)[1], re.MULTILINE)]
    np.testing.assert_allclose(text, 100 * np.array(found), atol=0.06)


def test_unknown_goes_by_the_share_of_known_images(calibrated, call):
    def known(*words):
        lines = call("predict", calibrated, "test", "other", "--json", *words)[1].splitlines()
        return [json.loads(line)["known"] for line in lines]

    model = lmrc.load(calibrated)
    files = [
        f"test/{name}/{i:03}.png" for name in ("one", "three", "two", "zero") for i in range(10)
    ]
    files += [f"other/four/{i:03}.png" for i in range(10)]
    scores = model.unknown_scores(np.stack([np.asarray(Image.open(file)) for file in files]))
    assert all(known())
    assert known("--unknown") == (scores <= model.unknown_threshold(0.05)).tolist()
    half = known("--unknown-share", "0.5")
    assert half == (scores <= model.unknown_threshold(0.5)).tolist()
    assert sum(half) < sum(known("--unknown")) < 50
    err = call("predict", calibrated, lost := files[half.index(False)], "--unknown-share", "0")[2]
    assert "may be lost is 0.0; it must be above 0 and below 1\n" in err
    out = call("predict", calibrated, lost, "--unknown-share", "0.5")[1]
    assert "  unknown, nearest class: " in out
    assert "%" not in out  # the probability of a known class would read as that of unknown


def test_unknown_needs_a_model_with_scores_for_it(model, call):
    words = ("predict", model, "test/one/000.png", "--unknown")
    code, out, err = call(*words)
    assert (code, out) == (1, "")
    assert err == (
        "lmrc: this model cannot detect unknown images: learn one with --method lmrc+, or use "
        "--reject-below\n"
    )
    assert "use one of them" in call(*words, "--reject-below", "0.5")[2]


def test_unknown_needs_images_that_were_held_out(place, learn, call):
    learn("week1", "-q", "--method", "lmrc+", "--set", "predict_with=lda", fast=True)
    code, out, err = call("predict", "m", "test", "--unknown")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "no image was held out of training; set calibration_share=0.05" in err
    err = call("predict", "m", "test", "--unknown-share", "5")[2]
    assert err.count("\n") == 1


@pytest.mark.parametrize(("n", "labels"), [(20, ["a"]), (1, ["a"]), (2, ["a", "b"])])
def test_one_class_or_one_image_of_each_gets_an_answer_or_one_clear_line(place, call, n, labels):
    X = np.random.default_rng(0).standard_normal((n, 64)).astype(np.float32)
    model = lmrc.LMRCPlusClassifier(projections=20, random_state=0)
    model.fit(X, [labels[i % len(labels)] for i in range(n)]).save("m")
    np.savez("x.npz", X=X)
    code, out, err = call("predict", "m", "x.npz", "--unknown")
    if n > 2:
        assert (code, err) == (0, "")
        assert sum("100.0 %" in line for line in out.splitlines()) > 15
    else:
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "has one image of each class; learn more" in err
    code, out, _ = call("predict", "m", "x.npz")
    assert (code, len(out.splitlines())) == (0, n)


def test_top_lists_the_nearest_classes_of_an_unknown_image(model, call):
    words = ["predict", model, "test/one/000.png", "--csv", "--top", "2"]

    def rows(*more):
        return list(csv.DictReader(io.StringIO(call(*words, *more)[1])))

    assert [row.pop("known") for row in rows()] == ["true", "true"]
    refused = rows("--reject-below", "1.01")
    assert [row["known"] for row in refused] == ["false", "false"]
    assert [row["class"] for row in refused] == [row["class"] for row in rows()]
    words.remove("--csv")
    lines = call(*words, "--reject-below", "1.01")[1].splitlines()
    assert lines[0] == "test/one/000.png  unknown, nearest classes:"
    assert [line.split()[0] for line in lines[1:]] == [row["class"] for row in refused]


def test_standard_input_holds_paths(model, call, stdin):
    stdin(b"test/one/000.png\n\ntest/zero/000.png\n")
    assert len(call("predict", model, "-")[1].splitlines()) == 2
    stdin(b"test/one/000.png\n")
    assert len(call("predict", model)[1].splitlines()) == 1


def test_no_image_is_an_error_except_for_an_empty_list(model, call, stdin):
    stdin(b"")
    code, _, err = call("predict", model)
    assert code == 2
    assert "no images: standard input is empty" in err
    stdin(b"")
    assert call("predict", model, "-") == (0, "", "")


def test_standard_input_holds_an_image(place, model, call, stdin):
    image = (place / "test/one/000.png").read_bytes()
    stdin(image)
    _, out, _ = call("predict", model, "-")
    assert out.split()[1:] == call("predict", model, "test/one/000.png")[1].split()[1:]
    stdin(b"\x89PNG\0\0 half an image")
    code, _, err = call("predict", model, "-")
    assert code == 2
    assert "neither a readable image nor" in err


def test_empty_folders_and_patterns_are_reported(place, model, call):
    (place / "empty").mkdir()
    code, out, err = call("predict", model, "empty", "no*.jpg", "test/one/000.png")
    assert code == 1
    assert len(out.splitlines()) == 1
    assert err == "lmrc: empty contains no images\nlmrc: no file matches no*.jpg\n"
    assert json.loads(call("predict", model, "empty", "--json")[1])["path"] == "empty"


def test_no_photograph_of_a_folder_is_left_out_silently(place, model, call):
    (place / "phone").mkdir()
    (place / "phone/1.HEIC").write_bytes(b"\0\0\0 ftypheic")
    (place / "phone/2.png").write_bytes((place / "test/one/000.png").read_bytes())
    (place / "phone/notes.txt").write_text("no image")
    code, out, err = call("predict", model, "phone")
    assert (code, len(out.splitlines())) == (1, 1)
    assert err == (
        "lmrc: cannot read phone/1.HEIC as an image: .heic files are not read. Convert it to JPEG "
        "or PNG.\n"
    )


def test_a_missing_file_is_not_called_unreadable(model, call):
    err = call("predict", model, "gone.png")[2]
    assert "No such file or directory. Is its name right?" in err


def test_columns_are_aligned_in_all_scripts(place, call):
    """A Chinese character takes two terminal columns, a combining accent none."""
    X, y = np.zeros((8, 8, 8), np.uint8), np.repeat(["狗", "cafe\u0301", "emu", "한국어한국어"], 2)
    lmrc.LMRCClassifier(backbone="mlp", epochs=1, random_state=0).fit(X, y).save("m")
    Image.fromarray(X[0]).save("照片.png")
    out = call("predict", "m", "照片.png", "--top", "4")[1]
    names = re.findall(r"^(.*  )[ -]\d\.\d{3}$", out, re.MULTILINE)
    wide = {**dict.fromkeys("照片狗한국어", 2), "\u0301": 0}
    assert [sum(wide.get(letter, 1) for letter in name) for name in names] == [8 + 2 + 12 + 2] * 4
    assert all(re.match(r" {10}\S", name) for name in names[1:])


def test_many_images_are_read_in_chunks(model, call, monkeypatch):
    whole = call("predict", model, "test")
    monkeypatch.setattr("lmrc.practice.predict.CHUNK", 7)
    assert call("predict", model, "test")[1].split("\n")[0] == whole[1].split("\n")[0]
    assert len(call("predict", model, "test")[1].splitlines()) == 40


def test_wrong_use(model, call):
    code, _, err = call("predict", model, "x.png", "--json", "--csv")
    assert code == 2
    assert "use one of them" in err


def test_models_of_other_methods_and_inputs_are_refused_with_a_hint(place, call):
    X, y = np.zeros((4, 3), np.float32), np.array([0, 0, 1, 1])
    lmrc.LMRCClassifier(epochs=1).fit(X, y).save("vectors")
    assert "not image files" in call("predict", "vectors", "test/one/000.png")[2]
    lmrc.FineTuneClassifier(epochs=1).fit(X, y).save("finetune")
    assert "use lmrc.load" in call("predict", "finetune", "test/one/000.png")[2]


def test_predict_takes_the_arrays_of_learn(place, model, call):
    X = np.random.default_rng(0).standard_normal((300, 5)).astype(np.float32)
    np.savez("rows.npz", X=X, y=np.arange(300) % 3)
    assert call("learn", "v", "rows.npz", "--epochs", "1", "--quiet")[0] == 0
    code, out, _ = call("predict", "v", "rows.npz", "--json")
    predictions = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [prediction["path"] for prediction in predictions] == [
        f"rows.npz[{i}]" for i in range(300)
    ]
    assert [prediction["class"] for prediction in predictions] == lmrc.load("v").predict(X).tolist()

    pixels = np.asarray(Image.open("test/one/000.png"))[None]
    np.savez("bytes.npz", X=pixels)
    np.savez("floats.npz", X=pixels / 255)
    code, out, _ = call("predict", model, "test/one/000.png", "bytes.npz", "floats.npz")
    assert code == 0
    assert len({tuple(line.split()[1:]) for line in out.splitlines()}) == 1
    np.savez("none.npz", y=[1])
    assert "none.npz cannot be read as an .npz file with X:" in call("predict", "v", "none.npz")[2]
