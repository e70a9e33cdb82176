"""LMRC+: LMRC with rotations, a softmax within the heads and drift-compensated statistics.

`LMRCPlusClassifier` is a chain of classes, each of which adds one thing to the class above it:

- `lmrc.py`, LMRCClassifier: label vectors, heads, the losses of the paper
- `resolved.py`, Resolved: the parameters of LMRC+, and what "auto" selects
- `class_statistics.py`, WithClassStatistics: statistics of the features, and prediction rules
- `calibrated.py`, Calibrated: probabilities, and a score for images of unknown classes
- `members.py`, WithMembers: ensembles of several networks
- this file: losses, label vectors of rotations, exemplar repeats, adaptation, augmentation
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lmrc.labels.mapping import LabelMapping
from lmrc.methods.members import WithMembers
from lmrc.methods.objectives import softmax_losses
from lmrc.methods.rng import ADAPTATION, LABELS
from lmrc.nets.network import Encoder, Network
from lmrc.nets.side_by_side import SideBySide
from lmrc.training.augment import flips
from lmrc.training.batches import MiniBatch
from lmrc.training.checkpoint import Adaptation
from lmrc.training.loop import EpochRecord, TrainingError
from lmrc.training.memory import Memory
from lmrc.training.step import Losses

# Mini-batches of a task from which CutMix is used. On held-out images of CIFAR-100 it lost 3.2
# points in 240 mini-batches, 0.2 in 1,100 and 1.6 in 1,800 (a first task of five classes); it
# gained 2.2 in 2,100.
CUTMIX_FROM = 2000


# How a pre-trained backbone is adapted to the first task: as LMRC+ learns one, at a low rate. Its
# weights are then averaged with the pre-trained ones, as in Wortsman et al., "Robust fine-tuning of
# zero-shot models", CVPR 2022. Chosen on held-out images of CIFAR-100: results/search/pretrained.
ADAPTED_BY = {"freeze": False, "objective": "both", "statistics": "none", "predict_with": "wta"}
ADAPTED_BY |= {"memory_per_class": 0, "memory_total": 0, "calibration_share": 0.0}
ADAPTED_BY |= {"learning_rate": 0.01, "first_learning_rate": None, "first_epochs": None}
ADAPTED_BATCH = 64
# On a CPU, where an image of 224 pixels takes 85 MB for each of four rotations. The rate is as much
# lower as mini-batches are smaller (Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet
# in 1 Hour", 2017).
ADAPTED_ON_CPU = 8
ADAPTED_SHARE = 0.7  # of the adapted weights


class LMRCPlusClassifier(WithMembers):
    """LMRC+: forgets far less than LMRC, and is exemplar-free, too.

    It adds to LMRC, each with a parameter that turns it off: a label vector for each class and
    rotation of its images (``rotations``), a softmax over the label vectors of a head
    (``objective``), and prediction from class statistics of the features. These are compensated for
    feature drift (``statistics``, ``join_rotations``, ``predict_with``) with the help of earlier
    encoders (``keep_encoders``). The learning rate follows a cosine, the first task has more
    epochs, and augmentation of colour images is stronger (``strong_augment``). With all of it off,
    it is LMRC.

    With exemplars (``memory_per_class``), each is used three times per epoch, a logit-adjusted
    softmax spans all heads (not with ``objective="cosine"``), and the classifiers are also
    fine-tuned on features of the exemplars.

    Rotations are for square images. Where classes change when they are rotated, as a 6 becomes a 9,
    try it with and without them. For tables, and other inputs without rotations, try
    ``objective="cosine"``, too: there a softmax within the heads lowers task-ID accuracy.
    All four rotations take four times the computation; on a small machine, ``rotations="one"``
    trains as fast as without.

    Attributes
    ----------
    label_vectors_ : array of shape (n_classes, 4, label_dim) or (n_classes, label_dim)
        With ``rotations`` one for each; each head has a mapping of its own then.
    threshold_ : float
        The highest threshold of any mapping.
    statistics_, classifiers_ : dict of Tensor
        Class statistics of the features, and weights of the prediction rules.
    earlier_ : dict of Tensor
        Encoders of earlier tasks, for drift compensation and for snapshots.
    snapshots_ : dict of Tensor
        With ``predict_with="snapshots"``: class statistics on the features of these encoders, and
        classifiers.
    left_out_ : tuple of two arrays
        Leave-one-out: the labels of images of the last task, at most 100 of a class, and what the
        model without the image predicts. Empty if statistics are not exact. Not saved.
    members_ : list of LMRCPlusClassifier
        With ``members``: each network by itself. All other attributes are the first's.
    history_ : list of dict
        As in LMRC; with CutMix also ``cutmix``, the share of mini-batches that had it.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from lmrc import LMRCPlusClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> clf = LMRCPlusClassifier(
    ...     objective="cosine", predict_with="lda", epochs=10, random_state=0
    ... )
    >>> for first in (0, 2):
    ...     now = (y == first) | (y == first + 1)
    ...     clf = clf.partial_fit(X[now], y[now])
    >>> clf.score(X[y < 4], y[y < 4]) > 0.9
    True
    """

    def _class_losses(self, old: Tensor, new: Tensor, batch: MiniBatch) -> Losses:
        """Return the terms of LMRC (Eqs. 1, 9), those of the softmax, or their sums."""
        if self.objective == "cosine":
            return super()._class_losses(old, new, batch)
        softmax = softmax_losses(
            old,
            new,
            batch,
            self.labels_["vectors"].flatten(0, -2),
            self._head_sizes,
            self.scale,
            with_exemplars=any(self._with_exemplars(old.shape[1])),
        )
        if self.objective == "softmax":
            return softmax
        cosine = super()._class_losses(old, new, batch)
        both = {name: cosine[name] + softmax[name] for name in softmax if name in cosine}
        return {**cosine, **softmax, **both}

    def _new_label_vectors(self, n_new: int) -> Tensor:
        """Return a label vector for each new class and rotation, far apart within the head.

        Each head has a mapping of its own: four vectors per class would not fit into one for all
        classes, and a head's response is compared with the head's own label vectors only.
        """
        if self._n_rotations == 1:
            return super()._new_label_vectors(n_new)
        mapping = LabelMapping(self.label_dim, self.threshold, self.max_tries, self._seed(LABELS))
        vectors = mapping.extend(self._n_rotations * n_new, on_full=self.on_full)
        self.threshold_ = max(mapping.threshold, getattr(self, "threshold_", self.threshold))
        return torch.from_numpy(vectors).view(n_new, self._n_rotations, self.label_dim)

    def _label_vectors_shape(self) -> tuple[int, ...]:
        rotations = () if self._n_rotations == 1 else (self._n_rotations,)
        return (len(self.classes_), *rotations, self.label_dim)

    def _train(
        self, network: Network, before: Network | None, samples: Memory, n_known: int
    ) -> Iterator[EpochRecord]:
        samples, _ = self._hold_out(samples)
        if self.memory_:
            _, exemplars = samples.split(len(samples) - len(self.memory_))
            for _ in range(self.exemplar_repeats - 1):
                samples = exemplars.joined(samples.x, samples.y)
        return super()._train(network, before, samples, n_known)

    def new_encoder(self, *args: Any) -> tuple[Encoder, int]:
        """Return a fresh encoder; if it will be adapted, with the pre-trained backbone twice."""
        encoder, width = super().new_encoder(*args)
        if self._adapts and self.adaptation_epochs:
            encoder.backbone = SideBySide(copy.deepcopy(encoder.backbone), encoder.backbone)
            width *= 2
        return encoder, width

    def _adapt(self, encoder: Encoder, X: Any, y: Any) -> None:
        """Adapt a pre-trained backbone to the first task, before it is frozen.

        Rotations as classes of their own make the features richer than the few classes of one task
        would. The features of the pre-trained weights, beside them, serve later classes
        (Zhou et al., "Revisiting Class-Incremental Learning with Pre-Trained Models", IJCV 2024).
        """
        if not isinstance(encoder.backbone, SideBySide):
            return
        learner = type(self)(**{**self.get_params(deep=False), **ADAPTED_BY})
        most = batch = max(2, min(self.batch_size, ADAPTED_BATCH, len(y)))
        if self.execution_.device.type == "cpu":
            batch = min(most, ADAPTED_ON_CPU)
        learner.set_params(
            backbone=self._backbone,
            epochs=self.adaptation_epochs,
            batch_size=batch,
            learning_rate=learner.learning_rate * batch / most,
            random_state=self._seed(ADAPTATION) % 2**31,
        )
        learner.checkpoint = Adaptation(self.checkpoint, self.adaptation_epochs)
        try:
            adapted = learner.fit(X, y).network_.encoder.backbone.state_dict()
        except TrainingError as error:  # its advice, a lower rate, does not apply here
            raise TrainingError(
                "adapting the backbone to the first task diverged: set freeze=True, which keeps it "
                "as it is"
            ) from error
        with torch.no_grad():
            for name, tensor in encoder.backbone.adapted.state_dict().items():
                if tensor.is_floating_point():
                    tensor.lerp_(adapted[name].to(tensor.device), ADAPTED_SHARE)

    @property
    def augmentation_(self) -> str:
        """The augmentation that ``augment`` selected for the last task."""
        history = getattr(self, "history_", [])
        return self._stronger(bool(history) and "cutmix" in history[-1])

    def _augmentation_of(self, n_samples: int) -> str:
        return self._stronger(self._epochs * n_samples >= CUTMIX_FROM * self.batch_size)

    def _stronger(self, cutmix: bool) -> str:
        augment = super().augmentation_
        if not self.strong_augment or self.augment != "auto" or not flips(augment):
            return augment
        return "cutmix" if cutmix else "jitter+cutout"
