"""What a head learns: to answer with the label vector of the sample's class.

Beside the Response Loss (Eq. 7), which holds the old heads and is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lmrc.nets.multihead import MultiHead, cosines
from lmrc.training.batches import MiniBatch
from lmrc.training.step import Losses


@dataclass(frozen=True)
class Setting:
    """What an objective needs to know beside the responses.

    Attributes
    ----------
    n_classes : sequence of int
        Classes that each head governs.
    pooled : sequence of bool
        Of each head before this class batch: whether the pool holds samples of all its classes.
    scale : float
        What cosines are multiplied with before a softmax.
    """

    n_classes: Sequence[int]
    pooled: Sequence[bool]
    scale: float


#: Of the responses of the heads before this class batch, (n, k, dim), and of the new one,
#: (n, 1, dim), or (n, 0, dim) where there is none.
Objective = Callable[[Tensor, Tensor, MultiHead, MiniBatch, Setting], Losses]


def cosine(old: Tensor, new: Tensor, head: MultiHead, batch: MiniBatch, setting: Setting) -> Losses:
    """Return the New Classes Loss (Eq. 1) and the Review Loss (Eq. 9): negative cosines."""
    c = head.by_turn.flatten(0, 1)[head.row(batch.y, batch.turn)][:, None]  # (n, 1, dim)
    terms = {}
    if new.shape[1]:
        terms["new"] = -(new * c).sum(dim=(1, 2))  # Eq. 1, in float32 under autocast, too
    # Eq. 9: with a pool, every head learns every class. Without, the old heads review known
    # classes where they come again, and Eq. 8 leaves them alone with new ones. So it is with a
    # head of which the pool has too little: others' classes alone would drive out its own.
    if old.shape[1] and all(setting.pooled):
        terms["review"] = -(old * c).sum(dim=-1).sum(dim=1)
    elif old.shape[1] and batch.known is not None:
        learnt = batch.known[:, None]
        if any(setting.pooled):
            learnt = torch.stack([batch.known | pooled for pooled in setting.pooled], dim=1)
        terms["review"] = -((old * c).sum(dim=-1) * learnt).sum(dim=1)
    return terms


def softmax(
    old: Tensor, new: Tensor, head: MultiHead, batch: MiniBatch, setting: Setting
) -> Losses:
    """Return the cross-entropy over the label vectors of the head that governs the sample's class.

    That softmax never spans two heads, so new classes cannot suppress old ones. Samples of known
    classes, from the pool or come again, teach the old head that governs them. With a pool,
    there is one across the heads, too: see `across`.
    """
    # Where all samples are new, the new head is enough.
    o, first = (new, old.shape[1]) if batch.known is None else (torch.cat([old, new], dim=1), 0)
    vectors, turns = head.by_turn.flatten(0, 1), head.by_turn.shape[1]
    sizes = [turns * n for n in setting.n_classes]
    skipped = sum(sizes[:first])
    logits = [setting.scale * part for part in cosines(o, vectors[skipped:], sizes[first:])]
    log_p = torch.cat([part.log_softmax(-1).flatten(1) for part in logits], dim=1)
    right = head.row(batch.y, batch.turn) - skipped
    missed = -log_p.gather(1, right[:, None])[:, 0]
    if batch.known is None:
        return {"new": missed}
    terms = {"new": missed * ~batch.known} if new.shape[1] else {}
    terms["review"] = missed * batch.known
    if any(setting.pooled):
        terms["across"] = across(
            torch.cat([part.flatten(1) for part in logits], dim=1), head, batch
        )
    return terms


def across(logits: Tensor, head: MultiHead, batch: MiniBatch) -> Tensor:
    """Return the cross-entropy over the label vectors of all heads.

    As if all classes were equally many: the logarithm of its number of samples is added to a
    class's logits, so that the few pooled ones are not outvoted. A class without any takes no part.
    """
    assert batch.counts is not None
    more = batch.counts.log()[:, None].expand(-1, head.by_turn.shape[1]).flatten()
    return F.cross_entropy(logits + more, head.row(batch.y, batch.turn), reduction="none")


def both(old: Tensor, new: Tensor, head: MultiHead, batch: MiniBatch, setting: Setting) -> Losses:
    """Return the sum of both."""
    terms = dict(cosine(old, new, head, batch, setting))
    for name, term in softmax(old, new, head, batch, setting).items():
        terms[name] = terms[name] + term if name in terms else term
    return terms


OBJECTIVES: dict[str, Objective] = {"cosine": cosine, "softmax": softmax, "both": both}
