"""Networks made ready for training at speed, and left as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import nn

from lmrc.training.ahead import VALUES
from lmrc.training.batches import Batches
from lmrc.training.delayed import Delayed, delayed
from lmrc.training.device import Execution


@contextmanager
def accelerate(
    network: nn.Module, frozen: nn.Module | None, batches: Batches, execution: Execution
) -> Iterator[Delayed | None]:
    """Make networks ready for the training of a task.

    Parameters
    ----------
    network, frozen : nn.Module
        The one in training, and the one that it consults.
    batches : Batches
    execution : Execution

    Yields
    ------
    Delayed or None
        The weights whose gradients are found beside the backward pass.
    """
    # Where the backward pass of a mini-batch fills the GPU, it gains nothing and takes memory.
    leaves_room = batches.n_values(max(batches.sizes)) <= VALUES
    with ExitStack() as stack:
        weights = None
        if execution.graph and leaves_room:
            weights = stack.enter_context(delayed(network, execution.bf16, execution.compiled))
        if execution.compiled:
            stack.enter_context(compiled(network, frozen, reuse_memory=weights is None))
        yield weights


@contextmanager
def compiled(*networks: nn.Module | None, reuse_memory: bool = True) -> Iterator[None]:
    """Compile the encoders of networks for as long as they are trained.

    Compiled code is kept by the shapes and the structure of an encoder, so the next task's
    copy finds it ready.

    Parameters
    ----------
    *networks : nn.Module or None
    reuse_memory : bool
        Whether the code may overwrite tensors that it needs no more; not where gradients are
        `delayed`.
    """
    # Many small kernels in one, such as the weights' casts to bfloat16.
    options = {"combo_kernels": True}
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
    """Leave compiled code aside, for what would have it compiled anew."""
    eager: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return eager
