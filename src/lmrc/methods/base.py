"""The contract of every method, and how a task is learnt.

A method is a subclass that defines four things: its head (`make_head`), how the head grows for new
classes (`expand`), what it minimises (`losses`) and how it scores (`scores`). `_learn` runs a task.
Exemplars are in `exemplars.py`, prediction in `prediction.py`, models on disk in `persistence.py`.
"""

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from lmrc.data.inputs import Inputs, channel_statistics
from lmrc.data.validation import encode_labels
from lmrc.methods.declared import TrainingParameters
from lmrc.methods.exemplars import Exemplars
from lmrc.methods.parameters import fixed
from lmrc.methods.persistence import save
from lmrc.methods.prediction import Prediction
from lmrc.methods.reading import read_task
from lmrc.methods.rng import EPOCH, NETWORK, STATISTICS, derived_seed, seed_from
from lmrc.methods.state import exemplars_in_force, refuse_diverged
from lmrc.nets.loading import is_pretrained
from lmrc.nets.network import Encoder, Frozen, Network, build_encoder, on_device
from lmrc.nets.pretrained import load_encoder
from lmrc.training.augment import pick_augmentation
from lmrc.training.batches import Batches, MiniBatch
from lmrc.training.checkpoint import NO_CHECKPOINT, Checkpoint
from lmrc.training.class_weight import class_weights
from lmrc.training.device import (
    Execution,
    default_dtype_guard,
    deterministic_algorithms,
    use_bf16,
)
from lmrc.training.features import extract, on_features
from lmrc.training.loop import EpochRecord, Optimisation, train
from lmrc.training.memory import Memory
from lmrc.training.objective import Objective
from lmrc.training.progress import Progress
from lmrc.training.ranks import current
from lmrc.training.rotations import copies
from lmrc.training.step import Losses


class Fitted:
    """Fitted attributes and flags of a method.

    They have a class of their own because type checkers take every annotation in a class of
    parameters for a parameter.
    """

    classes_: NDArray[Any]
    network_: Network
    memory_: Memory | None = None
    heads_: list[NDArray[Any]]
    input_shape_: tuple[int, ...]
    history_: list[dict[str, float]]
    n_tasks_: int = 0
    execution_: Execution
    seed_: int

    #: Where an interrupted task is resumed from; set on an estimator before it learns.
    checkpoint: Checkpoint = NO_CHECKPOINT
    #: Which rotations of images are learnt; a parameter of LMRC+.
    rotations: Any = "none"

    #: Whether `losses` reads ``old_outputs``; if not, the old network does not run.
    needs_old_outputs: bool = True
    #: Whether `losses` reads ``batch.features`` and ``batch.old_features``.
    needs_features: bool = False
    #: Whether a model stores all training data, whatever ``memory_per_class`` says.
    keeps_data: ClassVar[bool] = False
    #: Fitted attributes that are saved as plain values; a method adds its own.
    saved_values: ClassVar[tuple[str, ...]] = ("input_shape_", "n_tasks_", "seed_", "history_")
    #: Fitted attributes that are saved as dicts of tensors, each in a file of its own.
    saved_tensors: ClassVar[tuple[str, ...]] = ()


