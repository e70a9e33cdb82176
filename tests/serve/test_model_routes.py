"""The API with a model of four digits; learning is in test_jobs."""

import io
import threading
import zipfile

import numpy as np
import pytest
from PIL import Image

import lmrc
from lmrc.data.images import read_image
from lmrc.store import folder as store

MODEL = "/v1/models/pets.lmrc"


def files(pictures, *names, n=2):
    return [("image", (f"{name}-{i}.png", pictures[name][i])) for name in names for i in range(n)]


def code(answer):
    """Return the code of an error, whose body has the one form."""
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"code", "message"}
    return answer.status_code, answer.json()["error"]["code"]


def test_predicts_as_the_model_does(client, pictures, place):
    answer = client.post(f"{MODEL}/predict?top=2", files=files(pictures, "zero", "two", "three"))
    model = lmrc.load(place)
    contents = [pictures[name][i] for name in ("zero", "two", "three") for i in range(2)]
    pixels = np.stack([read_image(io.BytesIO(c), 8, "L") for c in contents])
    found = answer.json()["predictions"]
    assert [p["class"] for p in found] == model.predict(pixels).tolist()
    assert [p["name"] for p in found][:2] == ["zero-0.png", "zero-1.png"]
    scores = np.sort(model.similarities(pixels), axis=1)[:, ::-1][:, :2]
    np.testing.assert_allclose(
        [[s["similarity"] for s in p["best"]] for p in found], scores, atol=6e-5
    )
    assert answer.json()["version"] == 2


def test_one_image_is_the_body(client, pictures):
    answer = client.post(
        f"{MODEL}/predict", content=pictures["one"][0], headers={"Content-Type": "image/png"}
    )
    assert answer.json()["predictions"][0]["class"] == "one"


def test_broken_image_among_others(client, pictures):
    sent = [*files(pictures, "one", n=1), ("image", ("notes.txt", b"hello"))]
    good, bad = client.post(f"{MODEL}/predict", files=sent).json()["predictions"]
    assert good["class"] == "one"
    assert (bad["class"], bad["error"]["code"]) == (None, "unreadable_image")
    assert "no known format" in bad["error"]["message"]


def test_probabilities_and_unknown_are_the_models(serve, pictures, calibrated):
    client, model = serve(calibrated), lmrc.load(calibrated)
    names = [name for name in pictures for _ in range(10)]
    contents = [c for name in pictures for c in pictures[name][:10]]
    pixels = np.stack([read_image(io.BytesIO(c), 8, "L") for c in contents])
    sent = [("image", (name, c)) for name, c in zip(names, contents, strict=True)]
    found = client.post(f"{MODEL}/predict", files=sent).json()["predictions"]
    told = [{s["class"]: s["probability"] for s in p["best"]} for p in found]
    wanted = model.predict_proba(pixels)
    np.testing.assert_allclose([[p[c] for c in model.classes_] for p in told], wanted, atol=6e-5)
    known = model.unknown_scores(pixels) <= model.unknown_threshold()
    assert [p["known"] for p in found] == known.tolist()
    assert [p["class"] is None for p in found] == (~known).tolist()
    assert known[:30].mean() > 0.8 > 0.3 > known[30:].mean()  # three of seven digits were learnt
    strict = client.post(f"{MODEL}/predict?unknown_share=0.5", files=sent).json()["predictions"]
    assert sum(p["known"] for p in strict) < sum(known)
    never = client.post(f"{MODEL}/predict?unknown_share=0", files=sent).json()["predictions"]
    assert all(p["class"] for p in never)


def test_a_threshold_is_computed_once_for_all_images(serve, pictures, calibrated, monkeypatch):
    shares, whole = [], lmrc.LMRCPlusClassifier.unknown_threshold
    monkeypatch.setattr(
        lmrc.LMRCPlusClassifier,
        "unknown_threshold",
        lambda model, share: shares.append(share) or whole(model, share),
    )
    client, sent = serve(calibrated), files(pictures, "one", n=3)
    for share in (0.1, 0.2, 0.1):
        assert client.post(f"{MODEL}/predict?unknown_share={share}", files=sent).is_success
    assert shares == [0.1, 0.2]


def test_unknown_below_a_similarity(client, pictures):
    (found,) = client.post(
        f"{MODEL}/predict?reject_below=1.5", files=files(pictures, "one", n=1)
    ).json()["predictions"]
    assert found["class"] is None
    assert not found["known"]
    assert found["best"][0]["class"] == "one"


