"""Device, precision and compilation."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any

import torch
from torch import nn

from lmrc.training.ranks import current, wants_sync_batchnorm

#: Input values from which compilation pays. Inductor takes some 20 seconds for a ResNet, once for
#: all tasks, and saves a fifth of a step: 4 seconds for a million images of 32×32 on an H200.
MIN_WORK = 3e9


@dataclass(frozen=True)
class Execution:
    """An estimator's device, precision and compilation, resolved on this machine."""

    device: torch.device
    bf16: bool  # the forward pass in bfloat16; weights and losses stay float32
    graph: bool  # the training step captured as one CUDA graph
    compiled: bool  # the backbone compiled by Inductor
    deterministic: bool = False  # deterministic algorithms on a GPU
    processes: int = 1  # that train together

    @classmethod
    def pick(
        cls,
        device: str | torch.device,
        precision: str,
        compile: bool | str,  # noqa: A002
        work: float = 0,
    ) -> Execution:
        """Resolve "auto" in an estimator's parameters; reject what is not available.

        `work` is the number of input values that a task trains on, over all epochs.
        """
        picked = pick_device(device)
        ranks = current()
        on_gpu = picked.type == "cuda"
        graph = on_gpu and compile is not False and not ranks.is_distributed
        deterministic = on_gpu and torch.are_deterministic_algorithms_enabled()
        auto = graph and not deterministic and work >= MIN_WORK and has_triton()
        return cls(
            picked,
            bf16=use_bf16(precision, picked),
            graph=graph,
            compiled=auto if compile == "auto" else bool(compile),
            deterministic=deterministic,
            processes=ranks.size,
        )

    def described(self) -> dict[str, str | bool | int]:
        """Return plain values, for the records."""
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
    """Use deterministic algorithms on a GPU; torch warns of operations without one."""
    if not (deterministic and torch.cuda.is_available()):
        yield
        return
    # Required by cuBLAS, which reads it on first use.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    switches: Any = torch.utils.deterministic
    mode, fills = torch.get_deterministic_debug_mode(), switches.fill_uninitialized_memory
    torch.set_deterministic_debug_mode(max(mode, 1))  # 1 warns; a user who wants errors keeps them
    switches.fill_uninitialized_memory = False  # no code here reads such memory
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        switches.fill_uninitialized_memory = fills


@contextmanager
def default_dtype_guard() -> Iterator[None]:
    """Set the default dtype to float32 and the default device to the CPU for this block."""
    # Not get_default_device, which fails after set_default_device(None) in torch 2.6.
    device = torch.empty(0).device
    with nullcontext() if device.type == "cpu" else torch.device("cpu"), _FLOAT32:
        yield


class _Float32:
    """Sets the default dtype, which all threads share, until the last thread leaves."""

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
    """Tell whether Inductor can compile for a GPU."""
    return importlib.util.find_spec("triton") is not None


def pick_device(device: str | torch.device) -> torch.device:
    """Resolve ``"auto"`` to cuda, mps or cpu, and reject a device that is not available."""
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
    if picked == torch.device("cuda"):  # with its index, as tensors have it
        return torch.device("cuda", torch.cuda.current_device())
    return picked


def for_float64(device: torch.device) -> torch.device:
    """Return the device, or the CPU where it has no float64."""
    return device if device.type == "cuda" else torch.device("cpu")


def use_bf16(precision: str, device: torch.device) -> bool:
    """Resolve ``"auto"``: bfloat16 on a GPU that supports it, float32 elsewhere."""
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bf16"


@contextmanager
def compiled(*networks: nn.Module | None) -> Iterator[None]:
    """Compile the encoders of networks while they are trained.

    Code is cached by the structure and shapes of an encoder, so the next task's copy reuses it.
    """
    options = {"combo_kernels": True}  # many small kernels in one
    modules = [network.get_submodule("encoder") for network in networks if network]
    for module in modules:
        on_gpu = next(module.buffers()).is_cuda
        module.compile(dynamic=False, options=options if on_gpu else None)
    try:
        yield
    finally:
        for module in modules:
            module._compiled_call_impl = None


def uncompiled() -> AbstractContextManager[None]:
    """Run eagerly instead of compiling for another shape."""
    eager: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return eager
