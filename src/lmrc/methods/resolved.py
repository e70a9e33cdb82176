"""Parameters of LMRC+: values that "auto" selects, and combinations that are refused."""

from typing import Any

from torch import nn

from lmrc.methods.declared import LMRCPlusParameters
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.nets.auto import HOMOGENEOUS, OF_VECTORS, pick_frozen
from lmrc.nets.loading import is_pretrained
from lmrc.statistics.prediction_rules import EXACT
from lmrc.training.augment import flips
from lmrc.training.rotations import N_ROTATIONS, is_square


class Resolved(LMRCPlusParameters, LMRCClassifier):
    """LMRC with the parameters of LMRC+, resolved by its inputs and tasks."""

    @property
    def _rotations(self) -> str:
        """``rotations``; "auto" is "all" for square images if the backbone learns.

        The first task decides, as it gives the label vectors their shape.
        """
        if self.rotations != "auto":
            return str(self.rotations)
        if hasattr(self, "labels_"):
            return "all" if self.labels_["vectors"].ndim == 3 else "none"
        learns = self._freeze is not True and not self._adapts
        return "all" if is_square(self.input_shape_) and learns else "none"

    @property
    def _backbone(self) -> Any:
        """``backbone``; for photographs and vectors, "auto" selects one that needs no training.

        But it stays "auto" if the backbone is to learn, from scratch or from other weights, and for
        vectors if heads predict.
        """
        if not isinstance(self.backbone, str) or self.backbone != "auto":
            return self.backbone
        if "network_" in vars(self):  # in models of an earlier lmrc the backbone learns
            encoder = self.network_.encoder
            frozen = encoder.saved is not None or isinstance(encoder.backbone, nn.Flatten)
        else:
            given = self.weights is not None or self.freeze is False
            frozen = not given and self.rotations in ("auto", "none")
        found = pick_frozen(getattr(self, "input_shape_", (1, 0, 0))) if frozen else None
        by_statistics = self.predict_with in ("auto", *EXACT)
        learns = found == HOMOGENEOUS and (self.freeze == "later" or not by_statistics)
        return "auto" if found is None or learns else found

    @property
    def _freeze(self) -> Any:
        """``freeze``; "auto" is True for a backbone that needs no training."""
        if self.freeze == "auto":
            return self._backbone in OF_VECTORS or is_pretrained(self._backbone)
        return self.freeze

    @property
    def _adapts(self) -> bool:
        return self._freeze == "later" and is_pretrained(self._backbone)

    @property
    def _feature_layers(self) -> int:
        return int(self.feature_layers)

    @property
    def _n_rotations(self) -> int:
        return 1 if self._rotations == "none" else N_ROTATIONS

    @property
    def _flips(self) -> bool:  # only where flipped images are learnt, too
        return self.test_time_flip and flips(self.augmentation_)

    @property
    def _forward_passes(self) -> int:  # of each image
        return self._n_rotations * (1 + self._flips)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.predict_with not in ("auto", "wta") and self.statistics == "none":
            raise ValueError(
                f"{type(self).__name__}: predict_with={self.predict_with!r} needs class "
                "statistics, and statistics='none' keeps none: set it to 'low-rank', say"
            )
        if self.predict_with == "snapshots" and (self._freeze or not self.keep_encoders):
            raise ValueError(
                f"{type(self).__name__}: predict_with='snapshots' needs networks of earlier tasks: "
                "a backbone that learns (freeze=False), and keep_encoders=True"
            )
        fixed = self._freeze is True or self._adapts
        if self._backbone == "auto" and not hasattr(self, "input_shape_"):
            fixed = self.freeze is not False  # by the inputs' shape, which is yet to come
        fixed = fixed and self.rotations in ("auto", "none") and bool(getattr(self, "scatter_", 1))
        if self.predict_with == "ridge" and not fixed:
            raise ValueError(
                f"{type(self).__name__}: predict_with='ridge' needs a backbone that is frozen from "
                "the first task on, without rotations: set freeze=True and begin anew, or set it "
                "to 'auto'"
            )
