"""Softmax losses of LMRC+: within a head, and across heads where there are exemplars."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lmrc.nets.multihead import cosines
from lmrc.training.batches import MiniBatch
from lmrc.training.step import Losses

MIN_LOGIT = -1e4  # its probability is zero, and its logarithm finite


def softmax_losses(
    old: Tensor,
    new: Tensor,
    batch: MiniBatch,
    vectors: Tensor,
    head_sizes: Sequence[int],
    scale: float,
    *,
    with_exemplars: bool,
) -> Losses:
    """Return the cross-entropy over the label vectors of the head that the class belongs to.

    That softmax never spans two heads, so new classes cannot suppress old ones. Samples of known
    classes, whether exemplars or new ones, train their own old head. With exemplars there is also a
    softmax across the heads: see `balanced`.

    Parameters
    ----------
    old : Tensor of shape (n, k, dim)
        Responses of the heads before this task.
    new : Tensor of shape (n, 1, dim), or (n, 0, dim)
        Of the new one, if there is any.
    batch : MiniBatch
    vectors : Tensor of shape (classes · rotations, dim)
        Label vectors.
    head_sizes : sequence of int
        Classes of each head.
    scale : float
        Cosines are multiplied by it.
    with_exemplars : bool
        Whether there are exemplars of all classes of some old head.
    """
    # Where all samples are new, the new head is enough.
    o, first = (torch.cat([old, new], dim=1), 0) if batch.reviews else (new, old.shape[1])
    sizes = [batch.n_rotations * n for n in head_sizes]
    skipped = sum(sizes[:first])
    logits = [scale * part for part in cosines(o, vectors[skipped:], sizes[first:])]
    log_p = torch.cat([part.log_softmax(-1).flatten(1) for part in logits], dim=1)
    targets = batch.targets
    missed = -(targets[:, skipped:] * log_p)
    if not batch.reviews:
        return {"new": missed.sum(dim=1)}
    n = batch.n_known * batch.n_rotations
    terms = {"new": missed[:, n:].sum(dim=1)} if new.shape[1] else {}
    terms["review"] = missed[:, :n].sum(dim=1)
    if with_exemplars:
        flat = torch.cat([part.flatten(1) for part in logits], dim=1)
        terms["balanced"] = balanced(flat, batch)
    return terms


def balanced(logits: Tensor, batch: MiniBatch) -> Tensor:
    """Return the logit-adjusted cross-entropy over the label vectors of all heads.

    As in Menon et al., "Long-tail learning via logit adjustment", ICLR 2021: the logarithm of its
    number of samples is added to a class's logits, so that the few exemplars are not outvoted. A
    class without any takes no part.
    """
    prior = batch.counts.log().clamp(min=MIN_LOGIT)[:, None]
    prior = prior.expand(-1, batch.n_rotations).flatten()
    return -(batch.targets * (logits + prior).log_softmax(dim=1)).sum(dim=1)
