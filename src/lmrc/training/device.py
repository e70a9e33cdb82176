"""Where and how precisely to compute."""

from __future__ import annotations

import torch


def pick_device(device: str | torch.device) -> torch.device:
    """Resolve ``"auto"`` to cuda, mps or cpu, and refuse a device that is not there."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
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
    return picked


def use_bf16(precision: str, device: torch.device) -> bool:
    """Resolve ``"auto"``: bfloat16 on a GPU that computes in it, float32 elsewhere."""
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bf16"


def use_graph(compile: bool | str, device: torch.device) -> bool:  # noqa: A002
    """Resolve the estimators' ``compile``: a GPU replays captured steps unless told not to."""
    return device.type == "cuda" and compile is not False
