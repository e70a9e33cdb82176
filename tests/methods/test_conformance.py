"""The estimators are scikit-learn's, in every way that its own checks know."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from lmrc import LMRCClassifier
from lmrc.checks import blobs
from lmrc.methods.catalog import METHODS, make_learner

X, Y = (np.concatenate(part) for part in zip(*blobs(), strict=True))


OWN = {
    "lmrc+": {
        "rotations": "none",
        "objective": "cosine",
        "predict_with": "wta",
        "first_epochs": None,
    },
}
ESTIMATORS = [
    make_learner(method, {"epochs": 2} | OWN.get(name, {}))
    for name, method in METHODS.items()
    if name not in ("lm", "lwf-mt")  # classes that others have, too
]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_clone_and_set_params(estimator):
    model = clone(estimator).set_params(learning_rate=0.02, epochs=5, random_state=0)
    copied = clone(model.fit(X, Y))
    assert copied.get_params() == model.get_params()
    assert copied.learning_rate == 0.02
    assert not hasattr(copied, "classes_")
    with pytest.raises(ValueError, match="epoch"):
        model.set_params(epoch=3)


def test_pipelines_and_searches_work():
    model = make_pipeline(MinMaxScaler(), LMRCClassifier(epochs=15, random_state=0))
    assert cross_val_score(model, X, Y, cv=3).mean() > 0.9
    search = GridSearchCV(model, {"lmrcclassifier__learning_rate": [1e-6, 0.05]}, cv=3)
    assert search.fit(X, Y).best_params_ == {"lmrcclassifier__learning_rate": 0.05}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_it_learns_where_torch_keeps_no_gradients(estimator):
    first, second, _ = blobs()
    model = clone(estimator).set_params(epochs=2, random_state=0)
    there, here = clone(model), model.partial_fit(*first).partial_fit(*second)
    with torch.inference_mode():
        there.partial_fit(torch.tensor(first[0]), first[1]).partial_fit(*second)
    np.testing.assert_array_equal(there.decision_function(X), here.decision_function(X))
