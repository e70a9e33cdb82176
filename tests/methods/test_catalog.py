"""Methods are found by short name, entry point and dotted path."""

import sys
from types import SimpleNamespace

import pytest

from lmrc import LMRCClassifier
from lmrc.methods import catalog
from lmrc.methods.catalog import METHODS, find_method, make_learner
from lmrc.methods.parameters import parameter

MODULE = """
class OwnClassifier:
    def __init__(self, *, epochs=1):
        self.epochs = epochs
    def partial_fit(self, X, y): ...
    def predict(self, X): ...

class LearnsOnly:
    def partial_fit(self, X, y): ...
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module in the current folder, which the search path does not have."""
    (tmp_path / "own_methods.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_methods", None)


@pytest.fixture
def installed(module, tmp_path, monkeypatch):
    """Return a function that installs a package with these entry points, as pip would."""

    def install(**entries):
        info = tmp_path / "site" / "own_package-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-package\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(["[lmrc.methods]", *lines]))
        monkeypatch.syspath_prepend(info.parent)

    return install


@pytest.mark.parametrize("name", METHODS)
def test_short_names(name):
    method = find_method(name)
    learner = make_learner(method, {"epochs": 3, "unknown": 4}, random_state=7)
    assert type(learner) is method.cls
    assert (learner.epochs, learner.random_state) == (3, 7)


def test_a_default_that_a_class_declares_is_its_own_though_ours_is_the_same(monkeypatch):
    class Own(LMRCClassifier):
        epochs = parameter(default=70)

    monkeypatch.setattr(catalog, "find_method", lambda *_: SimpleNamespace(cls=Own))
    assert catalog.own_defaults("own.Own") == {"epochs": 70}


def test_what_makes_a_method_beats_the_settings():
    assert make_learner(find_method("lm"), {"response_weight": 5.0}).response_weight == 0


@pytest.mark.parametrize("name", ["own_methods.OwnClassifier", "own_methods:OwnClassifier"])
def test_dotted_path_into_the_current_folder(module, name):
    method = find_method(name)
    assert method.cls.__name__ == "OwnClassifier"
    assert method.title == "own_methods.OwnClassifier"
    assert make_learner(method, {"epochs": 3, "momentum": 0.9}).epochs == 3


def test_dotted_path_of_an_installed_package_comes_before_the_current_folder(module, tmp_path):
    (tmp_path / "lmrc.py").write_text("raise AssertionError('the wrong lmrc')")
    assert find_method("lmrc.LMRCClassifier").cls is LMRCClassifier


def test_titles_of_own_classes_are_never_those_of_built_in_ones(installed):
    """Records tell methods apart by title: a clash would mix two methods."""
    taken = {method.title for method in METHODS.values()}
    installed(LMRC="own_methods:OwnClassifier")
    assert find_method("LMRC").title not in taken
    assert find_method("lmrc.methods.lmrc.LMRCClassifier").title not in taken


def test_entry_point(installed):
    installed(own="own_methods:OwnClassifier")
    method = find_method("own")
    assert method.title == "own"
    assert method.cls.__name__ == "OwnClassifier"


def test_built_in_method_wins_over_an_entry_point_with_a_warning(installed):
    installed(lmrc="own_methods:OwnClassifier")
    with pytest.warns(UserWarning, match=r"'lmrc' of own-package .* own_methods.OwnClassifier"):
        assert find_method("lmrc").cls is LMRCClassifier


def test_unknown_name_lists_what_there_is(installed):
    installed(own="own_methods:OwnClassifier")
    with pytest.raises(ValueError, match=r"'lmcr' is not known: use one of lmrc, .*, joint, own,"):
        find_method("lmcr")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no_such_module.Own", "No module named 'no_such_module'"),
        ("own_methods.Missing", "has no attribute 'Missing'"),
        (".Own", "package.module.Class"),
        ("own_methods.LearnsOnly", "partial_fit and predict"),
        ("own_methods.__doc__", "None, but must be a class"),
    ],
)
def test_wrong_paths_say_what_is_wrong(module, name, told):
    with pytest.raises(ValueError, match=told) as error:
        find_method(name)
    assert repr(name) in str(error.value)


def test_entry_point_that_cannot_be_imported(installed):
    installed(broken="own_methods:Missing")
    with pytest.raises(ValueError, match=r"'broken' cannot be imported .*Missing"):
        find_method("broken")
