"""Exemplars: which samples are kept for rehearsal, and how many."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lmrc.data.inputs import Inputs
from lmrc.methods.rng import EXEMPLARS
from lmrc.nets.network import Network
from lmrc.training.memory import Memory
from lmrc.training.ranks import current

AT_A_TIME = 256  # samples whose features are computed at once


class Exemplars:
    """A classifier's exemplar buffer: a few samples of each class, chosen once."""

    memory_per_class: int
    memory_total: int
    exemplars: Literal["random", "herding"]
    classes_: NDArray[Any]
    memory_: Memory | None
    network_: Network
    _seed: Callable[..., int]

    @property
    def exemplars_per_class(self) -> int:
        """Exemplars that each class may have; with ``memory_total``, fewer as classes arrive."""
        if self.memory_total:
            return self.memory_total // max(1, len(self.classes_))
        return self.memory_per_class

    def choose_exemplars(self, network: Network, x: Inputs, y: Tensor, per_class: int) -> Tensor:
        """Return positions of samples, best first within each class; override it to choose others.

        The first samples of each class are kept, as many as there is room for. They stay in this
        order, and the last are dropped first where the room shrinks.

        Parameters
        ----------
        network : Network
            The network after the task, in evaluation mode.
        x, y : Tensor
            Samples of the task, and indices of their classes in ``classes_``.
        per_class : int
            Room of a class that has no exemplars yet.
        """
        if self.exemplars == "random":
            generator = torch.Generator().manual_seed(self._seed(EXEMPLARS))
            return torch.randperm(len(y), generator=generator)
        rows = [torch.nonzero(y == index).flatten() for index in sorted(set(y.tolist()))]
        chosen = [r[herding(_features(network, x, r), per_class)] for r in rows]
        return torch.cat(chosen)

    def _check_budget(self) -> None:
        """Refuse, before training, a total that has no room for one exemplar of each class."""
        if self.memory_total and not self.exemplars_per_class:
            raise ValueError(
                f"{type(self).__name__}: memory_total={self.memory_total} has no room for one "
                f"exemplar of each of {len(self.classes_)} classes: raise it"
            )

    def _remember(self, x: Inputs, targets: Tensor) -> None:
        """Add exemplars of this task, and drop those for which there is no room any more."""
        if per_class := self.exemplars_per_class:
            ranked = current().broadcast(
                lambda: self.choose_exemplars(self.network_, x, targets, per_class)
            )
            ranked = torch.as_tensor(ranked, device="cpu")
            positions = set(ranked.tolist())
            if len(positions) < len(ranked) or not positions <= set(range(len(targets))):
                raise ValueError(
                    f"{type(self).__name__}: choose_exemplars must return positions of samples, "
                    f"0 to {len(targets) - 1}, each once at most"
                )
            memory = self.memory_ or Memory.empty(x)
            self.memory_ = memory.updated(x, targets, per_class, ranked.long())


def herding(features: Tensor, n: int) -> Tensor:
    """Return positions of n samples whose mean feature is nearest to that of all, step by step.

    As in iCaRL, Algorithm 4: Rebuffi et al., "iCaRL: Incremental Classifier and Representation
    Learning", CVPR 2017. Features are brought to unit length first.

    Parameters
    ----------
    features : Tensor of shape (n_samples, width)
        Of one class.
    n : int
        Fewer where there are fewer samples.

    Examples
    --------
    >>> import torch
    >>> angles = torch.tensor([0.0, 0.1, 0.2, 0.5, 0.6])
    >>> herding(torch.stack([angles.cos(), angles.sin()], dim=1), 3).tolist()
    [2, 3, 1]
    """
    features = F.normalize(features.double(), dim=1)
    mean, total = features.mean(dim=0), torch.zeros_like(features[0])
    free = torch.ones(len(features), dtype=torch.bool)
    chosen: list[int] = []
    for k in range(1, min(n, len(features)) + 1):
        distance = (mean - (total + features) / k).norm(dim=1)
        chosen.append(int(distance.masked_fill(~free, torch.inf).argmin()))
        free[chosen[-1]] = False
        total = total + features[chosen[-1]]
    return torch.tensor(chosen, dtype=torch.long)


@torch.no_grad()
def _features(network: Network, x: Inputs, rows: Tensor) -> Tensor:
    device = network.encoder.mean.device
    parts = [rows[i : i + AT_A_TIME] for i in range(0, len(rows), AT_A_TIME)]
    features = [network.encoder(x[part].to(device)).float().cpu() for part in parts]
    return torch.cat(features).flatten(1)
