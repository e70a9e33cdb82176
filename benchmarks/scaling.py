"""How a step, a prediction and a model grow with the number of heads and of classes.

    python benchmarks/scaling.py --out DIR         # on a CPU: the small network for vectors
    python benchmarks/scaling.py --gpu --out DIR   # ResNet-18 on a GPU, 1 to 100 heads
    python benchmarks/scaling.py --quick           # some seconds

Heads are made, not learnt: time does not depend on the weights. Everything timed is the product's
own: `partial_fit` of one more task of ten classes, and `predict`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from throughput import Timed
from torch.nn import functional as F

from lmrc.experiments.environment import hardware, versions
from lmrc.nets.multihead import MultiHead
from lmrc.report import figures

DIM, NEW_CLASSES, BATCH, STEPS = 100, 10, 128, 8

#: What is drawn, by its unit.
PANELS = {
    "ms": {"step_ms": "step of 128 samples", "predict_ms": "1,000 predictions"},
    "MB": {"head_mb": "heads and label vectors"},
}


def main() -> None:
    """Measure both series, print the tables, draw the figure."""
    options = parse()
    most_heads = 100 if options.gpu else 1_000
    heads, classes = decades(1, most_heads), decades(10, 100_000)
    if options.quick:
        heads, classes = [1, 10], [10, 1_000]
    series: dict[str, list[dict[str, float]]] = {
        "heads": [measure(n, n * NEW_CLASSES, options) for n in heads]
    }
    if not options.gpu:
        series["classes"] = [measure(min(10, n // 10), n, options) for n in classes]
    device = torch.device("cuda" if options.gpu else "cpu")
    print(f"\n{hardware(device)}; torch {versions()['torch']}, {torch.get_num_threads()} threads")
    for rows in series.values():
        show(rows)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        name = "scaling-gpu" if options.gpu else "scaling"
        facts = {"hardware": hardware(device), **versions(), "series": series}
        (options.out / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
        draw(series, options.out / f"{name}.png")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def decades(first: int, last: int) -> list[int]:
    """Return 1, 3, 10, 30, … between two powers of ten.

    >>> decades(10, 1000)
    [10, 30, 100, 300, 1000]
    """
    steps = [first * 10**e * m for e in range(9) for m in (1, 3)]
    return [n for n in steps if n <= last]


def measure(n_heads: int, n_classes: int, options: argparse.Namespace) -> dict[str, float]:
    """Time a step and a prediction of a model with so many heads and classes."""
    rng = np.random.default_rng(0)
    shape = (32, 32, 3) if options.gpu else (64,)
    x = rng.integers(0, 256, (BATCH * STEPS, *shape)).astype(np.uint8 if options.gpu else "f4")
    y = np.arange(len(x)) % NEW_CLASSES
    model = Timed(
        backbone="resnet18" if options.gpu else "mlp",
        device="cuda" if options.gpu else "cpu",
        label_dim=DIM,
        threshold=0.9,  # wide enough for any number of classes: what it costs is timed elsewhere
        batch_size=BATCH,
        epochs=1,
        random_state=0,
    )
    model.fit(x[:NEW_CLASSES], y[:NEW_CLASSES])
    widen(model, n_heads, n_classes)
    predicted = []
    for _ in range(3):
        begin = time.perf_counter()
        model.predict(x)
        predicted.append(time.perf_counter() - begin)
    stored = sum(t.nbytes for t in model.network_.head.state_dict().values())
    model.set_params(epochs=5)
    model.partial_fit(x, y + n_classes)
    return {
        "heads": n_heads,
        "classes": n_classes,
        "step_ms": 1000 * statistics.median(np.diff(model.marks)[2:]) / STEPS,
        "predict_ms": 1000 * statistics.median(predicted) * 1000 / len(x),
        "head_mb": stored / 2**20,
    }


def widen(model: Any, n_heads: int, n_classes: int) -> None:
    """Give a model so many heads with random weights, and classes with random label vectors."""
    old = model.network_.head
    head = MultiHead(old.weight.shape[-1], DIM, n_heads).to(old.weight.device)
    torch.nn.init.normal_(head.weight, std=0.05)
    model.labels_ = {"vectors": F.normalize(torch.randn(n_classes, DIM), dim=1)}
    model.network_.head = head.eval()
    model.classes_ = np.arange(n_classes)
    model.heads_ = np.array_split(model.classes_, n_heads)


def show(rows: list[dict[str, float]]) -> None:
    """Print one series."""
    print(
        f"\n{'heads':>6} {'classes':>8} {'ms/step':>9} {'ms/1,000 predicted':>19} {'heads, MB':>10}"
    )
    for row in rows:
        print(
            f"{row['heads']:6,} {row['classes']:8,} {row['step_ms']:9.2f} "
            f"{row['predict_ms']:19.1f} {row['head_mb']:8.1f}"
        )


def draw(series: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Draw two log-log panels for each series: time, and memory."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    with figures.theme():
        figure = Figure(figsize=(7.6, 3.4 * len(series)), layout="constrained")
        for panels, (name, rows) in zip(
            figure.subplots(len(series), 2, squeeze=False), series.items(), strict=True
        ):
            along = [row[name] for row in rows]
            for panel, (ylabel, lines) in zip(panels, PANELS.items(), strict=True):
                for i, (key, words) in enumerate(lines.items()):
                    style = figures.line_style(i)
                    line = {"color": style.colour, "marker": style.marker, "label": words}
                    panel.loglog(along, [row[key] for row in rows], **line)
                values = [row[key] for row in rows for key in lines]
                decade = 10.0 ** np.floor(np.log10(min(values)))
                panel.set(xlabel=name, ylabel=ylabel, ylim=(decade, 2 * max(values)))
                panel.minorticks_off()
                for axis in (panel.xaxis, panel.yaxis):
                    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
                figures.declutter(panel)
                panel.legend(loc="upper left")
    path.write_bytes(figures.to_png(figure))


if __name__ == "__main__":
    main()
