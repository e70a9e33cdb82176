"""What pyproject.toml promises of versions is what `make oldest` tests."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_oldest_versions_that_are_allowed_are_those_that_are_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
    lowest = dict(re.split(">=|==", words.partition(";")[0]) for words in declared)
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    tested = dict(
        found.groups() for line in lines if (found := re.match(r"([\w-]+)==([\d.]+)", line))
    )
    assert lowest.keys() == tested.keys()
    for name, version in lowest.items():
        assert f"{tested[name]}.".startswith(f"{version}."), name
