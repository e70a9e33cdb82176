"""The code of the documentation runs as it stands, and prints what the notebooks show."""

import contextlib
import io
import json
import pkgutil
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer import BadParameter, Context
from typer.main import get_command

from lmrc import load
from lmrc.cli import app
from lmrc.experiments.options import one_by_one, several
from lmrc.experiments.recipe import load_recipe
from lmrc.experiments.runs import check_settings, plan
from lmrc.methods import parameters
from lmrc.methods.declared import LMRCPlusParameters
from lmrc.statistics import classifiers

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [
        ROOT / "README.md",
        *(ROOT / "docs").glob("how-to/*.md"),
        *(ROOT / "docs").glob("reference/*.md"),
    ]
    if re.search("^```python$", path.read_text("utf-8"), re.M)
)
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def run(code, namespace):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "snippet", "exec"), namespace)
    return said.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for code in re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S):
        said = run(code, namespace)
        shown = re.findall(r"^print\(.*#.*?(\d\.\d+)", code, re.M)  # "print(…)  # 0.98, …"
        for here, there in zip(NUMBER.findall(said), shown, strict=False):
            assert float(here) == pytest.approx(float(there), abs=0.01)
        assert len(shown) <= len(NUMBER.findall(said))


def test_the_python_for_clusters_runs_in_one_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs/cluster.md").read_text("utf-8"), re.M | re.S
    )
    X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    code = code.replace("random_state=0", "random_state=0, epochs=1")
    run(code, {"__name__": "__main__", "X": X, "y": np.repeat([0, 1], 4)})
    assert load("pets.lmrc").classes_.tolist() == [0, 1]


