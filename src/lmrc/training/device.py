"""Where, how precisely and in which way to compute."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, dataclass

import torch

from lmrc.training.ranks import current, wants_sync_batchnorm

#: Inductor takes some 20 seconds for a ResNet, once for all class batches, and saves a fifth of a
#: step. So many input values are a million images of 32×32 in colour, and 4 seconds saved on an
#: H200: from there on it pays after a few class batches.
WORTH_COMPILING = 3e9


@dataclass(frozen=True)
class Execution:
    """What the estimators' ``device``, ``precision`` and ``compile`` come to on this machine."""

    device: torch.device
    bf16: bool  # the forward pass in bfloat16; weights and losses stay float32
    graph: bool  # the training step captured as one CUDA graph
    compiled: bool  # the backbone compiled by Inductor
    processes: int = 1  # that trained it together

    @classmethod
    def pick(
        cls,
        device: str | torch.device,
        precision: str,
        compile: bool | str,  # noqa: A002
        work: float = 0,
    ) -> Execution:
        """Resolve the "auto" of each; refuse what is not there.

        Parameters
        ----------
        device, precision, compile
            As the estimators have them.
        work : float
            Input values that a class batch trains on, over all epochs.
        """
        picked = pick_device(device)
        ranks = current()
        graph = picked.type == "cuda" and compile is not False and not ranks.are_several
        auto = graph and work >= WORTH_COMPILING and has_triton()
        return cls(
            picked,
            bf16=use_bf16(precision, picked),
            graph=graph,
            compiled=auto if compile == "auto" else bool(compile),
            processes=ranks.size,
        )

    def described(self) -> dict[str, str | bool | int]:
        """Return it in plain values, for the records."""
        plain = asdict(self) | {"device": self.device.type}
        if self.processes == 1:
            del plain["processes"]
        elif wants_sync_batchnorm():
            plain["sync_batchnorm"] = True
        return plain


def has_triton() -> bool:
    """Say whether Inductor can compile for a GPU here."""
    return importlib.util.find_spec("triton") is not None


def pick_device(device: str | torch.device) -> torch.device:
    """Resolve ``"auto"`` to cuda, mps or cpu, and refuse a device that is not there."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        mps = torch.backends.mps.is_available() and not current().are_several
        return torch.device("mps" if mps else "cpu")
    try:
        picked = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device={device!r} is not known: use 'auto', 'cuda', 'mps' or 'cpu'"
        ) from error
    missing = (picked.type == "cuda" and not torch.cuda.is_available()) or (
        picked.type == "mps" and not torch.backends.mps.is_available()
    )
    if missing:
        raise ValueError(f"device={device!r} is not available here: use device='auto' or 'cpu'")
    if picked == torch.device("cuda"):  # with its number, as tensors have it
        return torch.device("cuda", torch.cuda.current_device())
    return picked


def use_bf16(precision: str, device: torch.device) -> bool:
    """Resolve ``"auto"``: bfloat16 on a GPU that computes in it, float32 elsewhere."""
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bf16"
