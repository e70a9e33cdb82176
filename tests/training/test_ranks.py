import pytest

from lmrc.training import ranks
from lmrc.training.ranks import LostRankError, Ranks, is_lost


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:4242"), True),
        (RuntimeError("NCCL communicator was aborted on rank 1"), True),
        (LostRankError("another process has ended"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (OSError("Broken pipe"), False),
    ],
)
def test_errors_of_a_lost_process_are_told_from_others(error, expected):
    assert is_lost(error) is expected


def test_the_other_ranks_are_told_that_the_first_has_failed(monkeypatch):
    sent = []

    def send(values, **_):
        sent.extend(values)

    def fail():
        raise KeyError("no such class")

    monkeypatch.setattr(ranks.distributed, "broadcast_object_list", send)
    with pytest.raises(KeyError, match="no such class"):
        Ranks(0, 2).broadcast(fail)

    def receive(values, **_):
        values[:] = sent

    monkeypatch.setattr(ranks.distributed, "broadcast_object_list", receive)
    with pytest.raises(ranks.FirstFailedError, match="first process has failed"):
        Ranks(1, 2).broadcast(fail)
