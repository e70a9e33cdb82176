"""What is learnt of an image that has a piece of another: both classes, by their share of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from lmrc.nets.network import Network
from lmrc.training.batches import MiniBatch
from lmrc.training.step import Losses, check


def mixed(
    losses: Callable[[MiniBatch], Losses], *networks: Network | None
) -> Callable[[MiniBatch], Losses]:
    """Weigh the terms of a loss for both classes of each input by their shares.

    Parameters
    ----------
    losses : callable
        Maps a mini-batch to the terms of the loss.
    *networks : Network or None
        Those that the losses ask: features are found once for both.
    """

    def of_batch(batch: MiniBatch) -> Losses:
        if batch.share is None:
            return losses(batch)
        with ExitStack() as stack:
            trunks = [network.trunk for network in networks if network is not None]
            notes = [stack.enter_context(trunk.noted()) for trunk in trunks]
            own = losses(batch)
            for of_trunk in notes:
                of_trunk.again()
            other = losses(turned_round(batch))
        for terms in (own, other):
            check(terms, len(batch.y))
        # What is a scalar is already a mean over the mini-batch, in which all shares are alike.
        return {
            name: term + (batch.share if term.ndim else batch.share.mean()) * (other[name] - term)
            for name, term in own.items()
        }

    return of_batch


def turned_round(batch: MiniBatch) -> MiniBatch:
    """Return the same inputs with the labels of their pieces."""
    known, turn = (None if part is None else part.flip(0) for part in (batch.known, batch.turn))
    return replace(batch, y=batch.y.flip(0), known=known, turn=turn)
