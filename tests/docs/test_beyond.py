"""The commands of docs/beyond-measured.md are taken, and run what the page says."""

import re
import shlex
from pathlib import Path

import pytest

from lmrc import cli
from lmrc.experiments import reproduce
from lmrc.experiments.recipe import load_recipe
from lmrc.experiments.runs import check_settings, plan

PAGE = (Path(__file__).parents[2] / "docs" / "beyond-measured.md").read_text("utf-8")
COMMANDS = re.findall(r"^lmrc (reproduce [^#\n]+)", PAGE, flags=re.MULTILINE)


@pytest.fixture
def recipe_of(monkeypatch):
    """Return what a command would run, and where."""

    def parsed(command):
        seen = []
        monkeypatch.setattr(reproduce, "main", lambda *args, **more: seen.append((args, more)))
        monkeypatch.setattr("sys.argv", ["lmrc", *shlex.split(command)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code
        (experiment, dataset, _), more = seen[0]
        fields = {name: more[name] for name in ("methods", "seeds", "tasks", "first_classes")}
        return load_recipe(experiment, dataset, **fields)

    return parsed


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_taken(command, recipe_of):
    recipe = recipe_of(command)
    check_settings(recipe, plan(recipe), [])


def test_the_ablation_trains_seven_of_its_eleven_rows(recipe_of):
    (command,) = (c for c in COMMANDS if "ablation" in c)
    recipe = recipe_of(command)
    assert (len(recipe.rows), len(plan(recipe))) == (11, 3 * 7)
    assert recipe.settings["epochs"] == 30
