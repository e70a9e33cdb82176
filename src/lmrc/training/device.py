"""Where, how precisely and in which way to compute."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any

import torch

from lmrc.training.ranks import current, wants_sync_batchnorm

#: Inductor takes some 20 seconds for a ResNet, once for all tasks, and saves a fifth of a
#: step. So many input values are a million images of 32×32 in colour, and 4 seconds saved on an
#: H200: from there on it pays after a few tasks.
WORTH_COMPILING = 3e9


@dataclass(frozen=True)
class Execution:
    """What the estimators' choices of how to compute come to on this machine."""

    device: torch.device
    bf16: bool  # the forward pass in bfloat16; weights and losses stay float32
    graph: bool  # the training step captured as one CUDA graph
    compiled: bool  # the backbone compiled by Inductor
    deterministic: bool = False  # whether it was `repeatable` on a GPU
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
            Input values that a task trains on, over all epochs.
        """
        picked = pick_device(device)
        ranks = current()
        on_gpu = picked.type == "cuda"
        graph = on_gpu and compile is not False and not ranks.is_distributed
        deterministic = on_gpu and torch.are_deterministic_algorithms_enabled()
        auto = graph and not deterministic and work >= WORTH_COMPILING and has_triton()
        return cls(
            picked,
            bf16=use_bf16(precision, picked),
            graph=graph,
            compiled=auto if compile == "auto" else bool(compile),
            deterministic=deterministic,
            processes=ranks.size,
        )

    def described(self) -> dict[str, str | bool | int]:
        """Return it in plain values, for the records."""
        plain = asdict(self) | {"device": self.device.type}
        if not self.deterministic:
            del plain["deterministic"]
        if self.processes == 1:
            del plain["processes"]
        elif wants_sync_batchnorm():
            plain["sync_batchnorm"] = True
        return plain


@contextmanager
def deterministic_algorithms(deterministic: bool) -> Iterator[None]:
    """Have a GPU give the same bits each time; torch names what it cannot in a warning."""
    if not (deterministic and torch.cuda.is_available()):
        yield
        return
    # What cuBLAS asks for, and reads when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    switches: Any = torch.utils.deterministic
    mode, fills = torch.get_deterministic_debug_mode(), switches.fill_uninitialized_memory
    torch.set_deterministic_debug_mode(max(mode, 1))  # 1 warns; who has asked for errors gets them
    switches.fill_uninitialized_memory = False  # nothing here reads such memory
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        switches.fill_uninitialized_memory = fills


@contextmanager
def default_dtype_guard() -> Iterator[None]:
    """Make tensors in float32 on the CPU where nothing is said, whatever the caller has set."""
    device = torch.get_default_device()
    with nullcontext() if device.type == "cpu" else torch.device("cpu"), _FLOAT32:
        yield


class _Float32:
    """Makes float32 the default, which is one for all threads, until the last of them is done."""

    def __init__(self) -> None:
        self.lock, self.inside, self.before = Lock(), 0, torch.float32

    def __enter__(self) -> None:
        with self.lock:
            if not self.inside:
                self.before = torch.get_default_dtype()
                torch.set_default_dtype(torch.float32)
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                torch.set_default_dtype(self.before)


_FLOAT32 = _Float32()


def has_triton() -> bool:
    """Say whether Inductor can compile for a GPU here."""
    return importlib.util.find_spec("triton") is not None


def pick_device(device: str | torch.device) -> torch.device:
    """Resolve ``"auto"`` to cuda, mps or cpu, and refuse a device that is not there."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        mps = torch.backends.mps.is_available() and not current().is_distributed
        return torch.device("mps" if mps else "cpu")
    try:
        picked = torch.device(device)
        if picked.type == "meta":
            raise TypeError("it computes nothing")
    except (RuntimeError, TypeError, ValueError) as error:
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
