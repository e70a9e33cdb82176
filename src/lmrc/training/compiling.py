"""Encoders compiled for their training."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn


@contextmanager
def compiled(*networks: nn.Module | None) -> Iterator[None]:
    """Compile the encoders of networks for as long as they are trained.

    Compiled code is cached by the shapes and the structure of an encoder, so the next task's copy
    uses the same code.
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
    """Run eagerly what would otherwise be compiled again."""
    eager: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return eager
