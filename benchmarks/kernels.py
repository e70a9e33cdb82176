"""What the time of a training step is made of: the device's kernels, by kind.

    python benchmarks/kernels.py --compile true    # on a GPU: ResNet-18, 128 images of 32×32 a step
    python benchmarks/kernels.py --quick           # a small network on a CPU: torch's operations

The step is that of `throughput.py`, with the frozen pass. Kernels on streams of their own run side
by side, so their sum may be more than the clock's time. Under the profiler all is a little slower.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from throughput import Timed, parse, pictures, taught, write
from torch.profiler import ProfilerActivity, profile, schedule

from lmrc.experiments.environment import hardware, versions

WARM_UP = 3  # epochs before those that count: the last is the profiler's own
LONGEST = 12  # kernels that are shown by name

#: Kinds of kernels by what occurs in their names; the first that fits.
KINDS = {
    "convolutions and products": r"conv|gemm|xmma|cutlass|wgrad|dgrad|nvjet|mkldnn|::mm|addmm|bmm",
    "compiled: normalisation, pointwise, casts": r"triton",
    "batch normalisation": r"batch_norm|bn_",
    "SGD": r"sgd|multi_tensor|foreach",
    "copies": r"memcpy|memset|copy|cat",
    "others": r"",
}


class Profiled(Timed):
    """Tells the profiler when each epoch ends."""

    watch: Any = None

    def _train(self, *args: Any) -> Iterator[dict[str, float]]:
        for record in super()._train(*args):
            if self.watch:
                self.watch.step()
            yield record


def main() -> None:
    """Profile some epochs, print kinds and the longest kernels, write both to --out."""
    options = parse(__doc__)
    on_gpu = torch.cuda.is_available() and options.device != "cpu"
    activities = [ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
    plan = schedule(wait=WARM_UP - 1, warmup=1, active=options.epochs)
    watch = profile(activities=activities, schedule=plan)
    settings: Any = {"augment": "crop+flip", "response_weight": 1.0}

    def ready() -> None:
        Profiled.watch = watch
        watch.start()

    model = taught(Profiled, *pictures(options), options, WARM_UP, ready, **settings)
    watch.stop()
    steps = options.steps * options.epochs
    clock = 1000 * float(np.sum(np.diff(model.marks)[WARM_UP:])) / steps
    kernels = {
        event.key: (event.self_device_time_total if on_gpu else event.self_cpu_time_total)
        / (1000 * steps)
        for event in watch.key_averages()
    }
    device = torch.device("cuda" if on_gpu else "cpu")
    print(f"\n{hardware(device)}; torch {versions()['torch']}; {clock:.2f} ms a step\n")
    kinds = by_kind(kernels)
    for name, ms in kinds.items():
        print(f"{name:42} {ms:6.3f} ms {ms / sum(kinds.values()):6.1%}")
    print(f"{'sum':42} {sum(kinds.values()):6.3f} ms\n")
    for name in sorted(kernels, key=lambda name: -kernels[name])[:LONGEST]:
        print(f"{kernels[name]:6.3f} ms  {name[:100]}")
    write({"clock": clock, "kinds": kinds, "kernels": kernels}, device, options)


def by_kind(kernels: dict[str, float]) -> dict[str, float]:
    """Return the time of each kind."""
    found: dict[str, float] = defaultdict(float)
    for name, ms in kernels.items():
        found[next(kind for kind, words in KINDS.items() if re.search(words, name.lower()))] += ms
    return {kind: found[kind] for kind in KINDS if found[kind]}


if __name__ == "__main__":
    main()
