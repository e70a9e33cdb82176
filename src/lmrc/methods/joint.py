"""Joint training: keep everything, begin anew each time. The upper bound."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from lmrc.data.streamed import Streamed
from lmrc.methods import parameters as legal
from lmrc.methods.finetune import FineTuneClassifier
from lmrc.methods.parameters import Legal
from lmrc.nets.network import Network, Trunk
from lmrc.training.memory import Memory


class JointClassifier(FineTuneClassifier):
    """What could be reached if nothing had to be forgotten.

    Keeps all data of all class batches, in the model and in its file, and with each class batch
    trains a new network on all of it: an upper bound to compare with, not a way to learn in parts.

    Parameters are those of `FineTuneClassifier`; ``memory_per_class`` stays 0. ``weights`` are
    taken up anew with each class batch: the model and its file hold them, too.

    Fitted attributes
    -----------------
    start_ : dict of Tensor
        What ``weights`` made of the backbone, with which each class batch begins; empty without.
    """

    start_: dict[str, Tensor]

    keeps_data = True
    saved_tensors: ClassVar[tuple[str, ...]] = ("start_",)
    # Its backbone begins anew with each class batch: there is none to leave as it is later on.
    legal_values: ClassVar[dict[str, Legal]] = FineTuneClassifier.legal_values | {
        "freeze": legal.one_of(True, False)
    }

    def start(self, frozen: Network | None, x: Tensor) -> Network:
        """Return a network that knows nothing, with room for the classes before this batch."""
        if isinstance(x, Streamed):
            raise ValueError(
                f"joint training keeps all samples in memory, and these {len(x):,} images do not "
                "fit: take fewer or smaller ones, or another method"
            )
        if frozen is None:
            return super().start(frozen, x)
        trunk, width = self.new_trunk(frozen.trunk.mean.cpu(), frozen.trunk.std.cpu())
        network = Network(trunk, self.make_head(width))
        self.grow(network, len(frozen.head.weight))
        return network

    def new_trunk(self, mean: Tensor, std: Tensor) -> tuple[Trunk, int]:
        """Return a fresh trunk, with the weights that the first one had, if any."""
        trunk, width = super().new_trunk(mean, std)
        kept = getattr(self, "start_", {})
        if self.weights is not None:
            kept = {name: tensor.clone() for name, tensor in trunk.backbone.state_dict().items()}
        elif kept:  # a model that was read from a file does not know where the weights were
            trunk.backbone.load_state_dict(kept)
        self.start_ = kept
        return trunk, width

    def check_saved(self) -> None:
        """Refuse weights to begin with that are not of this backbone."""
        wanted = {name: t.shape for name, t in self.network_.trunk.backbone.state_dict().items()}
        if self.start_ and {name: t.shape for name, t in self.start_.items()} != wanted:
            raise ValueError("the weights to begin with are not of the network's backbone")

    def _remember(self, x: Tensor, targets: Tensor) -> None:
        # The first samples are copied: they may be a view of the user's own array.
        kept = self.memory_
        self.memory_ = kept.joined(x, targets) if kept else Memory(x.clone(), targets)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        self._refuse_pool("joint training keeps all samples")
