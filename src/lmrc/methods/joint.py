"""Joint training on all data so far, from scratch for each task: the usual reference."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from lmrc.data.inputs import Inputs
from lmrc.methods.finetune import FineTuneClassifier
from lmrc.methods.parameters import one_of, parameter
from lmrc.nets.loading import is_pretrained
from lmrc.nets.network import Encoder, Network
from lmrc.training.memory import Memory


class JointClassifier(FineTuneClassifier):
    """Joint training on the data of all tasks so far: a reference for incremental methods.

    It stores the data of all tasks, in the model and in its file, and trains a new network on all
    of it for each task.

    It takes no exemplars. ``first_epochs`` and ``first_learning_rate`` apply to every task, as each
    one starts from scratch, or from ``weights`` or a pre-trained backbone. The model and its file
    also hold these initial weights.

    Attributes
    ----------
    start_ : dict of Tensor
        Pre-trained weights of the backbone, from which each task starts; empty without.
    """

    keeps_data = True
    _begins_anew = True
    saved_tensors: ClassVar[tuple[str, ...]] = ("start_",)
    # The backbone starts from scratch in each task: it cannot be frozen later.
    freeze = parameter(default=False, constraint=one_of(True, False), choices=(False, True))

    def init_network(self, frozen: Network | None, x: Inputs) -> Network:
        """Return an untrained network with room for the classes before this task."""
        if not isinstance(x, Tensor):
            raise ValueError(
                f"joint training keeps all samples in memory, and these {len(x):,} images do not "
                "fit: take fewer or smaller ones, or another method"
            )
        if frozen is None:
            return super().init_network(frozen, x)
        old = frozen.encoder
        encoder, width = self.new_encoder(old.mean.cpu(), old.std.cpu(), old.saved)
        network = Network(encoder, self.make_head(width))
        self.expand(network, len(frozen.head.weight))
        return network

    def new_encoder(
        self, mean: Tensor | None, std: Tensor | None, saved: dict[str, Any] | None = None
    ) -> tuple[Encoder, int]:
        """Return a fresh encoder, with the initial weights of the first one, if any."""
        encoder, width = super().new_encoder(mean, std, saved)
        kept = getattr(self, "start_", {})
        if self.weights is not None or (is_pretrained(self._backbone) and saved is None):
            kept = {name: tensor.clone() for name, tensor in encoder.backbone.state_dict().items()}
        elif kept:  # a loaded model has the weights, but not their path
            encoder.backbone.load_state_dict(kept)
        self.start_: dict[str, Tensor] = kept
        return encoder, width

    def check_saved(self) -> None:
        """Refuse initial weights that do not fit the backbone."""
        wanted = {name: t.shape for name, t in self.network_.encoder.backbone.state_dict().items()}
        if self.start_ and {name: t.shape for name, t in self.start_.items()} != wanted:
            raise ValueError("the weights to begin with are not of the network's backbone")

    def _remember(self, x: Inputs, targets: Tensor) -> None:
        # The first samples are copied: they may be a view of the user's own array.
        kept = self.memory_
        self.memory_ = kept.joined(x, targets) if kept else Memory(x[:].clone(), targets)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        self._refuse_exemplars("joint training keeps all samples")