def test_the_example_of_a_parameter_is_that_of_the_code():
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    namespace = {"parameter": parameters.parameter, "real": parameters.real}
    exec(compile(code, "snippet", "exec"), namespace)
    shown, real = namespace["scale"], LMRCPlusParameters.parameters["scale"]
    assert all(getattr(real, name) == shown[name] for name in ("default", "help", "trains"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(classifiers, "STEPS", 50)  # a sixth of them shows the same
    namespace = {"__name__": "__main__"}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            said = run("".join(cell["source"]), namespace)
            shown = "".join(text for output in cell["outputs"] for text in output["text"])
            assert NUMBER.sub("#", said) == NUMBER.sub("#", shown)
            for here, there in zip(NUMBER.findall(said), NUMBER.findall(shown), strict=True):
                if "." in here:  # an accuracy; processors round differently
                    assert float(here) == pytest.approx(float(there), abs=0.12)


def commands_of(path):
    """Return the commands in the fences of a page, without comments; continued lines are joined."""
    fences = re.findall(r"^```(.*?)\n(.*?)^```$", path.read_text("utf-8"), re.M | re.S)
    shell = "\n".join(code for language, code in fences if language in ("", "sh"))
    lines = shell.replace("\\\n", " ").splitlines()
    return [found[1] for line in lines if (found := re.search(r"(?:^|-m )lmrc (.+)", line))]


TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS += [ROOT / "results/README.md", ROOT / "results/search/README.md"]
COMMANDS = sorted(
    {(str(path.relative_to(ROOT)), command) for path in TEXTS for command in commands_of(path)}
)


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_of_the_documentation_is_taken(page, command):
    """Parsed as the command line does; most of the rest need a GPU, a cluster, or much time."""
    words = one_by_one(shlex.split(command, comments=True))
    if words[0].startswith("-"):
        return
    root = get_command(app)
    chosen = root.get_command(Context(root), words[0])
    assert chosen is not None, command
    try:
        asked = chosen.make_context(words[0], words[1:]).params
    except BadParameter as error:
        if "does not exist" in error.message:  # the images, as a rule
            return
        raise
    own = any("." in method for method in asked.get("methods") or ())  # a class of the page
    if words[0] == "reproduce" and asked["experiment"] != "capacity" and not own:
        names = ("seeds", "tasks", "first_classes", "announce_classes")
        fields = {name: asked[name] for name in names} | {"methods": several(asked["methods"])}
        recipe = load_recipe(asked["experiment"], asked["dataset"], **fields)
        check_settings(recipe, plan(recipe), [])


def test_the_ablation_trains_seven_of_its_eleven_rows():
    """As docs/beyond-measured.md says."""
    recipe = load_recipe("ablation", "cifar100", seeds=3)
    assert (len(recipe.rows), len(plan(recipe))) == (11, 3 * 7)
    assert recipe.settings["epochs"] == 30


@pytest.mark.parametrize("page", TEXTS, ids=lambda path: path.stem)
def test_names_and_files_of_the_code_exist(page):
    text = page.read_text("utf-8")
    for name in re.findall(r"`(lmrc(?:\.\w+)+)\b", text):
        if name not in ("lmrc.predict", "lmrc.NAME"):  # JavaScript of a web page; any name
            pkgutil.resolve_name(name)
    for name in re.findall(r"`(?!models/)((?:\w+/)+\w+\.py)", text):  # models/: other people's
        places = (ROOT, ROOT / "src", ROOT / "src/lmrc")
        assert any((place / name).is_file() for place in places), name


def test_commands_are_found():
    assert len(COMMANDS) > 30


PHOTOGRAPHS = {  # folders that the pages name, with the colours of their classes
    "week1": {"cat": (200, 60, 40), "dog": (40, 60, 200)},
    "week2": {"bird": (40, 200, 60), "fish": (220, 220, 40)},
    "more-cats": {"cat": (200, 60, 40)},
    "test": {"cat": (200, 60, 40), "fish": (220, 220, 40)},
    "other-animals": {"cow": (120, 120, 120)},
    "photos": {"cat": (200, 60, 40), "dog": (40, 60, 200)},
}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A folder with the images that the pages name."""
    place, rng = tmp_path_factory.mktemp("pets"), np.random.default_rng(0)

    def draw(path, colour):
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = rng.integers(-40, 40, (72, 72, 3)) + np.array(colour)
        Image.fromarray(noise.clip(0, 255).astype("uint8")).save(path)

    for folder, classes in PHOTOGRAPHS.items():
        for name, colour in classes.items():
            for i in range(3):
                draw(place / folder / name / f"{i}.png", colour)
    draw(place / "photo.jpg", (200, 60, 40))
    draw(place / "more" / "1.png", (40, 60, 200))
    return place


@pytest.fixture
def follow(photographs, tmp_path, monkeypatch, call):
    """Run those commands of a page that one person has on one machine; return what they say."""

    def run_all(page, model=None):
        place = tmp_path / Path(page).stem
        shutil.copytree(photographs, place)
        if model:
            shutil.copytree(model, place / model.name)
        monkeypatch.chdir(place)
        said = {}
        for command in commands_of(ROOT / page):
            words = shlex.split(command.partition(">")[0], comments=True)
            if words[0] in ("learn", "check", "predict", "evaluate"):
                paths = [Path().glob(word) if "*" in word else [word] for word in words]
                code, out, err = call(*(str(path) for found in paths for path in found))
                assert code == 0 or (words[0] == "check" and code == 1), (command, out, err)
                said[command] = out
        return place, list(said.values())

    return run_all


@pytest.mark.usefixtures("small_inputs", "small_pretrained", "undrawn")
def test_the_commands_of_readme_and_guides_run(follow):
    """On few small images: what a newcomer types first must not fail."""
    place, (_, first, second, answers, accuracy) = follow("README.md")
    assert "cat" in first
    assert "bird" in second
    assert answers.splitlines()[-1].split()[1] == "cat"
    assert "100" in accuracy
    model = place / "pets.lmrc"
    assert len(follow("docs/how-to/unknown.md", model)[1]) == 3
    assert "cat" in follow("docs/how-to/known-class-again.md", model)[1][0]
    assert follow("docs/how-to/check.md", model)[1]
    assert follow("docs/how-to/larger-than-memory.md")[1]
