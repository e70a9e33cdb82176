"""Fine-tuning: a softmax layer that grows with the classes, and no measure against forgetting."""

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from lmrc.methods.base import IncrementalClassifier
from lmrc.nets.growing import GrowingLinear
from lmrc.nets.network import Network
from lmrc.training.batches import MiniBatch
from lmrc.training.step import Losses


class FineTuneClassifier(IncrementalClassifier):
    """Fine-tuning: cross-entropy over all classes seen, on the new task's data. It forgets.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from lmrc import FineTuneClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = FineTuneClassifier(random_state=0)
    >>> old, new = y < 2, y == 2
    >>> clf.partial_fit(X[old], y[old]).score(X[old], y[old])
    1.0
    >>> clf.partial_fit(X[new], y[new]).score(X[old], y[old]) < 0.5  # most is forgotten
    True
    """

    def make_head(self, width: int, n_heads: int = 0, n_classes: int = 0) -> GrowingLinear:
        """Return a linear layer, one output per class."""
        return GrowingLinear(width, n_classes)

    def expand(self, network: Network, n_new: int) -> None:
        """Add one output per new class."""
        network.head.add_classes(n_new)

    @property
    def needs_old_outputs(self) -> bool:  # type: ignore[override]
        """False; True for a derived class with losses of its own."""
        return type(self).losses is not FineTuneClassifier.losses

    def losses(self, outputs: Tensor, old_outputs: Any, batch: MiniBatch) -> Losses:
        """Return the cross-entropy of the softmax over all classes seen."""
        return {"new": F.cross_entropy(outputs, batch.targets, reduction="none")}

    def scores(self, network: Network, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = network(x)
        return logits
