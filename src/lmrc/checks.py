"""Properties that every incremental classifier must satisfy.

Run them against a method of your own::

    from lmrc import checks

    for check in checks.ALL:
        check(MyClassifier(epochs=3, random_state=0))

Each takes an unfitted classifier with a fixed ``random_state``, works on clones of it, and raises
`AssertionError` where the property does not hold.
"""

from __future__ import annotations

import copy
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from torch import Tensor

from lmrc.methods.base import IncrementalClassifier
from lmrc.methods.persistence import load
from lmrc.methods.state import pack

Batch = tuple[NDArray[Any], NDArray[Any]]


def blobs(n_per_class: int = 20, seed: int = 0) -> list[Batch]:
    """Three tasks of two classes each: well separated clouds of 8-vectors."""
    rng = np.random.default_rng(seed)
    centres = 4 * np.random.default_rng(0).standard_normal((6, 8))
    batches = []
    for first in (0, 2, 4):
        y = np.repeat([first, first + 1], n_per_class)
        batches.append((centres[y] + rng.standard_normal((len(y), 8)), y))
    return batches


def check_old_classes_keep_their_place(classifier: IncrementalClassifier) -> None:
    """Classes stay in order of arrival, heads with their classes, label vectors where they are."""
    model = _taught(classifier, 2)
    classes, heads = model.classes_, model.heads_
    vectors = getattr(model, "label_vectors_", None)
    model.partial_fit(*blobs()[2])
    np.testing.assert_array_equal(model.classes_[: len(classes)], classes)
    for head, before in zip(model.heads_, heads, strict=False):
        np.testing.assert_array_equal(head, before)
    assert len(model.heads_) == len(heads) + 1, "new classes must be governed together"
    if vectors is not None:
        np.testing.assert_array_equal(model.label_vectors_[: len(vectors)], vectors)


def check_predict_changes_nothing(classifier: IncrementalClassifier) -> None:
    """Asking a model leaves no trace in it, nor in torch's global generator."""
    model = _taught(classifier, 2)
    before, generator = _state(model), torch.random.get_rng_state()
    attributes = {name: id(value) for name, value in vars(model).items()}
    X, y = blobs(seed=1)[0]
    answers = model.predict(X)
    model.decision_function(X), model.predict_topk(X), model.score(X, y)
    _assert_same_state(before, _state(model))
    np.testing.assert_array_equal(model.predict(X), answers)
    assert {n: id(v) for n, v in vars(model).items()} == attributes, "an attribute was set"
    assert torch.equal(torch.random.get_rng_state(), generator), "torch's generator was used"


def check_rows_are_independent(classifier: IncrementalClassifier) -> None:
    """Permuting the rows permutes the answers; a row alone gets the answer it gets in company."""
    model = _taught(classifier, 2)
    X = np.concatenate([x for x, _ in blobs(seed=1)[:2]])
    scores, order = model.decision_function(X), np.random.default_rng(0).permutation(len(X))
    np.testing.assert_allclose(model.decision_function(X[order]), scores[order], atol=1e-5)
    np.testing.assert_allclose(model.decision_function(X[:1]), scores[:1], atol=1e-5)


def check_highest_score_wins(classifier: IncrementalClassifier) -> None:
    """Each class has a score, the highest wins, and classes just learnt are told apart by it."""
    patient = clone(classifier).set_params(epochs=20, first_epochs=None)  # some learn slowly
    model = _taught(patient, 1)
    assert model.score(*blobs()[0]) > 0.5, "what was just learnt is no better than chance"
    model.partial_fit(*blobs()[1])
    X = np.concatenate([X for X, _ in blobs(seed=1)])
    scores = model.decision_function(X)
    assert scores.shape == (len(X), 4), f"scores of shape {scores.shape} for {len(X)} rows of 4"
    np.testing.assert_array_equal(model.predict(X), model.classes_[scores.argmax(axis=1)])


def check_failed_task_changes_nothing(classifier: IncrementalClassifier) -> None:
    """Wrong input is refused with a ValueError, and the model is as it was before."""
    model = _taught(classifier, 1)
    before = _state(model)
    X, y = blobs()[1]
    with_nan = X.copy()
    with_nan[0, 0] = np.nan
    for wrong_X, wrong_y in [(with_nan, y), (X, y[:-1]), (X[:, :5], y), (X[:0], y[:0])]:
        try:
            model.partial_fit(wrong_X, wrong_y)
        except ValueError:
            _assert_same_state(before, _state(model))
        else:
            raise AssertionError(f"took X of shape {wrong_X.shape} and y of {wrong_y.shape}")


def check_interrupted_task_changes_nothing(classifier: IncrementalClassifier) -> None:
    """Ctrl-C in the midst of training leaves the earlier model; the batch can be taught again."""
    X, y = blobs()[1]
    untouched = _taught(classifier, 1).partial_fit(X, y)
    model: Any = _taught(classifier, 1)
    before, method, steps = _state(model), type(model), iter(["one step"])

    class Interrupted(method):  # type: ignore[misc,valid-type]
        def losses(self, *args: Any) -> Any:
            if next(steps, None) is None:
                raise KeyboardInterrupt
            return super().losses(*args)

    model.__class__ = Interrupted
    try:
        model.partial_fit(X, y)
    except KeyboardInterrupt:
        model.__class__ = method
    else:
        raise AssertionError("an interrupt was swallowed, or training takes one step alone")
    _assert_same_state(before, _state(model))
    _assert_same_state(_state(untouched), _state(model.partial_fit(X, y)))


