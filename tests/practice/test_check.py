"""lmrc check: what it finds in folders with planted mistakes."""

import csv

import numpy as np
import pytest
from PIL import Image

from lmrc.practice import check as work

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}


def picture(rng, colour):
    pixels = rng.integers(0, 60, (40, 40, 3)) + np.array(colour) * 0.7
    pixels[:: rng.integers(3, 9)] += 30
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@pytest.fixture(autouse=True)
def small_inputs(monkeypatch):
    monkeypatch.setattr(work, "BACKBONE", "efficientnet-lite0@32")
    monkeypatch.setattr(work, "SIZE", 32)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for label, colour in COLOURS.items():
        (tmp_path / "week" / label).mkdir(parents=True)
        for i in range(8):
            picture(rng, colour).save(tmp_path / "week" / label / f"{i}.png")
    return tmp_path / "week"


@pytest.fixture
def checked(call, tmp_path):
    def run(*words):
        code, out, err = call("check", *map(str, words), "--out", str(tmp_path / "out"))
        table = (tmp_path / "out" / "check.csv").read_text("utf-8")
        rows = list(csv.DictReader(table.splitlines()))
        return code, out, err, rows

    return run


def test_nothing_is_found_in_good_folders(folder, checked, tmp_path):
    code, out, err, rows = checked(folder)
    assert (code, err, rows) == (0, "", [])
    assert "24 images of 3 classes checked" in out
    assert "nothing was found" in out
    assert "<h1>Nothing was found in " in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_planted_mistakes_are_found(folder, checked, tmp_path):
    (folder / "red" / "3.png").rename(folder / "green" / "wrong.png")
    mirrored = Image.open(folder / "blue" / "1.png").transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    mirrored.save(folder / "blue" / "mirrored.png")
    (folder / "blue" / "broken.png").write_bytes(b"not an image")
    (folder / "rare").mkdir()
    picture(np.random.default_rng(9), (250, 250, 0)).save(folder / "rare" / "0.png")
    code, out, _, rows = checked(folder)
    assert code == 1
    found = {(row["kind"], row["class"], row["other_class"]) for row in rows}
    assert ("label", "green", "red") in found
    assert ("unreadable", "blue", "") in found
    assert any(row["text"] == "green/wrong.png: labelled green, looks like red" for row in rows)
    assert ("few", "rare", "") in found
    pair = next(row for row in rows if row["kind"] == "duplicate")
    names = {pair["file"].rpartition("/")[2], pair["other_file"].rpartition("/")[2]}
    assert names == {"1.png", "mirrored.png"}
    assert "probably the wrong label: " in out
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    labels = sum(row["kind"] == "label" for row in rows)
    assert page.count("data:image/jpeg;base64,") == labels + 2
    assert "http" not in page


def test_classes_with_nearly_the_same_name(folder, checked):
    """Also those of a test folder."""
    (folder / "train").mkdir()
    for old, new in {"red": "red", "green": "green", "blue": "Dark Blue"}.items():
        (folder / old).rename(folder / "train" / new)
    (folder / "test" / "dark_blue").mkdir(parents=True)
    picture(np.random.default_rng(9), (0, 0, 90)).save(folder / "test" / "dark_blue" / "0.png")
    _, out, _, rows = checked(folder)
    pairs = [(row["class"], row["other_class"]) for row in rows if row["kind"] == "name"]
    assert pairs == [("dark_blue", "Dark Blue")]
    assert "classes with nearly the same name: 1, such as 'dark_blue' and 'Dark Blue'" in out


def test_an_empty_folder_is_a_finding_beside_the_others(folder, checked, call, tmp_path):
    (folder / "red" / "3.png").rename(folder / "green" / "wrong.png")
    (folder / "void").mkdir()
    code, out, _, rows = checked(folder)
    assert code == 1
    assert "classes with few images: 1, such as void (no images)\n" in out
    found = {(row["kind"], row["class"], row["other_class"]) for row in rows}
    assert found >= {("few", "void", ""), ("label", "green", "red")}
    code, _, err = call("learn", str(tmp_path / "m"), str(folder))
    assert code == 1
    told = "has no images (JPEG, PNG, BMP, GIF, WebP, TIFF) of 'void': add some, or remove what"
    assert told in err


def test_copies_in_the_test_and_validation_folders_are_found(folder, checked):
    (folder / "train").mkdir()
    for label in COLOURS:
        (folder / label).rename(folder / "train" / label)
    for i, part in enumerate(("test", "val")):
        (folder / part / "red").mkdir(parents=True)
        Image.open(folder / f"train/red/{i}.png").save(folder / part / "red/copy.png")
    code, out, _, rows = checked(folder)
    assert code == 1
    assert "such as train/red/0.png and test/red/copy.png (same pixels)\n" in out
    assert [row["other_file"] for row in rows] == [
        str(folder / part / "red/copy.png") for part in ("test", "val")
    ]


def test_suspicious_files_are_found(folder, checked):
    """Images of one colour, tiny or long ones, and those of formats that are not read."""
    Image.new("RGB", (40, 40), "navy").save(folder / "blue/plain.png")
    Image.open(folder / "blue/1.png").resize((4, 4)).save(folder / "blue/tiny.png")
    Image.open(folder / "blue/2.png").crop((0, 0, 40, 11)).save(folder / "blue/long.png")
    (folder / "red/phone.HEIC").write_bytes(b"not read")
    _, out, _, rows = checked(folder)
    found = {(row["kind"], row["class"], row["file"].rpartition("/")[2]) for row in rows}
    assert found >= {
        ("suspicious", "blue", "plain.png"),
        ("suspicious", "blue", "tiny.png"),
        ("suspicious", "blue", "long.png"),
        ("unreadable", "red", "phone.HEIC"),
    }
    assert sum(kind == "suspicious" for kind, *_ in found) == 3
    assert "such as red/phone.HEIC: .heic files are not read, convert it to JPEG or PNG" in out


