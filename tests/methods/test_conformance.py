"""The estimators are scikit-learn's, in every way that its own checks know."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from lmrc import FineTuneClassifier, LMRCClassifier
from lmrc.checks import blobs

X, Y = (np.concatenate(part) for part in zip(*blobs(), strict=True))


@parametrize_with_checks([LMRCClassifier(), FineTuneClassifier()])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", [LMRCClassifier, FineTuneClassifier])
def test_clone_and_set_params(estimator):
    model = estimator(epochs=5, random_state=0).set_params(learning_rate=0.02)
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
