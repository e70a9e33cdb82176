"""Parameters are declared once, and everything follows."""

import inspect
import subprocess
import sys
from typing import Literal

import pytest
from sklearn.base import clone

from lmrc import (
    EWCClassifier,
    FineTuneClassifier,
    IncrementalClassifier,
    LMRCClassifier,
    LMRCPlusClassifier,
)
from lmrc.checks import blobs
from lmrc.methods.catalog import METHODS, find_method
from lmrc.methods.parameters import parameter, real

X, Y = blobs()[0]


class Own(FineTuneClassifier):
    """A method of one's own.

    Attributes
    ----------
    strength_ : float
    """

    strength: float = parameter(default=2.0, constraint=real(0), help="How strong.")
    mode: Literal["a", "b"] = parameter(default="a", help="Which one.", fixed=True)
    flag: bool = parameter(default=False)
    epochs = parameter(default=3)


def test_a_declared_parameter_is_in_the_signature_with_its_default():
    found = inspect.signature(Own).parameters
    assert (found["strength"].default, found["mode"].default) == (2.0, "a")
    assert found["batch_size"].default == 128
    assert all(p.kind is p.KEYWORD_ONLY for p in found.values())
    model = Own(strength=5)
    assert (model.strength, model.mode, model.epochs) == (5, "a", 3)
    assert clone(model.set_params(mode="b")).get_params()["mode"] == "b"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"strength": -1}, "Own: strength=-1 is not valid; it must be a number ≥ 0"),
        ({"mode": "c"}, "Own: mode='c' is not valid; it must be 'a' or 'b'"),
        ({"flag": 1}, "Own: flag=1 is not valid; it must be True or False"),
        ({"epochs": 0}, "Own: epochs=0 is not valid; it must be a whole number of at least 1"),
    ],
)
def test_constraints_are_checked_before_training(settings, told):
    with pytest.raises(ValueError, match="Own: ") as error:
        Own(**settings).fit(X, Y)
    assert str(error.value) == told


def test_a_misspelt_parameter_is_refused_with_a_hint():
    with pytest.raises(TypeError, match=r"Own\(\) got .* 'strenth'; did you mean 'strength'\?"):
        Own(strenth=1)


def test_what_is_fixed_cannot_change_after_the_first_task():
    model = Own(epochs=1, random_state=0).fit(X, Y).set_params(mode="b")
    with pytest.raises(ValueError, match="mode was 'a' at the first task"):
        model.partial_fit(X, Y)


def test_the_docstring_has_the_parameters_before_its_other_sections():
    text = Own.__doc__
    entry = "strength : float, default=2.0\n    How strong.\n"
    assert text.startswith("A method of one's own.\n\nParameters\n----------\n" + entry)
    assert text.index('mode : {"a", "b"}, default="a"') < text.index("batch_size : int")
    assert text.index("verbose") < text.index("Attributes\n")
    assert "epochs : int, default=3\n    Epochs per task." in text


def test_what_would_be_ignored_is_refused():
    with pytest.raises(TypeError, match=r"write epochs = parameter\(default=…\)"):
        type("Plain", (LMRCClassifier,), {"epochs": 5})
    with pytest.raises(TypeError, match=r"declare them as name: type = parameter\(default=…\)"):
        type("Explicit", (LMRCClassifier,), {"__init__": lambda self, **settings: None})


def test_a_new_default_leaves_the_rest_as_it_was():
    class Other(LMRCPlusClassifier):
        rotations = parameter(default="none")
        label_dim = parameter(default=10, fixed=False)

    above, now = LMRCPlusClassifier.parameters["rotations"], Other.parameters["rotations"]
    assert (now.default, now.off, now.fixed) == ("none", "none", True)
    assert (now.help, now.constraint) == (above.help, above.constraint)
    assert not Other.parameters["label_dim"].fixed


def test_the_current_folder_is_searched_for_methods_of_ones_own_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert all(find_method(name).cls for name in METHODS)
    assert str(tmp_path) not in sys.path
    (tmp_path / "own_method.py").write_text("from lmrc import EWCClassifier")
    assert find_method("own_method.EWCClassifier").cls is EWCClassifier
    assert str(tmp_path) in sys.path


def test_lmrc_has_the_papers_parameters_and_those_of_training():
    own = set(LMRCClassifier.parameters) - set(IncrementalClassifier.parameters)
    assert own == {"label_dim", "threshold", "max_tries", "on_full", "response_weight"}
    assert set(LMRCClassifier.parameters) < set(LMRCPlusClassifier.parameters)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_parameter_says_what_it_is(method):
    for name, declared in method.cls.parameters.items():
        assert declared.help.endswith("."), name
        assert declared.type, name
        assert declared.constraint is None or declared.constraint.test(declared.default), name


def test_public_names_are_parameters_the_contract_and_scikit_learns():
    contract = {"make_head", "expand", "losses", "penalty", "scores", "init_network", "after_task"}
    contract |= {"new_encoder", "check_saved", "choose_exemplars", "exemplars_per_class"}
    contract |= {"needs_old_outputs", "needs_features", "keeps_data", "predict_is_argmax"}
    contract |= {"saved_values", "saved_tensors", "parameters", "checkpoint"}
    known = {"fit", "partial_fit", "predict", "predict_topk", "decision_function", "score", "save"}
    known |= {"get_params", "set_params", "get_metadata_routing", "set_score_request"}
    known |= {"set_fit_request", "set_partial_fit_request"}
    known |= {"similarities", "similarities_by_rule", "forget", "rename", "rotations"}
    known |= {"outputs", "predict_proba", "unknown_scores", "unknown_threshold"}
    for method in METHODS.values():
        names = {n for n in dir(method.cls) if not n.startswith("_") and not n.endswith("_")}
        assert names - contract - known <= set(method.cls.parameters)


def test_declarations_and_the_list_of_methods_take_no_torch():
    program = "import sys, lmrc.methods.catalog; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