class IncrementalClassifier(TrainingParameters, Fitted, Exemplars, Prediction, BaseEstimator, ABC):
    """A classifier that learns new classes as they come. Base class of the methods.

    Attributes
    ----------
    classes_ : array
        Class labels in order of arrival, sorted within a task.
    heads_ : list of arrays
        The classes of each task that brought new ones.
    input_shape_ : tuple of int
        (features,) or (channels, height, width).
    history_ : list of dict
        Task, epoch, learning rate and loss terms as minimised, one entry per epoch.
    network_ : nn.Module
        The trained network, in evaluation mode. Takes raw inputs.
    memory_ : Memory or None
        The exemplars; None where there are none.
    n_tasks_ : int
        Number of tasks learnt.
    execution_ : Execution
        Device, precision and mode of the last training.
    seed_ : int
        The seed from ``random_state``; with the task and the epoch it fixes all random numbers.
    """

    # --- What a method defines -------------------------------------------------------------------

    @abstractmethod
    def make_head(self, width: int, n_heads: int = 0, n_classes: int = 0) -> nn.Module:
        """Return the head for ``width`` features, with room for what has been learnt so far."""

    @abstractmethod
    def expand(self, network: Network, n_new: int) -> None:
        """Make room in the network for ``n_new`` classes. It is a copy: change it in place."""

    @abstractmethod
    def losses(self, outputs: Any, old_outputs: Any, batch: MiniBatch) -> Losses:
        """Return the terms to minimise, by name: per sample (n,), or a scalar.

        Parameters
        ----------
        outputs : Tensor, or what else the head returns
            What the network in training makes of ``batch.x``.
        old_outputs : the same, or None
            What the network as it was before this task makes of it, in evaluation mode and without
            gradients; None at the first task, and where ``needs_old_outputs`` is False.
        batch : MiniBatch
            ``batch.targets`` are soft with CutMix.
        """

    @abstractmethod
    def scores(self, network: Network, x: Tensor) -> Tensor:
        """Return one score per class, (n, n_classes): the highest wins."""

    # --- What a method may define ----------------------------------------------------------------

    def penalty(self, network: Network, old_network: Network) -> Losses:
        """Return terms of the weights alone, as scalars; not called at the first task."""
        return {}

    def init_network(self, frozen: Network | None, x: Inputs) -> Network:
        """Return the network to train: a copy of the frozen one, or at first a new one for x."""
        if frozen is not None:
            return copy.deepcopy(frozen)
        # Statistics take a pass over all inputs, which a pre-trained backbone does not need.
        own = is_pretrained(self._backbone)
        encoder, width = self.new_encoder(*((None, None) if own else channel_statistics(x)))
        return Network(encoder, self.make_head(width))

    def new_encoder(
        self, mean: Tensor | None, std: Tensor | None, saved: dict[str, Any] | None = None
    ) -> tuple[Encoder, int]:
        """Return a fresh encoder for the inputs' shape and statistics, and its width.

        A pre-trained backbone loads its weights, unless `saved` describes one from a model file.
        """
        encoder, width = build_encoder(self._backbone, self.input_shape_, mean, std, saved)
        if self.weights is not None:
            load_encoder(encoder, self.weights)
        return encoder, width

    def after_task(self, network: Network, samples: Memory) -> None:
        """Store what the next task needs from the samples just learnt, such as statistics.

        ``network_`` is still the network before this task. With ``freeze=True`` the samples are
        features, and ``network`` takes features as inputs.
        """

    def check_saved(self) -> None:
        """Raise a ValueError for saved tensors that do not fit; called when a model is loaded."""

    # --- Learning --------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Forget everything, then learn a first task.

        Parameters
        ----------
        X, y
            As in `partial_fit`.
        """
        draft = copy.copy(self)
        for name in [name for name in vars(draft) if name.endswith("_")]:
            delattr(draft, name)
        return self._commit(draft, X, y, None)

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> Self:
        """Learn a task: new classes, known ones, or both.

        If it fails or is interrupted, the estimator is as it was before the call.

        Parameters
        ----------
        X : array, tensor or torch Dataset
            Vectors (n, features); images as arrays (n, height, width[, channels]), uint8 0…255 or
            float 0…1, or as tensors (n, channels, height, width); or a ``Dataset`` of such items.
        y : array of shape (n,)
            Labels, ints or strings. May be left out where X is a ``Dataset`` of pairs.
        classes : array, optional
            All labels that may occur. Only validates.
        """
        return self._commit(copy.copy(self), X, y, classes)

    def _commit(self, draft: Self, X: Any, y: Any, classes: Any) -> Self:
        """Let a copy learn, and become that copy if it succeeds: all of it, or nothing."""
        # Where the caller is in inference mode, there are no gradients.
        with (
            torch.inference_mode(False),
            default_dtype_guard(),
            deterministic_algorithms(draft.deterministic),
        ):
            draft._learn(X, y, classes)
            refuse_diverged(draft)
        self.__dict__ = draft.__dict__
        return self

    def _learn(self, X: Any, y: Any, classes: Any) -> None:
        """Learn a task (on a draft: attributes are replaced, never changed in place)."""
        self._check_parameters()
        ranks = current()
        first = not hasattr(self, "classes_")
        x, y = read_task(self, X, y, first)
        if first:  # the inputs' shape may decide "auto" parameters
            self._check_parameters()
        size = x.shape[1:].numel() * (len(x) + len(self.memory_ or ()))
        work = 0 if self._on_features else self._epochs * copies(self._rotations) * size
        self.execution_ = Execution.pick(self.device, self.precision, self.compile, work)
        device = self.execution_.device
        if first:
            self.classes_, self.heads_, self.history_ = y[:0], [], []
            self.seed_ = ranks.broadcast(lambda: seed_from(self.random_state))
        self.memory_, n_known = exemplars_in_force(self), len(self.classes_)
        new, targets = encode_labels(y, self.classes_, classes)
        if len(new):
            self.classes_ = np.concatenate([self.classes_, new])
            self.heads_ = [*self.heads_, new]
        self._check_budget()

        # The present network is the frozen copy; a new one is trained.
        frozen = None if first else on_device(device, self.network_)
        with self._seeded(NETWORK):
            network = self.init_network(frozen, x).to(device)
            if device.type == "cuda":  # convolutions run faster there with channels last
                network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            if len(new):
                self.expand(network, len(new))
        if first:
            self._adapt(network.encoder, X, y)
        network.encoder.freeze(self._freezes)

        samples = (self.memory_ or Memory.empty(x)).joined(x, targets)
        progress = Progress(f"task {self.n_tasks_ + 1}", self.verbose * ranks.is_first)
        trained, before = network, frozen
        if self._on_features:
            with progress.counted("features", len(samples), self.checkpoint.on_features) as report:
                samples = self._as_features(network.eval().encoder, samples, report)
            trained = on_features(network, self._feature_layers)
            before = frozen and on_features(frozen, self._feature_layers)
        records = self._train(trained, before, samples, n_known)
        for record in progress.epochs(records, self._epochs) if self._epochs else records:
            self.history_ = [*self.history_, {"task": self.n_tasks_, **record}]
        with progress.of("statistics"), self._seeded(STATISTICS):
            self.after_task(trained.eval(), samples)
        self.network_ = network.eval()
        self._remember(x, targets)
        self.shape_settings_ = {name: getattr(self, name) for name in fixed(type(self))}
        self.n_tasks_ += 1

    def _adapt(self, encoder: Encoder, X: Any, y: Any) -> None:
        """Adapt a pre-trained backbone to the first task, before it is frozen (LMRC+)."""

    def _as_features(
        self, encoder: Encoder, samples: Memory, report: Callable[[int], None] = lambda done: None
    ) -> Memory:
        """Return the samples with their features as inputs."""
        bf16 = use_bf16(self.precision, encoder.mean.device)
        layers = self._feature_layers
        x = extract(encoder, samples.x, layers, flip=self._flips, bf16=bf16, report=report)
        return Memory(x, samples.y)

    def _train(
        self, network: Network, before: Network | None, samples: Memory, n_known: int
    ) -> Iterator[EpochRecord]:
        execution = self.execution_
        frozen = None if before is None else Frozen(before, execution.bf16)
        if len(samples) == 1:  # batch normalisation needs two values of a feature
            samples = samples.at(torch.zeros(2, dtype=torch.int64))
        batches = Batches(
            samples.x,
            samples.y,
            n_known=n_known,
            batch_size=self.batch_size,
            augment="none" if self._on_features else self._augmentation_of(len(samples)),
            device=execution.device,
            rotations=self._rotations,
            ranks=current(),
        )
        weights = None
        if self.class_weight is not None:
            weights = class_weights(self.class_weight, batches.y, self.classes_.tolist())
        objective = Objective(self, network, frozen, weights)
        yield from train(
            network,
            objective,
            batches,
            Optimisation(
                self._epochs,
                float(self._for_next_task("learning_rate")),
                [np.asarray(at).item() for at in self.halve_at],  # of NumPy's numbers, too
                float(self.momentum),
                float(self.weight_decay),
                self.schedule,
            ),
            seed=lambda epoch: self._seed(EPOCH, epoch),
            execution=execution,
            old=frozen,
            prepare=objective.prepare,
            checkpoint=self.checkpoint,
        )

    # --- Parameters as they apply to the inputs and the next task: LMRC+ resolves "auto" ----------

    @property
    def _backbone(self) -> Any:
        return self.backbone

    @property
    def _freeze(self) -> Any:
        return self.freeze

    @property
    def _rotations(self) -> str:
        return str(self.rotations)

    @property
    def _adapts(self) -> bool:  # whether a pre-trained backbone is adapted to the first task
        return False

    @property
    def _feature_layers(self) -> int:  # number of last layers whose features are learnt from
        return 1

    @property
    def _flips(self) -> bool:  # whether prediction uses flipped images, too
        return False

    @property
    def _on_features(self) -> bool:
        """Whether tasks are learnt on features of a frozen backbone: not with rotations."""
        return (self._freeze is True or self._adapts) and self._rotations == "none"

    @property
    def _epochs(self) -> int:
        """Epochs of the next task: the first may have its own number."""
        return int(self._for_next_task("epochs"))

    @property
    def _freezes(self) -> bool:
        """Whether the next task leaves the backbone unchanged."""
        later = self._freeze == "later" and not self._adapts
        return self.n_tasks_ > 0 if later else bool(self._freeze)

    @property
    def _begins_anew(self) -> bool:
        """Whether the next task trains a network from its initial weights."""
        return self.n_tasks_ == 0

    def _for_next_task(self, name: str) -> Any:
        """Return a parameter's value for the next task: the first may have its own."""
        own = getattr(self, f"first_{name}") if self._begins_anew else None
        return getattr(self, name) if own is None else own

    @property
    def augmentation_(self) -> str:
        """The augmentation that ``augment`` selects for these inputs."""
        augment = pick_augmentation(self.input_shape_) if self.augment == "auto" else self.augment
        if augment != "none" and len(self.input_shape_) == 1:
            raise ValueError(f"augment={augment!r} is for images, and X is vectors: use 'none'")
        return augment

    def _augmentation_of(self, n_samples: int) -> str:  # for LMRC+ it depends on them
        return self.augmentation_

    # --- Random numbers: from (random_state, task, purpose, epoch) alone --------------------------

    def _seed(self, *purpose: int) -> int:
        return derived_seed(self.seed_, self.n_tasks_, *purpose)

    @contextmanager
    def _seeded(self, purpose: int) -> Iterator[None]:
        """Seed torch's global RNG for this task; the user's state comes back afterwards."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._seed(purpose))
            yield

    # --- Checks ----------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        super()._check_parameters()
        name = type(self).__name__
        if self.deterministic and self.compile is True:
            raise ValueError(
                f"{name}: compile=True does not go with deterministic=True, as compiled code is "
                "picked by its speed, which differs from time to time: set it to 'auto'"
            )
        if self.memory_per_class and self.memory_total:
            raise ValueError(
                f"{name}: memory_per_class={self.memory_per_class} and "
                f"memory_total={self.memory_total} contradict each other: set one of them to 0"
            )
        self._check_shape()

    def _check_shape(self) -> None:
        """Refuse changes of parameters that the first task fixes."""
        name = type(self).__name__
        for key, value in getattr(self, "shape_settings_", {}).items():
            if getattr(self, key) is not value and getattr(self, key) != value:
                raise ValueError(
                    f"{name}: {key} was {value!r} at the first task and is now "
                    f"{getattr(self, key)!r}, but it shapes the network: set it back, or call fit "
                    "to begin anew"
                )

    def _refuse_exemplars(self, reason: str) -> None:
        for key in ("memory_per_class", "memory_total"):
            if value := getattr(self, key):
                raise ValueError(
                    f"{type(self).__name__}: {key}={value} has no use here, as {reason}: set it to "
                    "0"
                )

    # --- On disk ---------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a folder, for `lmrc.load`, in place of one that was there, at once.

        It refuses to overwrite a folder that another program has changed since this model was
        loaded from it. Earlier versions, which ``lmrc learn --keep`` keeps, are deleted.

        Weights go into safetensors files, all else into JSON; nothing is pickled. Exemplars beyond
        the present ``memory_per_class`` are not saved.
        """
        check_is_fitted(self)
        self._check_parameters()  # a file that cannot be loaded again would be of no use
        save(self, path)
