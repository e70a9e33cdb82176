"""How fast a frozen EfficientNet-Lite0 computes features on a CPU, in several ways.

    python benchmarks/features.py [--batch 16] [--threads 1]

CPU time of a forward pass, as other programs may run; the best of three, the ways one after the
other. ``torch.compile`` needs a C++ compiler, and onnxruntime the packages of ``lmrc export``: they
are left out where these are missing. The weights are random, which takes the same time.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lmrc.experiments.environment import hardware, versions
from lmrc.nets.efficientnet import EfficientNetLite

SIDE = 224
REPEATS = 3
HOPELESS = 5.0  # seconds for two images: bfloat16 on processors without it takes minutes


def main() -> None:
    """Time each way, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=16, help="images of a forward pass")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images = torch.rand(options.batch, 3, SIDE, SIDE)
    machine, threads = hardware(torch.device("cpu")), options.threads
    print(f"{machine}; torch {versions()['torch']}, threads: {threads}")
    print(f"EfficientNet-Lite0, {options.batch} images of {SIDE}×{SIDE}\n")
    print(f"{'':34} {'images/s of CPU time':>20}")
    for name, way in ways(threads).items():
        try:
            print(f"{name:34} {speed(way(), images):20.1f}", flush=True)
        except (ImportError, RuntimeError) as error:
            print(f"{name:34} {type(error).__name__:>20}")


def ways(threads: int) -> dict[str, Callable[[], Callable[[Tensor], Any]]]:
    """Return functions that make a network ready."""
    net = EfficientNetLite("efficientnet-lite0").eval()
    return {
        "as trained": lambda: net,
        "channels last": lambda: in_format(net, torch.channels_last),
        "channels last, bfloat16": lambda: in_bf16(in_format(net, torch.channels_last)),
        "folded": lambda: in_format(net.folded(), torch.contiguous_format),
        "folded, channels last (lmrc)": net.folded,
        "folded, channels last, bfloat16": lambda: in_bf16(net.folded()),
        "folded, torch.compile": lambda: torch.compile(net.folded()),
        "onnxruntime": lambda: in_onnxruntime(net, threads),
    }


def in_format(net: nn.Module, memory_format: torch.memory_format) -> nn.Module:
    """Return a copy with its weights in a memory format."""
    return copy.deepcopy(net).to(memory_format=memory_format)  # type: ignore[call-overload,no-any-return]


def in_bf16(net: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a function that runs the network in bfloat16."""

    def run(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            found: Tensor = net(x)
            return found

    return run


def in_onnxruntime(net: nn.Module, threads: int) -> Callable[[Tensor], Any]:
    """Return a function that runs the network in onnxruntime."""
    import onnxruntime

    batch = {0: torch.export.Dim("n")}
    example = (torch.zeros(2, 3, SIDE, SIDE),)
    program = torch.onnx.export(net, example, dynamo=True, verbose=False, dynamic_shapes=(batch,))
    if program is None:
        raise RuntimeError("torch.onnx returned no program")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), options)
    (name,) = (given.name for given in session.get_inputs())
    return lambda x: session.run(None, {name: x.numpy()})


@torch.inference_mode()
def speed(run: Callable[[Tensor], Any], images: Tensor) -> float:
    """Return images a second of CPU time."""
    run(images[:2])  # code is compiled, algorithms are chosen
    began = time.process_time()
    run(images[:2])
    if (seconds := time.process_time() - began) > HOPELESS:
        return 2 / seconds
    run(images)
    best = float("inf")
    for _ in range(REPEATS):
        began = time.process_time()
        run(images)
        best = min(best, time.process_time() - began)
    return len(images) / best


if __name__ == "__main__":
    main()
