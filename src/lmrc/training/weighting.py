"""Classes that count more or less than their number of samples says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_NAMED = 5  # so many labels does a message give


def class_weights(class_weight: Mapping[Any, float] | str, y: Tensor, labels: list[Any]) -> Tensor:
    """Return a weight for each class index.

    Only their ratios matter: the mean over the samples is 1, so that learning rates mean what they
    mean without.

    Parameters
    ----------
    class_weight : "balanced" or mapping
        "balanced": every class at hand weighs the same in all. Else the weight of a label, 1 where
        it is not named; some labels may be of classes that come later.
    y : Tensor
        Class indices of all samples at hand.
    labels : list
        What the indices stand for, of classes learnt before and at hand.

    Raises
    ------
    ValueError
        If a label is text where classes are numbers, or the other way round, or if none of the
        labels is a class: the weights would be passed over.

    Examples
    --------
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
    known = f"the classes are {', '.join(map(repr, labels[:_NAMED]))}"
    known += f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
    text = isinstance(labels[0], str)
    for label in class_weight:
        if isinstance(label, str) != text:
            raise ValueError(
                f"class_weight names {label!r}, but {known}: write it as "
                f"{'text' if text else 'a number, without quotes'}"
            )
    if class_weight and not any(label in class_weight for label in labels):
        named = ", ".join(map(repr, list(class_weight)[:_NAMED]))
        raise ValueError(
            f"class_weight names none of the classes learnt so far or at hand: it names {named}, "
            f"and {known}. If those are yet to come, set it when they do, or name a class that is "
            f"there, too: {labels[0]!r}: 1"
        )