@pytest.mark.parametrize(
    ("method", "address", "body", "expected"),
    [
        ("post", f"{MODEL}/predict", {"content": b""}, (400, "no_image")),
        ("post", f"{MODEL}/predict", {"content": b"text"}, (422, "unreadable_image")),
        ("post", f"{MODEL}/predict?top=0", {"content": b"x"}, (422, "invalid_request")),
        ("post", f"{MODEL}/predict", {"data": {"a": "b"}, "files": {}}, (422, "unreadable_image")),
        ("post", "/v1/models/other/predict", {"content": b"x"}, (404, "no_model")),
        ("post", "/v1/models/..%2fpets.lmrc/predict", {"content": b"x"}, (404, "not_found")),
        ("get", "/v1/models/..", {}, (404, "not_found")),
        ("get", "/static/..%2fapp.py", {}, (404, "not_found")),
        ("get", "/nowhere", {}, (404, "not_found")),
        ("put", MODEL, {}, (405, "method_not_allowed")),
        ("get", "/v1/jobs/none", {}, (404, "no_job")),
        ("post", f"{MODEL}/forget", {"json": {"class": "dog"}}, (409, "refused")),
        ("post", f"{MODEL}/forget", {"json": {"name": "dog"}}, (422, "invalid_request")),
        ("post", f"{MODEL}/forget", {"content": b"{"}, (422, "invalid_request")),
        ("post", f"{MODEL}/rename", {"json": {"class": "a", "to": ""}}, (422, "invalid_request")),
        ("post", f"{MODEL}/rename", {"json": {"class": "one", "to": "two"}}, (409, "refused")),
    ],
)  # fmt: skip
def test_errors_have_one_form(client, method, address, body, expected):
    assert code(getattr(client, method)(address, **body)) == expected


def test_messages_do_not_tell_where_the_model_is(client, place):
    client.post(f"{MODEL}/rollback")
    answer = client.post(f"{MODEL}/rollback")
    assert code(answer) == (409, "refused")
    assert "pets.lmrc keeps no version before" in answer.json()["error"]["message"]
    assert str(place.parent) not in answer.text
    assert str(place.parent) not in client.get(MODEL).text


def test_model_is_described(client, place):
    found = client.get(MODEL).json()
    assert [c["name"] for c in found["classes"]] == ["one", "zero", "three", "two"]
    assert [c["head"] for c in found["classes"]] == [1, 1, 2, 2]
    assert [v["version"] for v in found["versions"]] == [1, 2]
    assert found["exemplars"] == 0
    assert found["input"] == {"channels": 1, "height": 8, "width": 8}
    assert found["bytes"] == store.size_of(store.versions(place)[-1:])
    assert client.get("/v1/models").json()["models"] == [found]


def test_rename_forget_and_roll_back_change_what_is_predicted(client, pictures, place):
    def predicted(name):
        sent = files(pictures, name, n=1)
        answer = client.post(f"{MODEL}/predict", files=sent).json()
        return answer["predictions"][0]["class"], answer["version"]

    assert predicted("one") == ("one", 2)
    client.post(f"{MODEL}/rename", json={"class": "one", "to": "<b>uno</b>"})
    assert predicted("one") == ("<b>uno</b>", 2)
    found = client.post(f"{MODEL}/forget", json={"class": "zero"}).json()
    assert "zero" not in [c["name"] for c in found["classes"]]
    assert predicted("zero")[0] != "zero"
    assert client.post(f"{MODEL}/rollback").json()["version"] == 1
    assert predicted("three") == ("<b>uno</b>", 1)
    assert lmrc.load(place).classes_.tolist() == ["<b>uno</b>"]


def test_change_by_the_command_line_is_served(client, pictures, place, call):
    client.post(f"{MODEL}/predict", files=files(pictures, "one", n=1))
    assert call("rename", str(place), "one", "uno")[0] == 0
    while True:  # the old version answers until the new one is loaded
        answer = client.post(f"{MODEL}/predict", files=files(pictures, "one", n=1)).json()
        if answer["predictions"][0]["class"] == "uno":
            break
        assert answer["predictions"][0]["class"] == "one"


def test_locked_model_predicts_but_is_not_changed(client, pictures, place):
    with store.writing(place):
        assert code(client.post(f"{MODEL}/rollback")) == (409, "locked")
        assert client.post(f"{MODEL}/predict", files=files(pictures, "one")).status_code == 200
    assert client.post(f"{MODEL}/rollback").status_code == 200