def check_known_classes_open_no_head(classifier: IncrementalClassifier) -> None:
    """A batch of known classes alone is learnt without growing the model."""
    model = _taught(classifier, 2)
    sizes = _sizes(model)
    model.partial_fit(*blobs(seed=1)[0])
    np.testing.assert_array_equal(model.classes_, [0, 1, 2, 3])
    assert len(model.heads_) == 2, "known classes need no head of their own"
    assert _sizes(model) == sizes, "known classes must not make the model larger"


def check_growth_is_by_head_alone(classifier: IncrementalClassifier) -> None:
    """Without a pool a model grows by the same bytes each time, however many samples it saw."""
    if classifier.keeps_data:
        return  # it says so: joint training is a bound to compare with
    few, many = (
        [_sizes(_taught(_without_pool(classifier), n_tasks, n)) for n_tasks in (1, 2, 3)]
        for n in (20, 60)
    )
    assert few == many, "the model's size depends on the number of samples"
    lean, rich = (len(pickle.dumps(_taught(_without_pool(classifier), 2, n))) for n in (20, 60))
    assert abs(lean - rich) < 100, "something in the model grows with the number of samples"
    growth = {name: few[1][name] - few[0][name] for name in few[0]}
    again = {name: few[2][name] - few[1][name] for name in few[0]}
    assert growth == again, "each task must cost the same"
    assert few[0].keys() == few[2].keys(), f"new tensors: {few[2].keys() - few[0].keys()}"


def check_same_seed_same_model(classifier: IncrementalClassifier) -> None:
    """Two runs with one seed agree bit by bit, whatever torch's global generator is at."""
    models = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            models.append(_state(_taught(classifier, 2)))
    _assert_same_state(*models)


def check_labels_are_only_names(classifier: IncrementalClassifier) -> None:
    """Strings for labels give the very same network as numbers do."""
    model, named = _taught(classifier, 0), _taught(classifier, 0)
    names = np.array(list("abcdef"))
    for X, y in blobs()[:2]:
        model.partial_fit(X, y)
        named.partial_fit(X, names[y])
    X = np.concatenate([X for X, _ in blobs(seed=1)[:2]])
    np.testing.assert_array_equal(named.predict(X), names[model.predict(X)])


def check_saved_model_goes_on(classifier: IncrementalClassifier) -> None:
    """A model from disk gives the same answers, and its next task is the same bit by bit."""
    model = _taught(classifier, 2)
    X = np.concatenate([X for X, _ in blobs(seed=1)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.lmrc"
        model.save(path)
        custom = None if isinstance(model.backbone, str) else model.backbone
        loaded = load(path, method=type(model), backbone=custom, device=model.device)
    assert type(loaded) is type(model), "a model must come back as what it was"
    np.testing.assert_array_equal(loaded.decision_function(X), model.decision_function(X))
    for fitted in (model, loaded):
        fitted.partial_fit(*blobs()[2])
    _assert_same_state(_state(model), _state(loaded))


#: All of them.
ALL: list[Callable[[IncrementalClassifier], None]] = [
    check_old_classes_keep_their_place,
    check_predict_changes_nothing,
    check_rows_are_independent,
    check_highest_score_wins,
    check_failed_task_changes_nothing,
    check_interrupted_task_changes_nothing,
    check_known_classes_open_no_head,
    check_growth_is_by_head_alone,
    check_same_seed_same_model,
    check_labels_are_only_names,
    check_saved_model_goes_on,
]


def _taught(classifier: Any, n_tasks: int, n_per_class: int = 20) -> Any:
    model = clone(classifier)
    for X, y in blobs(n_per_class)[:n_tasks]:
        model.partial_fit(X, y)
    return model


def _without_pool(classifier: Any) -> Any:
    pools = {"memory_per_class", "memory_total"} & set(classifier.get_params())
    return clone(classifier).set_params(**dict.fromkeys(pools, 0))


def _state(model: Any) -> tuple[Any, list[tuple[str, Tensor]]]:
    """All that is in a model, copied: plain values, and tensors by name."""
    description, groups = pack(model)
    tensors = [
        (f"{group}: {name}", tensor.detach().clone())
        for group, members in sorted(groups.items())
        for name, tensor in sorted(members.items())
    ]
    return copy.deepcopy(description), tensors


def _sizes(model: Any) -> dict[str, int]:
    """Bytes of each tensor of the model, the pool left out."""
    return {name: t.nbytes for name, t in _state(model)[1] if not name.startswith("exemplars")}


def _assert_same_state(one: Any, other: Any) -> None:
    names = {**one[0], **other[0]}  # what but one of them says of itself differs, too
    differing = [name for name in names if one[0].get(name) != other[0].get(name)]
    assert not differing, f"the models differ in {', '.join(differing)}"
    for (name, a), (same_name, b) in zip(one[1], other[1], strict=True):
        assert name == same_name, f"{name} in place of {same_name}"
        assert torch.equal(a, b), f"{name} differs"