def test_an_image_is_listed_a_few_times_if_all_are_similar(folder, checked):
    for i in range(10):
        Image.open(folder / "red/0.png").resize((60 + i, 60 + i)).save(folder / f"red/frame{i}.png")
    rows = [row for row in checked(folder)[3] if row["kind"] == "duplicate"]
    assert {row["other_file"] for row in rows} == {
        str(folder / f"red/frame{i}.png") for i in range(10)
    }
    assert len(rows) <= 10 * work.MAX_PAIRS


def test_a_page_without_images(folder, checked, tmp_path):
    (folder / "red" / "3.png").rename(folder / "green" / "wrong.png")
    assert checked(folder, "--no-images")[0] == 1
    assert "data:image" not in (tmp_path / "out" / "report.html").read_text("utf-8").replace(
        "data:,", ""
    )


@pytest.fixture
def model(folder, call, tmp_path):
    words = ("--backbone", "cnn", "--epochs", "8", "--method", "lmrc", "-q")
    assert call("learn", str(tmp_path / "colours.lmrc"), str(folder), *words)[0] == 0
    return tmp_path / "colours.lmrc"


def test_a_known_class_with_images_of_another(model, checked, tmp_path):
    """Most of them: the folder is wrong; a few: these images are."""
    rng, place = np.random.default_rng(5), tmp_path / "again/red"
    place.mkdir(parents=True)
    for i in range(8):
        picture(rng, COLOURS["blue" if i < 2 else "red"]).save(place / f"{i}.png")
    _, _, err, rows = checked(tmp_path / "again", "--model", model)
    assert [(row["kind"], row["class"], row["other_class"], row["file"]) for row in rows] == [
        ("label", "red", "blue", str(place / name)) for name in ("0.png", "1.png")
    ]
    assert err == ""  # the model has checked the labels
    for i in range(2, 8):
        picture(rng, COLOURS["blue"]).save(place / f"{i}.png")
    code, out, _, rows = checked(tmp_path / "again", "--model", model)
    assert (code, [(row["kind"], row["other_class"]) for row in rows]) == (1, [("drift", "blue")])
    assert "red (0.0 % of its images are recognised, 100.0 % taken for blue)" in out


def test_a_model_is_looked_at_before_the_images(folder, call, tmp_path, monkeypatch):
    monkeypatch.setattr(work, "_read", lambda *_: pytest.fail("images were read"))
    code, _, err = call(
        "check", str(folder), "--model", str(tmp_path), "--out", str(tmp_path / "o")
    )
    assert (code, err.count("\n")) == (1, 1)


def test_a_new_class_that_looks_like_a_known_one(model, checked, tmp_path):
    rng = np.random.default_rng(5)
    for i in range(6):
        (tmp_path / "new" / "scarlet").mkdir(parents=True, exist_ok=True)
        picture(rng, COLOURS["red"]).save(tmp_path / "new" / "scarlet" / f"{i}.png")
    code, out, err, rows = checked(tmp_path / "new", "--model", model)
    assert code == 1
    assert [(row["kind"], row["class"], row["other_class"]) for row in rows] == [
        ("known", "scarlet", "red")
    ]
    assert "scarlet looks like red (100.0 % of its images)" in out
    assert "labels are not checked" in err
    (tmp_path / "new" / "scarlet").rename(tmp_path / "new" / "RED")
    rows = checked(tmp_path / "new", "--model", model)[3]
    assert [(row["kind"], row["class"], row["other_class"]) for row in rows] == [
        (kind, "RED", "red") for kind in ("name", "known")
    ]


@pytest.mark.parametrize(("unknown", "told"), [(3, True), (4, False)])
def test_unknown_images_do_not_look_like_a_known_class(
    model, checked, tmp_path, monkeypatch, unknown, told
):
    """A model of few classes takes most images of any other class for the same one."""
    (tmp_path / "new" / "orange").mkdir(parents=True)
    rng = np.random.default_rng(5)
    for i in range(6):
        picture(rng, COLOURS["red"]).save(tmp_path / "new" / "orange" / f"{i}.png")
    found = work.outputs_of
    monkeypatch.setattr(work, "outputs_of", lambda *of: (*found(*of)[:2], np.arange(6)))
    monkeypatch.setattr(work, "is_calibrated", lambda _: True)
    monkeypatch.setattr(work, "unknown_threshold", lambda _, share: 5 - unknown)
    assert [row["kind"] for row in checked(tmp_path / "new", "--model", model)[3]] == (
        ["known"] if told else []
    )


@pytest.mark.parametrize("name", ["empty", "arrays.npz"])
def test_what_holds_no_image_files_is_refused_in_one_line(call, tmp_path, name):
    (tmp_path / name).write_bytes(b"") if "." in name else (tmp_path / name).mkdir()
    code, _, err = call("check", str(tmp_path / name))
    assert code != 0
    assert err.count("\n") == 1
    assert "use one of these" not in err  # .npz would be among them


def test_learn_warns_of_the_same_image_in_two_classes(folder, call, tmp_path):
    Image.open(folder / "red" / "0.png").save(folder / "green" / "copy.png")
    words = ("--backbone", "cnn", "--epochs", "1", "--method", "lmrc", "-q")
    code, _, err = call("learn", str(tmp_path / "m"), str(folder), *words)
    assert code == 0
    told = f"1 of 25 images is a duplicate, once labelled green and once red: lmrc check {folder} "
    assert told in err
