"""Joint training: keep everything, begin anew each time. The usual reference."""

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
    """Joint training on the data of all tasks so far: what is possible without forgetting.

    Keeps all data of all tasks, in the model and in its file, and with each task
    trains a new network on all of it: a reference to compare with, not a way to learn in parts.

    It takes no exemplars. ``first_epochs`` and ``first_learning_rate`` are for every task, as each
    begins anew. Each task begins with ``weights``, or those of a pre-trained backbone:
    the model and its file hold them, too.

    Attributes
    ----------
    start_ : dict of Tensor
        Pre-trained weights of the backbone, with which each task begins; empty without.
    """

    keeps_data = True
    _begins_anew = True
    saved_tensors: ClassVar[tuple[str, ...]] = ("start_",)
    # The backbone begins anew with each task: there is none to freeze later.
    freeze = parameter(default=False, constraint=one_of(True, False), choices=(False, True))

    def init_network(self, frozen: Network | None, x: Inputs) -> Network:
        """Return a network that knows nothing, with room for the classes before this task."""
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
        """Return a fresh encoder, with the weights that the first one had, if any."""
        encoder, width = super().new_encoder(mean, std, saved)
        kept = getattr(self, "start_", {})
        if self.weights is not None or (is_pretrained(self._backbone) and saved is None):
            kept = {name: tensor.clone() for name, tensor in encoder.backbone.state_dict().items()}
        elif kept:  # a model that was read from a file does not know where the weights were
            encoder.backbone.load_state_dict(kept)
        self.start_: dict[str, Tensor] = kept
        return encoder, width

    def check_saved(self) -> None:
        """Refuse weights to begin with that are not of this backbone."""
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
