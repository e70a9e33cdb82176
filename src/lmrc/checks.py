"""Properties that every incremental classifier must satisfy.

Run them against a method of your own::

    from lmrc import checks

    for check in checks.ALL:
        check(MyClassifier(epochs=3, random_state=0))

Each takes an unfitted classifier with a fixed ``random_state``, works on clones of it, and raises
`AssertionError` if the property does not hold.
"""

import copy
import pickle
import re
import tempfile
from collections import Counter
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

Task = tuple[NDArray[Any], NDArray[Any]]


def blobs(n_per_class: int = 20, seed: int = 0) -> list[Task]:
    """Return three tasks of two classes each: well separated Gaussian blobs in 8 dimensions."""
    rng = np.random.default_rng(seed)
    centres = 4 * np.random.default_rng(0).standard_normal((6, 8))
    tasks = []
    for first in (0, 2, 4):
        y = np.repeat([first, first + 1], n_per_class)
        tasks.append((centres[y] + rng.standard_normal((len(y), 8)), y))
    return tasks


def check_old_classes_keep_their_position(classifier: IncrementalClassifier) -> None:
    """Classes stay in order of arrival, in their heads, and with their label vectors."""
    model = _fitted(classifier, 2)
    classes, heads = model.classes_, model.heads_
    vectors = getattr(model, "label_vectors_", None)
    model.partial_fit(*blobs()[2])
    np.testing.assert_array_equal(model.classes_[: len(classes)], classes)
    for head, before in zip(model.heads_, heads, strict=False):
        np.testing.assert_array_equal(head, before)
    assert len(model.heads_) == len(heads) + 1, "all new classes must belong to one new head"
    if vectors is not None:
        np.testing.assert_array_equal(model.label_vectors_[: len(vectors)], vectors)


def check_predict_changes_nothing(classifier: IncrementalClassifier) -> None:
    """Prediction changes neither the model nor torch's global RNG."""
    model = _fitted(classifier, 2)
    before, rng_state = _state(model), torch.random.get_rng_state()
    attributes = {name: id(value) for name, value in vars(model).items()}
    X, y = blobs(seed=1)[0]
    predicted = model.predict(X)
    model.decision_function(X), model.predict_topk(X), model.score(X, y)
    _assert_same_state(before, _state(model))
    np.testing.assert_array_equal(model.predict(X), predicted)
    assert {n: id(v) for n, v in vars(model).items()} == attributes, "an attribute was set"
    assert torch.equal(torch.random.get_rng_state(), rng_state), "torch's global RNG was used"


def check_rows_are_independent(classifier: IncrementalClassifier) -> None:
    """Scores of a row do not depend on the order or the presence of other rows."""
    model = _fitted(classifier, 2)
    X = np.concatenate([x for x, _ in blobs(seed=1)[:2]])
    scores, order = model.decision_function(X), np.random.default_rng(0).permutation(len(X))
    np.testing.assert_allclose(model.decision_function(X[order]), scores[order], atol=1e-5)
    np.testing.assert_allclose(model.decision_function(X[:1]), scores[:1], atol=1e-5)


def check_highest_score_wins(classifier: IncrementalClassifier) -> None:
    """Each class has a score, the highest one is predicted, and a task just learnt is accurate."""
    longer = clone(classifier).set_params(epochs=20, first_epochs=None)  # some learn slowly
    model = _fitted(longer, 1)
    assert model.score(*blobs()[0]) > 0.5, "accuracy on a task just learnt is at random level"
    model.partial_fit(*blobs()[1])
    X = np.concatenate([X for X, _ in blobs(seed=1)])
    try:
        scores = model.decision_function(X)
    except ValueError as error:  # a score is missing, or one too many
        raise AssertionError(str(error)) from error
    np.testing.assert_array_equal(model.predict(X), model.classes_[scores.argmax(axis=1)])


def check_failed_task_changes_nothing(classifier: IncrementalClassifier) -> None:
    """Invalid input raises a ValueError and leaves the model unchanged."""
    model = _fitted(classifier, 1)
    before = _state(model)
    X, y = blobs()[1]
    with_nan = X.copy()
    with_nan[0, 0] = np.nan
    for bad_X, bad_y in [(with_nan, y), (X, y[:-1]), (X[:, :5], y), (X[:0], y[:0])]:
        try:
            model.partial_fit(bad_X, bad_y)
        except ValueError:
            _assert_same_state(before, _state(model))
        else:
            raise AssertionError(
                f"accepted X of shape {bad_X.shape} (NaN: {np.isnan(bad_X).any()}) and y of shape "
                f"{bad_y.shape}"
            )


def check_interrupted_task_changes_nothing(classifier: IncrementalClassifier) -> None:
    """Ctrl-C during training leaves the model unchanged; the task can be learnt again."""
    X, y = blobs()[1]
    uninterrupted = _fitted(classifier, 1).partial_fit(X, y)
    model: Any = _fitted(classifier, 1)
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
        raise AssertionError("KeyboardInterrupt was swallowed, or training has a single step")
    _assert_same_state(before, _state(model))
    _assert_same_state(_state(uninterrupted), _state(model.partial_fit(X, y)))