def test_damaged_newest_version_leaves_the_old_one_in_service(client, pictures, place):
    client.post(f"{MODEL}/predict", files=files(pictures, "one"))
    manifest = (place / "manifest.json").read_bytes()
    (place / "manifest.json").write_bytes(manifest[:-100])
    client.app.state.models["pets.lmrc"].refresh()
    assert client.post(f"{MODEL}/predict", files=files(pictures, "one")).status_code == 200
    assert "manifest.json" in client.get(MODEL).json()["problem"]
    (place / "manifest.json").write_bytes(manifest)
    client.app.state.models["pets.lmrc"].refresh()
    assert client.get(MODEL).json()["problem"] == ""


def test_folder_download_is_the_model(client, tmp_path, pictures, place):
    answer = client.get(f"{MODEL}/folder")
    assert answer.headers["content-disposition"] == 'attachment; filename="pets.zip"'
    zipfile.ZipFile(io.BytesIO(answer.content)).extractall(tmp_path / "out")
    copy = lmrc.load(tmp_path / "out" / "pets.lmrc")
    assert copy.classes_.tolist() == lmrc.load(place).classes_.tolist()
    assert len(store.versions(tmp_path / "out" / "pets.lmrc")) == 2


def test_folder_of_models(tmp_path, two_versions, serve, pictures):
    import shutil

    for name in ("a.lmrc", "b.lmrc"):
        shutil.copytree(two_versions, tmp_path / name)
    (tmp_path / "notes").mkdir()
    client = serve(tmp_path)
    assert [m["name"] for m in client.get("/v1/models").json()["models"]] == ["a.lmrc", "b.lmrc"]
    sent = files(pictures, "one", n=1)
    client.post("/v1/models/a.lmrc/rename", json={"class": "one", "to": "uno"})
    for name, wanted in (("a.lmrc", "uno"), ("b.lmrc", "one")):
        answer = client.post(f"/v1/models/{name}/predict", files=sent)
        assert answer.json()["predictions"][0]["class"] == wanted


def test_read_only_server_changes_nothing(place, serve, pictures):
    client = serve(place, read_only=True)
    for address in ("rollback", "jobs", "learn"):
        assert code(client.post(f"{MODEL}/{address}")) == (403, "read_only")
    assert code(client.post(f"{MODEL}/forget", json={"class": "one"})) == (403, "read_only")
    assert client.post(f"{MODEL}/predict", files=files(pictures, "one")).status_code == 200


def test_no_request_is_lost_while_versions_switch(client, pictures, place):
    """Each answer is that of one version, whole."""
    stop, wrong, n = threading.Event(), [], 0

    def ask():
        nonlocal n
        while not (n and stop.is_set()):
            answer = client.post(f"{MODEL}/predict?top=4", files=files(pictures, "one", n=2))
            names = {s["class"] for p in answer.json()["predictions"] for s in p["best"]}
            n += 1
            if answer.status_code != 200 or names not in ({*"abcd"}, {*"abce"}, FIRST):
                wrong.append(answer.text)

    FIRST = {"zero", "one", "two", "three"}
    for old, new in zip(("zero", "one", "two", "three"), "abcd", strict=True):
        client.post(f"{MODEL}/rename", json={"class": old, "to": new})
    threads = [threading.Thread(target=ask) for _ in range(3)]
    [thread.start() for thread in threads]
    for i in range(6):
        old, new = ("d", "e") if i % 2 == 0 else ("e", "d")
        assert client.post(f"{MODEL}/rename", json={"class": old, "to": new}).status_code == 200
    stop.set()
    [thread.join() for thread in threads]
    assert not wrong
    assert n


def test_requests_are_computed_together(client, pictures):
    sizes = []
    client.post(f"{MODEL}/predict", files=files(pictures, "one"))
    batcher = client.app.state.models["pets.lmrc"].batcher
    batcher.on_batch = sizes.append
    client.post(f"{MODEL}/predict", files=files(pictures, "one", "two", n=10))
    assert sizes == [20]


def test_health_and_metrics(client, pictures):
    assert client.get("/health").json() == {"status": "ok"}
    client.post(f"{MODEL}/predict", files=files(pictures, "one"))
    text = client.get("/metrics").text
    wanted = 'lmrc_requests_total{method="POST",route="/v1/models/{model}/predict",status="200"} 1'
    assert wanted in text
    assert 'lmrc_batch_images_sum{model="pets.lmrc"} 2' in text
    assert 'lmrc_version{model="pets.lmrc"} 2' in text


def test_large_photo_is_decoded_small(client):
    file = io.BytesIO()
    Image.new("RGB", (6000, 5000), "teal").save(file, "JPEG")
    assert client.post(f"{MODEL}/predict", content=file.getvalue()).status_code == 200
