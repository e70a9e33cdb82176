"""The page in a real browser."""

import re
import shutil
import threading
from pathlib import Path

import pytest
import uvicorn

from lmrc.data.images import NOT_READ, SUFFIXES
from lmrc.serve import app
from lmrc.serve.app import create_app
from lmrc.serve.errors import ApiError
from lmrc.serve.jobs import Jobs
from lmrc.serve.settings import Settings

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

expect = sync_api.expect
TAUGHT = ["four", "five", "six"]


@pytest.fixture
def site():
    """Return what serves a path to browsers; returns the address and the application."""
    running = []

    def start(path, port=0, **settings):
        app = create_app(Settings(path, device="cpu", **settings))
        config = uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((server, thread))
        while not server.started:
            assert thread.is_alive()
        port = server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}", app

    def stop():
        while running:
            server, thread = running.pop()
            server.config.app.state.jobs.end_streams()
            server.should_exit = True
            thread.join()

    start.stop = stop
    yield start
    stop()


@pytest.fixture
def page(browser):
    """A tab; errors of scripts and refusals of the policy fail the test."""
    context = browser.new_context(permissions=["camera", "clipboard-read", "clipboard-write"])
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda m: errors.append(m.text) if "Content Security" in m.text else None)
    yield page
    context.close()
    assert not errors


def upload(name, content):
    return {"name": name, "mimeType": "image/png", "buffer": content}


def named(pictures, label, n=12):
    return [upload(f"{label}-{i}.png", content) for i, content in enumerate(pictures[label][:n])]


def teach(page, number, label, files):
    card = page.locator(".class-card").nth(number)
    card.get_by_label("Class").fill(label)
    card.locator("input[type=file]").set_input_files(files)
    return card


def open_teach(page, address):
    page.goto(address)
    page.get_by_role("tab", name="Teach").click()


def teach_five(page, pictures):
    """Add twelve pictures of a class, which reach the server."""
    card = teach(page, 0, "five", named(pictures, "five"))
    expect(card.locator(".count")).to_have_text("12 pictures")
    return card


def classify(page, files):
    page.get_by_role("tab", name="Classify").click()
    page.locator("#classify-files").set_input_files(files)
    expect(page.locator(".prediction .scores")).to_have_count(len(files))


def test_teach_ask_roll_back_forget(page, site, place, pictures):
    """Three classes are learnt and predicted; then rolled back, renamed, forgotten."""
    address, _ = site(place)
    page.goto(address)
    classify(page, named(pictures, "five", 1))
    page.get_by_role("tab", name="Teach").click()
    expect(page.locator("#teach .hint").first).to_contain_text("never written to disk")
    page.get_by_role("button", name="Add a class").click()
    for number, label in enumerate(TAUGHT):
        card = teach(page, number, label, named(pictures, label))
        expect(card.locator(".count")).to_have_text("12 pictures")
    page.get_by_role("button", name="Learn").click()
    expect(page.locator("#accuracy")).to_contain_text("held-out pictures of new classes")
    page.get_by_role("button", name="Keep").click()
    expect(page.get_by_role("tab", name="Classify")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".prediction")).to_have_count(0)  # it was of the version before
    kept = re.compile(r"Kept: the model knows \d classes now")
    expect(page.locator("#message.good")).to_have_text(kept)
    page.locator("#classify-files").set_input_files([named(pictures, n, 1)[0] for n in TAUGHT])
    answers = page.locator(".prediction h3")
    expect(answers).to_have_text([re.compile("^[a-z]+$")] * 3)
    right = [found == label for found, label in zip(answers.all_inner_texts(), TAUGHT, strict=True)]
    assert sum(right) >= 2  # learnt from twelve pictures each, with a seed of its own

    page.get_by_role("tab", name="Model").click()
    rows = page.locator("#class-list li")
    expect(rows).to_have_count(7)
    expect(page.locator("#stored")).to_have_text("0 pictures stored in this model")
    page.get_by_role("button", name="Roll back").click()
    page.locator("dialog").get_by_role("button", name="Roll back").click()
    expect(rows).to_have_count(4)
    page.get_by_role("button", name="Rename zero").click()
    page.get_by_label("New name").fill("<img src=x onerror=alert(1)>")
    page.locator("dialog").get_by_role("button", name="Rename").click()
    expect(rows.nth(1)).to_contain_text("<img src=x onerror=alert(1)>")
    page.get_by_role("button", name="Forget one").click()
    page.locator("dialog").get_by_role("button", name="Forget").click()
    expect(rows).to_have_count(3)
    with page.expect_download() as download:
        page.get_by_text("Folder (ZIP)").click()
    assert download.value.suggested_filename == "pets.zip"


