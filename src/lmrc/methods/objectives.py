"""What a head learns: to answer with the label vector of the sample's class.

Beside the Response Loss (Eq. 7), which holds the old heads and is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmrc.nets.multihead import cosines
from lmrc.training.batches import MiniBatch
from lmrc.training.step import Losses

NEVER = -1e4  # a logit whose probability is zero, and whose logarithm is finite


@dataclass(frozen=True)
class Setting:
    """What an objective needs to know beside the responses.

    Attributes
    ----------
    vectors : Tensor of shape (classes · rotations, dim)
        Label vectors.
    n_classes : sequence of int
        Classes of each head.
    with_exemplars : sequence of bool
        Of each head before this task: whether there are exemplars of all its classes.
    scale : float
        What cosines are multiplied with before a softmax.
    """

    vectors: Tensor
    n_classes: Sequence[int]
    with_exemplars: Sequence[bool]
    scale: float


#: Of the responses of the heads before this task, (n, k, dim), and of the new one, (n, 1, dim), or
#: (n, 0, dim) where there is none.
Objective = Callable[[Tensor, Tensor, MiniBatch, Setting], Losses]


def cosine(old: Tensor, new: Tensor, batch: MiniBatch, setting: Setting) -> Losses:
    """Return the New Classes Loss (Eq. 1) and the Review Loss (Eq. 9): negative cosines."""
    targets, vectors = batch.targets, setting.vectors
    c = mixed_vectors(targets, vectors)[:, None]  # (n, 1, dim)
    terms = {}
    if new.shape[1]:
        terms["new"] = -(new * c).sum(dim=(1, 2))  # Eq. 1, in float32 under autocast, too
    # Eq. 9: with exemplars, every head learns every class. Without, the old heads review known
    # classes where they come again, and Eq. 8 leaves them alone with new ones. So it is with a
    # head that has too few exemplars: others' classes alone would drive out its own.
    if old.shape[1] and all(setting.with_exemplars):
        terms["review"] = -(old * c).sum(dim=-1).sum(dim=1)
    elif old.shape[1] and batch.reviews:
        n = batch.n_known * batch.n_rotations
        known = mixed_vectors(targets[:, :n], vectors[:n])[:, None]
        if any(setting.with_exemplars):
            heads = [c if exemplars else known for exemplars in setting.with_exemplars]
            known = torch.cat(heads, dim=1)
        terms["review"] = -(old * known).sum(dim=-1).sum(dim=1)
    return terms


def softmax(old: Tensor, new: Tensor, batch: MiniBatch, setting: Setting) -> Losses:
    """Return the cross-entropy over the label vectors of the head that the class belongs to.

    That softmax never spans two heads, so new classes cannot suppress old ones. Samples of known
    classes, exemplars or come again, teach the old head that they belong to. With exemplars there
    is one across the heads, too: see `balanced`.
    """
    # Where all samples are new, the new head is enough.
    o, first = (torch.cat([old, new], dim=1), 0) if batch.reviews else (new, old.shape[1])
    sizes = [batch.n_rotations * n for n in setting.n_classes]
    skipped = sum(sizes[:first])
    parts = cosines(o, setting.vectors[skipped:], sizes[first:])
    logits = [setting.scale * part for part in parts]
    log_p = torch.cat([part.log_softmax(-1).flatten(1) for part in logits], dim=1)
    targets = batch.targets
    missed = -(targets[:, skipped:] * log_p)
    if not batch.reviews:
        return {"new": missed.sum(dim=1)}
    n = batch.n_known * batch.n_rotations
    terms = {"new": missed[:, n:].sum(dim=1)} if new.shape[1] else {}
    terms["review"] = missed[:, :n].sum(dim=1)
    if any(setting.with_exemplars):
        flat = torch.cat([part.flatten(1) for part in logits], dim=1)
        terms["balanced"] = balanced(flat, batch)
    return terms


def balanced(logits: Tensor, batch: MiniBatch) -> Tensor:
    """Return the logit-adjusted cross-entropy over the label vectors of all heads.

    As in Menon et al., "Long-tail learning via logit adjustment", ICLR 2021: the logarithm of its
    number of samples is added to a class's logits, so that the few exemplars are not outvoted. A
    class without any takes no part.
    """
    prior = batch.counts.log().clamp(min=NEVER)[:, None].expand(-1, batch.n_rotations).flatten()
    return -(batch.targets * (logits + prior).log_softmax(dim=1)).sum(dim=1)


def both(old: Tensor, new: Tensor, batch: MiniBatch, setting: Setting) -> Losses:
    """Return the sum of both."""
    terms = dict(cosine(old, new, batch, setting))
    for name, term in softmax(old, new, batch, setting).items():
        terms[name] = terms[name] + term if name in terms else term
    return terms


def mixed_vectors(targets: Tensor, vectors: Tensor) -> Tensor:
    """Return the label vector of each sample's target: a mean of two with CutMix."""
    with torch.autocast(targets.device.type, enabled=False):
        return targets @ vectors


OBJECTIVES: dict[str, Objective] = {"cosine": cosine, "softmax": softmax, "both": both}
