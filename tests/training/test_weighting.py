import numpy as np
import torch

from lmrc import LMRCClassifier, load
from lmrc.training.batches import MiniBatch
from lmrc.training.weighting import class_weights, weighted


def test_terms_per_sample_are_weighted_and_scalars_are_not():
    y = torch.tensor([0, 0, 0, 1])
    weights = class_weights("balanced", y, [0, 1])
    terms = weighted(lambda _: {"new": torch.ones(4), "penalty": torch.tensor(2.0)}, weights)(
        MiniBatch(torch.zeros(4, 1), y, None)
    )
    assert torch.allclose(terms["new"], torch.tensor([2 / 3, 2 / 3, 2 / 3, 2.0]))
    assert terms["penalty"] == 2


def test_a_rare_class_is_found_more_often():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [300, 6])
    X = (rng.normal(size=(306, 5)) + 1.2 * y[:, None]).astype(np.float32)
    rare = (rng.normal(size=(200, 5)) + 1.2).astype(np.float32)

    def found(class_weight):
        model = LMRCClassifier(epochs=10, class_weight=class_weight, random_state=0).fit(X, y)
        return (model.predict(rare) == 1).mean()

    assert found("balanced") > found(None) + 0.2


def test_weights_by_label_are_in_the_model_file(tmp_path):
    X, y = np.zeros((4, 2), np.float32), np.array([7, 7, 9, 9])
    LMRCClassifier(epochs=1, class_weight={7: 2.0}).fit(X, y).save(tmp_path / "m")
    assert load(tmp_path / "m").class_weight == {7: 2.0}
