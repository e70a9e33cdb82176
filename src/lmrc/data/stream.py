"""A data set as a stream of tasks: which classes come when."""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, SupportsIndex, overload

import numpy as np

from lmrc.data.datasets import Array, Dataset


@dataclass(frozen=True, eq=False, repr=False)  # arrays neither compare nor print usefully
class Task:
    """The samples of the classes that arrive together; an element of a `ClassStream`.

    Attributes
    ----------
    index : int
        Position in the stream, from 0.
    classes : ndarray of shape (n_classes,)
        The labels of the task, in the stream's order; of a blurry one, its major classes.
    X_train, y_train : ndarray
        Training samples and labels, in the data set's order; of a blurry task, those of minor
        classes, too.
    X_test, y_test : ndarray
        Test samples of `classes`.

    Examples
    --------
    >>> from lmrc.data.datasets import digits
    >>> from lmrc.data.stream import ClassStream
    >>> ClassStream(digits(), tasks=5)[-1]
    Task(4: classes [8, 9], 266 training and 88 test samples)
    """

    index: int
    classes: Array
    X_train: Array
    y_train: Array
    X_test: Array
    y_test: Array

    def __repr__(self) -> str:
        return (
            f"Task({self.index}: classes {self.classes.tolist()}, "
            f"{len(self.y_train)} training and {len(self.y_test)} test samples)"
        )


class ClassStream:
    """The classes of a data set, split into tasks that arrive one after another.

    It can be iterated, indexed and sliced; a slice is a stream of its own, counted anew from 0.
    A task's samples are selected on access and not stored: only one task of a memory-mapped data
    set is in memory at a time.

    Parameters
    ----------
    dataset : Dataset, or pair of torch ``Dataset``
        Where the samples come from: `lmrc.Dataset`, or ``(train, test)``, each of (input, label)
        items as `partial_fit` takes them; these are read into memory.
    tasks : int, sequence of int, or sequence of sequences of labels
        The number of tasks (their numbers of classes as equal as possible); or the number of
        classes in each; or the very labels of each. Labels named nowhere are left out of the
        stream. A label named in several tasks recurs: its training samples are split over them,
        in equal shares.
    order : "natural", int or sequence of labels, default="natural"
        The order of the classes: sorted, or ``numpy.random.default_rng(order).permutation`` of
        that, or the labels one by one; those that it does not name are left out. Not for
        `tasks` that name the labels: these are an order already.
    first_classes : int, optional
        How many classes arrive in the first task, where `tasks` is a number; the others are
        shared out equally over the tasks that follow.
    blurry : float, default=0.0
        Share of each class's training samples that come with the other tasks, in equal shares, as
        samples of their minor classes: Blurry-M of Bang et al., "Rainbow Memory", CVPR 2021, with
        M in percent.
    disjoint : float, default=0.0
        Share of the classes, chosen by `seed`, that do not mix: with it the stream is i-Blurry-N-M
        of Koh et al., "Online Continual Learning on Class Incremental Blurry Task Configuration
        with Anytime Inference", ICLR 2022 (arXiv:2110.10031).
    seed : int, default=0
        Decides which samples go to which task, if classes recur or mix.

    Examples
    --------
    >>> from lmrc.data.datasets import digits
    >>> from lmrc.data.stream import ClassStream
    >>> stream = ClassStream(digits(), tasks=[4, 3, 3])
    >>> for task in stream:
    ...     print(task.index, task.classes, task.X_train.shape)
    0 [0 1 2 3] (539, 8, 8)
    1 [4 5 6] (408, 8, 8)
    2 [7 8 9] (400, 8, 8)
    >>> ClassStream(digits(), tasks=5, order=1993).order
    array([4, 0, 5, 9, 3, 6, 8, 2, 7, 1])
    >>> ClassStream(digits(), tasks=4, first_classes=4)
    ClassStream('digits', 4 tasks of 4, 2, 2, 2 classes)
    >>> ClassStream(digits(), tasks=[[0, 1], [2, 3]])
    ClassStream('digits', 2 tasks of 2, 2 classes)
    >>> stream = ClassStream(digits(), tasks=5, blurry=0.1)
    >>> stream[0]
    Task(0: classes [0, 1], 271 training and 91 test samples)
    >>> stream.seen(0)  # of all classes there are some samples
    array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """

    def __init__(
        self,
        dataset: Dataset | tuple[Any, Any],
        tasks: int | Sequence[int] | Sequence[Sequence[Any]],
        order: Literal["natural"] | int | Sequence[Any] = "natural",
        *,
        first_classes: int | None = None,
        blurry: float = 0.0,
        disjoint: float = 0.0,
        seed: int = 0,
    ) -> None:
        if isinstance(dataset, tuple) and len(dataset) == 2:
            dataset = Dataset.from_torch(*dataset)
        if not isinstance(dataset, Dataset):
            raise TypeError(
                "dataset must be a lmrc.Dataset, or a pair (train, test) of torch Datasets, got "
                f"{type(dataset).__name__}"
            )
        self.dataset = dataset
        classes = _ordered(self.dataset.classes, order)
        if first_classes is not None:
            tasks = _sizes(len(classes), tasks, first_classes)
        #: The classes of each task, all classes with training samples in it, and their rows.
        self._tasks = self._present = _split(classes, tasks, order)
        self._rows = assign_samples(self.dataset.y_train, self._tasks, blurry, disjoint, seed)
        if self._rows is not None:
            labels = (np.unique(self.dataset.y_train[rows]) for rows in self._rows)
            self._present = [
                np.concatenate([own, np.setdiff1d(found, own)])
                for own, found in zip(self._tasks, labels, strict=True)
            ]

    @property
    def tasks(self) -> list[Array]:
        """The classes of each task; of a blurry one, its major classes."""
        return list(self._tasks)

    @property
    def order(self) -> Array:
        """All classes of the stream, in the order of their arrival."""
        return self.seen(-1) if self._tasks else self.dataset.classes[:0]

    @property
    def task_of(self) -> Mapping[Any, int]:
        """The index of each class's task: the first that has it, as a major class if blurry."""
        found: dict[Any, int] = {}
        for i, labels in enumerate(self._tasks):
            for label in labels.tolist():
                found.setdefault(label, i)
        return found

    def seen(self, index: SupportsIndex) -> Array:
        """Return the classes that have arrived by the end of task `index`.

        Examples
        --------
        >>> from lmrc.data.datasets import digits
        >>> from lmrc.data.stream import ClassStream
        >>> ClassStream(digits(), tasks=5).seen(1)
        array([0, 1, 2, 3])
        """
        labels = np.concatenate(self._present[: self._position(index) + 1])
        first = np.unique(labels, return_index=True)[1]
        return labels[np.sort(first)]

    def test_up_to(self, index: SupportsIndex) -> tuple[Array, Array]:
        """Return X, y of the test samples of all classes that have arrived by task `index`.

        They come in the data set's order, not task by task.

        Examples
        --------
        >>> from lmrc.data.datasets import digits
        >>> from lmrc.data.stream import ClassStream
        >>> X, y = ClassStream(digits(), tasks=5).test_up_to(1)
        >>> X.shape, sorted(set(y.tolist()))
        ((181, 8, 8), [0, 1, 2, 3])
        """
        return _pick(self.dataset.X_test, self.dataset.y_test, self.seen(index))

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: SupportsIndex) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> ClassStream: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Task | ClassStream:
        if isinstance(index, slice):
            part = copy.copy(self)
            part._tasks, part._present = self._tasks[index], self._present[index]
            part._rows = None if self._rows is None else self._rows[index]
            return part
        position = self._position(index)
        classes = self._tasks[position]
        X, y = self.dataset.X_train, self.dataset.y_train
        rows = np.flatnonzero(np.isin(y, classes)) if self._rows is None else self._rows[position]
        return Task(
            position,
            classes,
            X[rows],
            y[rows],
            *_pick(self.dataset.X_test, self.dataset.y_test, classes),
        )

    def __repr__(self) -> str:
        sizes = ", ".join(str(len(labels)) for labels in self._tasks)
        return f"ClassStream({self.dataset.name!r}, {len(self)} tasks of {sizes} classes)"

    def _position(self, index: SupportsIndex) -> int:
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"task {position} of a stream of {len(self)}.")
        return position % len(self)