def check_known_classes_add_no_head(classifier: IncrementalClassifier) -> None:
    """A task of known classes only is learnt without enlarging the model."""
    model = _fitted(classifier, 2)
    sizes = _sizes(model)
    model.partial_fit(*blobs(seed=1)[0])
    np.testing.assert_array_equal(model.classes_, [0, 1, 2, 3])
    assert len(model.heads_) == 2, "known classes must not add a head"
    assert _sizes(model) == sizes, "known classes must not enlarge the model"


def check_model_grows_by_heads_only(classifier: IncrementalClassifier) -> None:
    """Without exemplars, each task adds the same number of bytes, for any number of samples."""
    if classifier.keeps_data:
        return  # as joint training does, the usual reference
    sizes, pickled = [], []
    for n in (20, 60):
        model = _fitted(_exemplar_free(classifier), 0)
        sizes.append([_sizes(model.partial_fit(*task)) for task in blobs(n)])
        pickled.append(len(pickle.dumps(model)))
    few, many = sizes
    assert few == many, "the model's size depends on the number of samples"
    difference = abs(pickled[0] - pickled[1])
    assert difference < 100, "the pickled model's size depends on the number of samples"
    growth = {name: few[1][name] - few[0][name] for name in few[1]}
    again = {name: few[2][name] - few[1][name] for name in few[1]}
    assert growth == again, "each task must add the same number of bytes"
    assert few[1].keys() == few[2].keys(), f"new tensors: {few[2].keys() - few[1].keys()}"


def check_same_seed_same_model(classifier: IncrementalClassifier) -> None:
    """Two runs with one seed give bit-identical models, whatever torch's global RNG is set to."""
    models = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            models.append(_state(_fitted(classifier, 2)))
    _assert_same_state(*models)


def check_labels_may_be_strings(classifier: IncrementalClassifier) -> None:
    """String labels give the same network as integer labels."""
    model, named = _fitted(classifier, 0), _fitted(classifier, 0)
    names = np.array(list("abcdef"))
    for X, y in blobs()[:2]:
        model.partial_fit(X, y)
        named.partial_fit(X, names[y])
    X = np.concatenate([X for X, _ in blobs(seed=1)[:2]])
    np.testing.assert_array_equal(named.predict(X), names[model.predict(X)])


def check_saved_model_continues(classifier: IncrementalClassifier) -> None:
    """A loaded model gives the same scores, and its next task is bit-identical."""
    model = _fitted(classifier, 2)
    X = np.concatenate([X for X, _ in blobs(seed=1)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.lmrc"
        model.save(path)
        custom = None if isinstance(model.backbone, str) else model.backbone
        loaded = load(path, method=type(model), backbone=custom, device=model.device)
    assert type(loaded) is type(model), "the loaded model is of another class"
    np.testing.assert_array_equal(loaded.decision_function(X), model.decision_function(X))
    for fitted in (model, loaded):
        fitted.partial_fit(*blobs()[2])
    _assert_same_state(_state(model), _state(loaded))


#: All checks.
ALL: list[Callable[[IncrementalClassifier], None]] = [
    check_old_classes_keep_their_position,
    check_predict_changes_nothing,
    check_rows_are_independent,
    check_highest_score_wins,
    check_failed_task_changes_nothing,
    check_interrupted_task_changes_nothing,
    check_known_classes_add_no_head,
    check_model_grows_by_heads_only,
    check_same_seed_same_model,
    check_labels_may_be_strings,
    check_saved_model_continues,
]


def _fitted(classifier: Any, n_tasks: int) -> Any:
    model = clone(classifier)
    for X, y in blobs()[:n_tasks]:
        model.partial_fit(X, y)
    return model


def _exemplar_free(classifier: Any) -> Any:
    sizes = {"memory_per_class", "memory_total"} & set(classifier.get_params())
    return clone(classifier).set_params(**dict.fromkeys(sizes, 0))


def _state(model: Any) -> tuple[Any, list[tuple[str, Tensor]]]:
    """Return a copy of a model's state: JSON values, and tensors by name."""
    description, groups = pack(model)
    tensors = [
        (f"{group}: {name}", tensor.detach().clone())
        for group, members in sorted(groups.items())
        for name, tensor in sorted(members.items())
    ]
    return copy.deepcopy(description), tensors


def _sizes(model: Any) -> Counter[str]:
    """Return the bytes of tensors by name, without exemplars; of those of each task together."""
    sizes: Counter[str] = Counter()
    for name, tensor in _state(model)[1]:
        if not name.startswith("exemplars"):
            sizes[re.sub(r": \d+\.", ": ", name)] += tensor.nbytes
    return sizes


def _assert_same_state(one: Any, other: Any) -> None:
    names = {**one[0], **other[0]}  # a name that only one has differs, too
    differing = [name for name in names if one[0].get(name) != other[0].get(name)]
    assert not differing, f"the models differ in {', '.join(differing)}"
    for (name, a), (same_name, b) in zip(one[1], other[1], strict=True):
        assert name == same_name, f"{name} instead of {same_name}"
        assert torch.equal(a, b), f"{name} differs"