def test_probabilities_and_unknown(page, site, calibrated, pictures):
    address, _ = site(calibrated, read_only=True)
    held_back = []
    page.route("**/v1/models", lambda route: held_back.append(route))
    page.goto(address)
    page.locator("#classify-files").set_input_files(
        [named(pictures, n, 1)[0] for n in ("one", "six")]
    )
    answers = page.locator(".prediction")
    expect(answers.locator("h3")).to_have_text(["…", "…"])  # the models are not known yet
    while not held_back:
        page.wait_for_timeout(10)
    held_back.pop().continue_()
    expect(answers.locator("h3")).to_have_text(["one", "unknown"])
    expect(answers.nth(0).locator(".scores li").first).to_contain_text(" %")
    expect(answers.nth(1)).to_contain_text("Unlike all known classes")


@pytest.fixture
def quick(site, place, fake_learner):
    """Serve the model of four digits with a learner that learns nothing; returns the address."""
    address, app = site(place)
    fake_learner(app)
    return address


def test_broken_upload(page, quick, pictures):
    page.goto(quick)
    page.locator("#classify-files").set_input_files([upload("notes.png", b"no image")])
    expect(page.locator(".prediction .problem")).to_contain_text("no known format")
    page.get_by_role("tab", name="Teach").click()
    card = teach(page, 0, "five", [*named(pictures, "five", 2), upload("notes.png", b"no image")])
    expect(card.locator(".problems li")).to_contain_text("notes.png")
    expect(card.locator(".count")).to_have_text("2 pictures")
    expect(page.locator("#findings")).to_contain_text("five has only 2 images")
    assert page.get_by_role("button", name="Learn").is_enabled()


@pytest.fixture
def learnt(monkeypatch):
    """The number of images of each class in each task that the server was told to learn."""
    found = []
    start = Jobs.start

    def noted(self, job, request, *, keep):
        found.append(job.describe()["images"])
        start(self, job, request, keep=keep)

    monkeypatch.setattr(Jobs, "start", noted)
    return found


def press_learn(page):
    page.get_by_role("button", name="Learn").click()
    expect(page.locator("#result")).to_be_visible()


def test_a_class_can_be_renamed_right_before_it_is_learnt(page, quick, pictures, learnt):
    """Also if pictures are dropped while the name's field has the focus, and says so later."""
    open_teach(page, quick)
    card = teach_five(page, pictures)
    page.get_by_role("button", name="Add a class").click()
    expect(page.get_by_role("button", name="Learn")).to_be_enabled()
    card.get_by_label("Class").fill("cinq")
    press_learn(page)
    assert learnt == [{"cinq": 12}]


def test_renaming_needs_no_room(page, site, place, pictures, learnt, fake_learner):
    address, app = site(place, max_pictures=12)
    fake_learner(app)
    open_teach(page, address)
    card = teach_five(page, pictures)
    expect(page.get_by_role("button", name="Learn")).to_be_enabled()
    more = teach(page, 1, "six", named(pictures, "six", 2))
    expect(more.locator(".problems li")).to_contain_text("2 pictures: a task may have 12")
    card.get_by_label("Class").fill("cinq")
    press_learn(page)
    assert learnt == [{"cinq": 12}]


