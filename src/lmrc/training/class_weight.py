"""Weights of classes in the loss."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_MAX_NAMED = 5  # labels in a message


def class_weights(class_weight: Mapping[Any, float] | str, y: Tensor, labels: list[Any]) -> Tensor:
    """Return a weight for each class index.

    Only their ratios matter: weights are scaled to a mean of 1 over the samples, which keeps the
    meaning of learning rates. "balanced" gives all classes of the task the same total weight. A
    mapping names the weights of labels, of later classes as well; others have weight 1. `y` are the
    class indices of all samples of the task, `labels` the label of each index.

    Raises `ValueError` if a label is text where classes are numbers, or the reverse, or if none of
    the labels is a class: the weights would be ignored.

    >>> y = torch.tensor([0, 0, 0, 2])
    >>> class_weights("balanced", y, ["ant", "bee", "cat"])
    tensor([0.6667, 2.0000, 2.0000])
    >>> class_weights({"cat": 5}, y, ["ant", "bee", "cat"])
    tensor([0.5000, 0.5000, 2.5000])
    """
    if isinstance(class_weight, Mapping):
        _check(class_weight, labels)
        weights = torch.tensor([float(class_weight.get(label, 1)) for label in labels])
    else:
        weights = 1 / torch.bincount(y.cpu(), minlength=len(labels)).clamp(min=1)
    weights = weights.to(y.device)
    return weights / weights[y].mean()


def _check(class_weight: Mapping[Any, float], labels: list[Any]) -> None:
    known = f"the classes are {', '.join(map(repr, labels[:_MAX_NAMED]))}"
    known += f" and {len(labels) - _MAX_NAMED} more" if len(labels) > _MAX_NAMED else ""
    text = isinstance(labels[0], str)
    for label in class_weight:
        if isinstance(label, str) != text:
            raise ValueError(
                f"class_weight names {label!r}, but {known}: write it as "
                f"{'text' if text else 'a number, without quotes'}"
            )
    if class_weight and not any(label in class_weight for label in labels):
        named = ", ".join(map(repr, list(class_weight)[:_MAX_NAMED]))
        raise ValueError(
            f"class_weight names none of the classes learnt so far or in this task: it names "
            f"{named}, and {known}. If those come later, set it then, or also name a class that is "
            f"there: {labels[0]!r}: 1"
        )
