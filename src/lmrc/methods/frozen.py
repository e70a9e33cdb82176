"""Tasks that are learnt on the features of a frozen backbone."""

from collections.abc import Callable
from typing import Any

from lmrc.nets.network import Encoder
from lmrc.training.device import use_bf16
from lmrc.training.features import extract
from lmrc.training.memory import Memory


class FrozenFeatures:
    """When a classifier learns on features, and of what views of its images."""

    backbone: Any
    freeze: Any
    rotations: Any
    precision: Any

    @property
    def _backbone(self) -> Any:  # what ``backbone`` comes to; "auto" if only the shape decides
        return self.backbone

    @property
    def _freeze(self) -> Any:  # what ``freeze`` comes to
        return self.freeze

    @property
    def _adapts(self) -> bool:  # whether a pre-trained backbone is adapted to the first task
        return False

    def _adapt(self, encoder: Encoder, X: Any, y: Any) -> None:
        """Adapt a pre-trained backbone to the first task, before it is frozen."""

    @property
    def _on_features(self) -> bool:
        """Whether tasks are learnt on features, as the backbone is fixed: not if images rotate."""
        return (self._freeze is True or self._adapts) and self._rotations == "none"

    @property
    def _feature_layers(self) -> int:  # of how many last layers tasks are learnt on features
        return 1

    @property
    def _rotations(self) -> str:  # what ``rotations`` comes to
        return str(self.rotations)

    @property
    def _flips(self) -> bool:  # whether prediction uses flipped images, too
        return False

    def _as_features(
        self, encoder: Encoder, samples: Memory, report: Callable[[int], None] = lambda done: None
    ) -> Memory:
        x = extract(
            encoder,
            samples.x,
            self._feature_layers,
            flip=self._flips,
            bf16=use_bf16(self.precision, encoder.mean.device),
            report=report,
        )
        return Memory(x, samples.y)