def _pick(X: Array, y: Array, classes: Array) -> tuple[Array, Array]:
    chosen = np.flatnonzero(np.isin(y, classes))
    return X[chosen], y[chosen]


def _ordered(classes: Array, order: Any) -> Array:
    if isinstance(order, str) and order == "natural":
        return classes
    if isinstance(order, Integral) and int(order) >= 0:
        return np.random.default_rng(int(order)).permutation(classes)
    if isinstance(order, Sequence | np.ndarray) and not isinstance(order, str) and len(order):
        labels = np.asarray(order).tolist()
        _check_labels("order", classes, labels)
        _check_once("order", labels)
        return np.array(labels, dtype=classes.dtype)
    raise ValueError(
        'order must be "natural", a seed (an int of at least 0) or a sequence of labels, got '
        f"{order!r}."
    )


def _sizes(n_classes: int, tasks: Any, first: int) -> list[int]:
    """Return the number of classes in each task, given that of the first."""
    if not isinstance(tasks, Integral) or tasks < 1:
        raise ValueError(
            f"first_classes={first} goes with a number of tasks, such as 11, got {tasks!r}."
        )
    rest, others = n_classes - first, int(tasks) - 1
    if first < 1 or rest < others or (rest % others if others else rest):
        raise ValueError(
            f"first_classes={first} leaves {rest} of {n_classes} classes to {others} more tasks, "
            "which is not equally many for each: choose other numbers of classes or tasks."
        )
    return [first, *[rest // others] * others] if others else [first]


def _split(classes: Array, tasks: Any, order: Any) -> list[Array]:
    """Cut the ordered classes into tasks, in one of the three ways."""
    if isinstance(tasks, Integral):
        if not 1 <= int(tasks) <= len(classes):
            raise ValueError(
                f"{tasks} tasks of {len(classes)} classes: choose from 1 to "
                f"{len(classes)} (tasks, or --tasks)."
            )
        return np.array_split(classes, int(tasks))
    parts = list(tasks) if isinstance(tasks, Sequence | np.ndarray) else []
    if parts and all(isinstance(part, Integral) for part in parts):
        return _split_by_size(classes, [int(part) for part in parts])
    if parts and all(
        isinstance(part, Sequence | np.ndarray) and not isinstance(part, str) for part in parts
    ):
        if not isinstance(order, str):
            raise ValueError(
                f"tasks names the labels, which is an order already, but order={order!r}; "
                'leave order="natural", or give the number of classes in each task.'
            )
        return _split_by_label(classes, [np.asarray(part).tolist() for part in parts])
    raise ValueError(
        "tasks must be a number of tasks, such as 5, a sequence of their numbers of classes, "
        f"such as [4, 3, 3], or of their labels, such as [[0, 1], [2, 3]]; got {tasks!r}."
    )


def _split_by_size(classes: Array, sizes: list[int]) -> list[Array]:
    if min(sizes) < 1:
        raise ValueError(f"each task needs at least one class, got tasks={sizes}.")
    if sum(sizes) != len(classes):
        raise ValueError(
            f"tasks={sizes} sums to {sum(sizes)}, but the data set has {len(classes)} classes; "
            "to use only some of them, name these in order, or the labels of each task."
        )
    return np.split(classes, np.cumsum(sizes)[:-1])


def _split_by_label(classes: Array, parts: list[list[Any]]) -> list[Array]:
    if not all(parts):
        raise ValueError(f"each task needs at least one class, got tasks={parts}.")
    _check_labels("tasks", classes, [label for part in parts for label in part])
    for part in parts:
        _check_once("a task", part)
    return [np.array(part, dtype=classes.dtype) for part in parts]


def _check_labels(name: str, classes: Array, labels: list[Any]) -> None:
    known = set(classes.tolist())
    if unknown := [label for label in labels if label not in known]:
        raise ValueError(
            f"{name} names {unknown[:5]}, which the data set does not hold; "
            f"its labels are such as {classes[:5].tolist()}."
        )


def _check_once(name: str, labels: list[Any]) -> None:
    if twice := [label for label, n in Counter(labels).items() if n > 1]:
        raise ValueError(f"{name} names {twice[:5]} more than once; name each class once.")


def assign_samples(
    y: Array, tasks: Sequence[Array], blurry: float, disjoint: float, seed: int
) -> list[Array] | None:
    """Return the rows of each task; None if each class is in one task only.

    `y` are the labels of the training samples, `tasks` the classes of each task; a class may be in
    several. The rest is as `lmrc.ClassStream` takes it.

    >>> y = np.repeat([0, 1], 10)
    >>> for rows in assign_samples(y, [np.array([0]), np.array([1])], 0.2, 0.0, seed=0):
    ...     print(np.bincount(y[rows]))
    [8 2]
    [2 8]
    """
    _check_share("blurry", blurry)
    _check_share("disjoint", disjoint)
    if disjoint and not blurry:
        raise ValueError("disjoint has an effect on blurry streams only: set blurry, too")
    classes = np.unique(np.concatenate(tasks))
    if not blurry and len(classes) == sum(map(len, tasks)):
        return None
    rng = np.random.default_rng(seed)
    pure = set(rng.permutation(classes)[: round(disjoint * len(classes))].tolist())
    rows: list[list[Array]] = [[] for _ in tasks]
    for label in classes.tolist():
        own = [i for i, of_task in enumerate(tasks) if (of_task == label).any()]
        others = rng.permutation([i for i in range(len(tasks)) if i not in own])
        samples = rng.permutation(np.flatnonzero(y == label))
        n_minor = 0 if label in pure or not len(others) else round(blurry * len(samples))
        if len(samples) - n_minor < len(own):
            raise ValueError(
                f"class {label!r} has {len(samples)} training samples, too few for {len(own)} "
                f"tasks with blurry={blurry:g}; add some, or choose another stream."
            )
        _distribute(samples[n_minor:], own, rows)
        if n_minor:
            _distribute(samples[:n_minor], others.tolist(), rows)
    return [np.sort(np.concatenate(parts)) for parts in rows]


def _distribute(samples: Array, tasks: list[int], rows: list[list[Array]]) -> None:
    """Split samples over tasks, as equally as possible."""
    for task, part in zip(tasks, np.array_split(samples, len(tasks)), strict=True):
        rows[task].append(part)


def _check_share(name: str, share: float) -> None:
    if not 0 <= share < 1:
        raise ValueError(f"{name} must be a share from 0 to below 1, as 0.1 is, got {share!r}.")