def test_pictures_go_to_the_model_that_is_chosen(page, site, two_versions, pictures, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(two_versions, tmp_path / f"{name}.lmrc")
    address, app = site(tmp_path)
    open_teach(page, address)
    held_back = []
    page.route("**/v1/models/a.lmrc/jobs", lambda route: held_back.append(route))
    teach(page, 0, "five", named(pictures, "five"))
    while not held_back:
        page.wait_for_timeout(10)
    page.locator("#model").select_option("b.lmrc")
    held_back.pop().continue_()
    teach(page, 0, "six", named(pictures, "six"))
    expect(page.locator(".class-card .count").first).to_have_text("12 pictures")
    expect(page.get_by_role("button", name="Learn")).to_be_enabled()
    collecting = [job for job in app.state.jobs if job.state == "collecting"]
    assert [(job.served.name, job.describe()["images"]) for job in collecting] == [
        ("b.lmrc", {"six": 12})
    ]


def test_pictures_may_come_before_their_name_and_be_removed(page, quick, pictures, learnt):
    open_teach(page, quick)
    card = page.locator(".class-card").first
    card.locator("input[type=file]").set_input_files(named(pictures, "five"))
    expect(card.locator(".count")).to_have_text("12 pictures")
    expect(page.locator("#learn-hint")).to_have_text("Give each class a name.")
    assert page.get_by_role("button", name="Learn").is_disabled()
    card.get_by_label("Class").fill("five")
    card.get_by_role("button", name="Remove five-3.png").click()
    teach(page, 1, "six", named(pictures, "six"))
    page.get_by_role("button", name="Remove class").nth(1).click()
    press_learn(page)
    assert learnt == [{"five": 11}]


def test_folders_are_classes_as_on_the_command_line(
    page, site, tmp_path, pictures, learnt, fake_learner
):
    address, app = site(tmp_path / "new.lmrc")
    fake_learner(app)
    for label, place in (("four", "four"), ("five", "five/2023"), ("six", "six")):
        folder = tmp_path / "photos" / place
        folder.mkdir(parents=True)
        for i, content in enumerate(pictures[label][:9]):
            (folder / f"{i}.png").write_bytes(content)
    folder = tmp_path / "photos/train/2024"  # a class: there is no test/ or val/
    folder.mkdir(parents=True)
    (folder / "0.png").write_bytes(pictures["one"][0])
    (tmp_path / "photos/four/phone.HEIC").write_bytes(b"")
    (tmp_path / "photos/beside.png").write_bytes(pictures["one"][0])
    (tmp_path / "photos/__MACOSX").mkdir()
    (tmp_path / "photos/__MACOSX/1.png").write_bytes(pictures["one"][0])
    page.goto(address)
    page.locator("#add-folder").set_input_files(tmp_path / "photos")
    expect(page.locator("#message")).to_have_text(
        "Left out 1 .heic file: convert to JPEG or PNG. "
        "Left out 1 picture outside of the folders of classes."
    )
    press_learn(page)
    assert learnt == [{"four": 9, "five": 9, "six": 9, "train": 1}]
    assert len(list(app.state.jobs)) == 1  # no other holds pictures


def test_of_a_folder_with_a_test_part_only_train_is_taken(page, quick, tmp_path, pictures, learnt):
    for part, n in (("train", 6), ("Test", 3), ("val", 1)):
        for label in ("five", "six"):
            folder = tmp_path / "photos" / part / label
            folder.mkdir(parents=True)
            for i, content in enumerate(pictures[label][:n]):
                (folder / f"{i}.png").write_bytes(content)
    (tmp_path / "photos/beside.png").write_bytes(pictures["one"][0])
    open_teach(page, quick)
    page.locator("#add-folder").set_input_files(tmp_path / "photos")
    message = page.locator("#message")
    expect(message).to_contain_text("Took the pictures in train; left out those for testing:")
    expect(message).to_contain_text("6 in Test")
    expect(message).to_contain_text("2 in val")
    expect(message).to_contain_text("Left out 1 picture outside of the folders of classes.")
    press_learn(page)
    assert learnt == [{"five": 6, "six": 6}]


def photos(root, pictures, *places):
    """Write two pictures into each place, as ``iris/2023``, of a folder."""
    for place in places:
        (root / place).mkdir(parents=True)
        for i, content in enumerate(pictures["five"][:2]):
            (root / place / f"{i}.png").write_bytes(content)


def test_a_folder_above_the_classes_is_told(page, quick, tmp_path, pictures):
    root = tmp_path / "season"
    photos(root, pictures, "week1/daisy", "week2/iris")
    open_teach(page, quick)
    page.locator("#add-folder").set_input_files(root)
    message = page.locator("#message")
    expect(message).to_have_text(
        "week1 contains folders. If those are the classes, remove what was added, and add week1 "
        "itself."
    )
    page.get_by_role("button", name="Remove class").first.click()
    page.get_by_role("button", name="Remove class").first.click()
    page.locator("#add-folder").set_input_files(root / "week1")
    expect(page.get_by_label("Class", exact=True).first).to_have_value("daisy")
    expect(message).not_to_contain_text("contains folders")


def drop(page, target, *paths):
    """Drop files and folders of this machine on an element."""
    target.scroll_into_view_if_needed()
    box, session = target.bounding_box(), page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        session.send("Input.dispatchDragEvent", {"type": kind, "data": data, **at})


def test_only_the_pictures_of_a_dropped_folder_are_added(page, quick, tmp_path, pictures):
    root = tmp_path / "season"
    photos(root, pictures, "week1/daisy", "iris")
    for name in ("notes.txt", "list.csv", ".hidden.png"):
        (root / "iris" / name).write_bytes(b"no picture")
    open_teach(page, quick)
    card = page.locator(".class-card").first
    drop(page, card.locator(".drop"), root / "week1")
    message = page.locator("#message")
    expect(message).to_have_text("week1 contains folders: use Add folders, one per class.")
    expect(card.locator(".count")).to_have_text("no pictures")
    drop(page, card.locator(".drop"), root / "iris")
    expect(message).to_contain_text("Left out 2 files")
    expect(card.locator(".count")).to_have_text("2 pictures")


def test_one_folder_in_each_class_may_hold_its_pictures(page, quick, tmp_path, pictures):
    photos(tmp_path / "flowers", pictures, "daisy/2023", "iris/2023")
    open_teach(page, quick)
    page.locator("#add-folder").set_input_files(tmp_path / "flowers")
    expect(page.locator(".class-card .count")).to_have_text(["2 pictures"] * 2)


@pytest.mark.parametrize("action", ["Rename one", "Forget one", "Roll back"])
def test_results_are_cleared_when_the_model_changes(page, quick, pictures, action):
    page.goto(quick)
    classify(page, named(pictures, "one", 2))
    page.get_by_role("tab", name="Model").click()
    rows = page.locator("#class-list")
    expect(rows.locator("li")).to_have_count(4)
    expect(page.locator(".prediction")).to_have_count(2)  # nothing has changed
    page.get_by_role("button", name=action).click()
    if action == "Rename one":
        page.get_by_label("New name").fill("uno")
    page.locator("#dialog-yes").click()
    expect(page.locator(".prediction")).to_have_count(0)
    classify(page, named(pictures, "one", 1))


@pytest.mark.parametrize("action", ["Rename one", "Forget one", "Roll back"])
def test_a_button_is_disabled_until_the_model_is_changed(page, quick, action):
    held_back = []
    page.route(re.compile("/(rename|forget|rollback)$"), lambda route: held_back.append(route))
    page.goto(quick)
    page.get_by_role("tab", name="Model").click()
    button = page.get_by_role("button", name=action)
    button.click()
    if action == "Rename one":
        page.get_by_label("New name").fill("uno")
    page.locator("#dialog-yes").click()
    expect(button).to_be_disabled()
    while not held_back:
        page.wait_for_timeout(10)
    held_back.pop().abort()
    expect(button).to_be_enabled()
    expect(page.locator("#message")).to_contain_text("cannot be reached")


def test_the_onnx_file_or_why_there_is_none(page, site, place, monkeypatch):
    address, app = site(place)

    async def export(served):
        if missing:
            raise ApiError(409, "export_failed", "pip install '.[onnx]' in lmrc's folder")
        return b"onnx"

    missing = ["onnx"]
    monkeypatch.setattr(app.state, "export", export)
    page.goto(address)
    page.get_by_role("tab", name="Model").click()
    page.get_by_text("ONNX file").click()
    expect(page.locator("#message")).to_have_text("pip install '.[onnx]' in lmrc's folder")
    missing.clear()
    with page.expect_download() as download:
        page.get_by_text("ONNX file").click()
    assert download.value.suggested_filename == "pets.onnx"
    assert download.value.path().read_bytes() == b"onnx"
    expect(page.locator("#message")).to_be_hidden()


def test_learn_says_that_pictures_are_missing(page, quick):
    open_teach(page, quick)
    expect(page.locator("#learn-hint")).to_have_text("Add pictures first.")
    assert page.get_by_role("button", name="Learn").is_disabled()


def test_leaving_asks_only_while_pictures_would_be_lost(page, quick, pictures):
    asked = []

    def leave(dialog):
        asked.append(dialog.type)
        dialog.accept()

    def add():
        page.get_by_role("tab", name="Teach").click()
        return teach_five(page, pictures)

    page.on("dialog", leave)
    page.goto(quick)
    add()
    page.reload()
    assert asked == ["beforeunload"]
    add().get_by_role("button", name="Remove class").click()
    page.reload()
    add()
    press_learn(page)
    page.reload()
    page.get_by_role("tab", name="Teach").click()
    page.get_by_role("button", name="Keep").click()
    expect(page.get_by_role("tab", name="Classify")).to_have_attribute("aria-selected", "true")
    page.reload()
    assert asked == ["beforeunload"]


@pytest.mark.parametrize(("name", "suffixes"), [("READ", SUFFIXES), ("NOT_READ", NOT_READ)])
def test_the_page_knows_the_same_formats_as_the_command_line(name, suffixes):
    text = (Path(app.__file__).parent / "page/pictures.js").read_text("utf-8")
    pattern = re.search(rf"^const {name} = /(.*)/i;$", text, re.M)[1]
    assert all(re.search(pattern, f"photo{suffix}") for suffix in suffixes)


def test_two_tabs(page, quick, pictures):
    """What one tab learns, the other sees, and may decide."""
    other = page.context.new_page()
    for tab in (page, other):
        tab.goto(quick)
        tab.get_by_role("tab", name="Teach").click()
    card = teach_five(page, pictures)
    page.get_by_role("button", name="Learn").click()
    expect(page.locator("#accuracy")).to_contain_text("75 % of 8 pictures")
    other.reload()  # it begins with Classify
    other.get_by_role("tab", name="Teach (keep?)").click()
    other.get_by_role("button", name="Discard").click()
    for tab in (page, other):
        expect(tab.locator("#teach-edit")).to_be_visible()
        expect(tab.get_by_role("tab", name="Teach")).to_have_text("Teach")
    expect(card.locator(".count")).to_have_text("12 pictures")  # to be learnt again
    expect(page.get_by_role("button", name="Learn")).to_be_enabled()


def test_dropped_connection_while_learning(page, site, place, pictures, tmp_path, fake_learner):
    """Progress is shown again when the connection is back; a killed server left the model alone."""
    address, app = site(place)
    gate = tmp_path / "gate"
    fake_learner(app, f"while not os.path.exists({str(gate)!r}): time.sleep(0.02)")
    open_teach(page, address)
    teach_five(page, pictures)
    page.get_by_role("button", name="Learn").click()
    expect(page.locator("#left")).to_have_text("About 30 s left.")
    other = page.context.new_page()
    other.goto(address)
    expect(other.get_by_role("tab", name="Teach (learning)")).to_be_visible()
    other.close()
    page.context.set_offline(True)
    for job in app.state.jobs:
        job.update()  # the stream ends with an error
    page.evaluate("() => window.stop()")
    page.context.set_offline(False)
    gate.touch()
    expect(page.get_by_role("button", name="Keep")).to_be_visible()
    port = int(address.rpartition(":")[2])
    site.stop()
    expect(page.locator("#left")).to_have_text("The connection is lost. Trying again…")
    site(place, port=port)
    expect(page.locator("#message")).to_contain_text("The model is unchanged")
    expect(page.get_by_role("tab", name="Teach")).to_have_text("Teach")
    expect(page.get_by_role("button", name="Learn")).to_be_enabled()


def test_webcam(page, quick):
    page.goto(quick)
    page.get_by_role("button", name="Use the webcam").click()
    expect(page.locator("#classify-live figcaption")).to_contain_text("similarity")
    page.get_by_role("button", name="Stop the webcam").click()
    page.get_by_role("tab", name="Teach").click()
    card = page.locator(".class-card").first
    card.get_by_label("Class").fill("me")
    card.get_by_role("button", name="Use the webcam").click()
    card.get_by_role("button", name="Take a picture").click()
    expect(card.locator(".count")).to_have_text("1 picture")


def test_keyboard_and_names(page, quick):
    """Everything can be reached by the keyboard, and has a name for screen readers."""
    page.goto(quick)
    page.get_by_role("tab", name="Classify").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Teach")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#class-list li")).to_have_count(4)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, a[href]")]
            .filter((e) => !(e.labels?.length || e.textContent.trim() || e.ariaLabel))
            .filter((e) => !e.closest("dialog")).map((e) => e.outerHTML)"""
    )
    assert nameless == []
    page.get_by_role("button", name="Forget one").press("Enter")
    expect(page.locator("dialog")).to_be_visible()
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # the page refreshes
    page.wait_for_load_state("networkidle")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    expect(page.get_by_role("button", name="Forget one")).to_be_focused()


def test_phone_does_not_scroll_sideways(browser, quick):
    context = browser.new_context(viewport={"width": 320, "height": 640}, color_scheme="dark")
    page = context.new_page()
    page.goto(quick)
    for name in ("Classify", "Teach", "Model"):
        page.get_by_role("tab", name=name).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, name
    context.close()


def test_sign_in(page, site, place):
    token = "a-token-of-some-length"
    address, _ = site(place, token=token)
    page.goto(address)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("tab", name="Model").click()
    expect(page.locator("#class-list li")).to_have_count(4)
