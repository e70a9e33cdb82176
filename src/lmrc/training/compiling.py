"""Networks prepared for fast training, and restored after it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import nn

from lmrc.training.batches import Batches
from lmrc.training.device import Execution
from lmrc.training.overlap import OverlappedGradients, overlapped
from lmrc.training.prefetch import MAX_VALUES


@contextmanager
def accelerate(
    network: nn.Module, old: nn.Module | None, batches: Batches, execution: Execution
) -> Iterator[OverlappedGradients | None]:
    """Prepare networks for the training of a task: the one in training, and the one before it.

    Yields the weights whose gradients are computed on a side stream, if any.
    """
    # If the backward pass of a mini-batch fills the GPU, overlapping gains nothing.
    leaves_room = batches.n_values(max(batches.sizes)) <= MAX_VALUES
    with ExitStack() as stack:
        overlap = None
        if execution.graph and leaves_room:
            overlap = stack.enter_context(overlapped(network, execution.bf16))
        if execution.compiled:
            stack.enter_context(compiled(network, old, reuse_memory=overlap is None))
        yield overlap


@contextmanager
def compiled(*networks: nn.Module | None, reuse_memory: bool = True) -> Iterator[None]:
    """Compile the encoders of networks for as long as they are trained.

    Compiled code is cached by the shapes and the structure of an encoder, so the next task's copy
    uses the same code. With `reuse_memory` it may overwrite tensors that it no longer needs; not
    with overlapped gradients.
    """
    options = {"combo_kernels": True}  # many small kernels in one
    if not reuse_memory:
        options |= {"allow_buffer_reuse": False, "inplace_buffers": False}
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
