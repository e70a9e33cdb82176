"""The demo: ten digits learnt two at a time, with and without what LMRC does against forgetting.

scikit-learn's embedded digits, five tasks of two classes in natural order, a small CNN.
"""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lmrc.data.datasets import load_dataset
from lmrc.data.stream import ClassStream
from lmrc.evaluation.run import evaluate
from lmrc.experiments.environment import hardware, versions
from lmrc.experiments.recipe import load_recipe
from lmrc.methods.base import IncrementalClassifier
from lmrc.methods.finetune import FineTuneClassifier
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.methods.lmrc_plus import LMRCPlusClassifier
from lmrc.outside import say
from lmrc.report.live import show
from lmrc.report.records import (
    DESCRIPTION,
    RECORDS,
    Command,
    Description,
    RunRecord,
    append_record,
    read_description,
    write_description,
)
from lmrc.report.summary import MethodSummary, Spread, markdown_table, summarize_methods
from lmrc.report.titles import pooled
from lmrc.report.write import FIGURE_PNG, FIGURE_SVG, PAGE, TABLE, write_report

TASKS = 5
POOL = 10

LMRC, LMRC_PLUS, LM, FINE_TUNING = "LMRC", "LMRC+", "LM", "fine-tuning"
LMRC_POOL = pooled(LMRC, POOL)

#: An order that puts the remedy before what happens without it.
METHODS = (LMRC_PLUS, LMRC, LM, FINE_TUNING, LMRC_POOL)

TITLE = "lmrc demo: ten digits, two at a time"
QUESTION = (
    "A small network learns the ten handwritten digits of scikit-learn in five tasks of "
    "two: 0 and 1, then 2 and 3, and so on. When a task comes, the images of the earlier "
    "ones are gone. After each, the network is tested on all digits it has seen. How much does it "
    "still know? Fine-tuning just goes on training. LMRC gives each task a head of its own "
    "and holds the old heads' responses; LM is LMRC without that hold (response weight 0). LMRC+ "
    "goes beyond the paper: it also carries a few statistics of each class along. That it learns "
    "images in four turns, too, is left off here: a 6 on its head is a 9. The "
    f"last one is LMRC that may keep {POOL} images of each class."
)


def main(out: Path, *, seeds: int = 1, epochs: int = 12, quiet: bool = False) -> None:
    """Run the demo, show it, and write records, table, figure and page.

    Parameters
    ----------
    out : Path
        Folder for the files; made where it does not exist. An earlier demo in it is replaced.
    seeds : int, default=1
        Number of runs of each method, with seeds 0, 1, ….
    epochs : int, default=12
        Passes over each task.
    quiet : bool, default=False
        Show no progress.
    """
    command = _command(out, seeds, epochs)
    description = Description("demo", TITLE, QUESTION, [Command(command)])
    begin_anew(out, description)
    total = seeds * len(METHODS) * TASKS
    records = []
    with show(METHODS, tasks=TASKS, total=total, quiet=quiet) as progress:
        for record in run(seeds=seeds, epochs=epochs):
            append_record(out, record)
            records.append(record)
            progress.update(records)
    summaries = summarize_methods(records)
    findings = describe(summaries)
    write_description(out, replace(description, headline=headline(summaries), findings=findings))
    page = write_report(out)
    if seeds > 1 or not progress.shows_table:
        say(*markdown_table(summaries).split("\n"), "", f"`{command}`, {records[-1].hardware}", "")
    width = min(shutil.get_terminal_size().columns, 100)
    print(textwrap.fill(" ".join(findings), width))
    say("", f"The page with figures and tables: {page}")


def run(*, seeds: int = 1, epochs: int = 12) -> Iterator[RunRecord]:
    """Teach every method the digits and yield a record after each task.

    All methods with one seed come first, then all with the next.

    Parameters
    ----------
    seeds, epochs : int
        As in `main`.
    """
    stream = ClassStream(load_dataset("digits"), tasks=TASKS)
    made_with: dict[str, Any] = {"versions": versions(), "hardware": hardware()}
    with _one_thread():
        for seed in range(seeds):
            for method, learner in learners(seed, epochs).items():
                settings = _settings(learner)
                for record in evaluate(stream, learner):
                    yield RunRecord(
                        method,
                        seed,
                        settings,
                        record,
                        threads=torch.get_num_threads(),
                        extra={"augmentation": learner.augmentation_},
                        **made_with,
                    )


def learners(seed: int, epochs: int) -> dict[str, IncrementalClassifier]:
    """Return a fresh learner for each method, by its name."""
    common: dict[str, Any] = {
        "backbone": "cnn",
        "epochs": epochs,
        "batch_size": 32,
        # Images of 8 × 8 pixels do not repay a GPU's start; and the numbers are alike anywhere.
        "device": "cpu",
        "random_state": seed,
    }
    own = load_recipe("incremental", "digits", epochs=epochs).by_method["lmrc+"]
    return {
        LMRC_PLUS: LMRCPlusClassifier(**own, **common),
        LMRC: LMRCClassifier(**common),
        LM: LMRCClassifier(response_weight=0.0, **common),
        FINE_TUNING: FineTuneClassifier(**common),
        LMRC_POOL: LMRCClassifier(memory_per_class=POOL, **common),
    }


def headline(summaries: Sequence[MethodSummary]) -> str:
    """Return the result in one sentence, from the records."""
    kept = {summary.method: _mean(summary.old) for summary in summaries}
    return (
        f"Without storing a single image, LMRC keeps {_share(kept[LMRC])} of the old digits and "
        f"LMRC+ {_share(kept[LMRC_PLUS])}; fine-tuning keeps {_share(kept[FINE_TUNING])}."
    )


def describe(summaries: Sequence[MethodSummary]) -> list[str]:
    """Return in three sentences what the reader sees, from the records."""
    found = {summary.method: summary for summary in summaries}
    old = {method: _mean(summary.old) for method, summary in found.items()}
    new = _mean(found[FINE_TUNING].new)
    if old[FINE_TUNING] < 0.05 < 0.5 < new:
        forgets = (
            f"Fine-tuning knows only the last two digits in the end ({_share(new)} of them right, "
            f"{_share(old[FINE_TUNING])} of the eight before): every new task suppresses "
            "the old classes."
        )
    else:
        forgets = (
            f"In the end fine-tuning gets {_share(new)} of the last two digits right and "
            f"{_share(old[FINE_TUNING])} of the eight before."
        )
    pooled = f"{POOL} exemplars per class"
    change = "bring that to" if old[LMRC_POOL] > old[LMRC] else "come to"
    keeps = (
        f"LMRC keeps {_share(old[LMRC])} of those eight without a exemplar (LM, which lets the "
        f"old responses drift, {_share(old[LM])}), and {pooled} {change} {_share(old[LMRC_POOL])}."
    )
    beyond = (
        f"LMRC+, which carries statistics of the classes along, keeps {_share(old[LMRC_PLUS])} "
        "without a exemplar."
    )
    return [forgets, keeps, beyond]


def begin_anew(out: Path, description: Description) -> None:
    """Remove an earlier demo's files, and those alone; refuse the folder of another experiment."""
    if (out / RECORDS).exists() and not _is_demo(out):
        raise FileExistsError(
            f"{out} holds the records of another experiment; choose another folder with --out."
        )
    out.mkdir(parents=True, exist_ok=True)
    for name in (PAGE, FIGURE_SVG, FIGURE_PNG, TABLE, RECORDS):
        (out / name).unlink(missing_ok=True)
    write_description(out, description)


def _is_demo(folder: Path) -> bool:
    return (folder / DESCRIPTION).exists() and read_description(folder).experiment == "demo"


def _command(out: Path, seeds: int, epochs: int) -> str:
    command = ["lmrc", "demo", "--out", str(out), "--seeds", str(seeds), "--epochs", str(epochs)]
    return shlex.join(command)


def _settings(learner: IncrementalClassifier) -> dict[str, Any]:
    parameters = learner.get_params()
    # The seed has a place of its own in the record; how much is printed decides nothing.
    for name in ("random_state", "verbose"):
        del parameters[name]
    stream = {"dataset": "digits", "tasks": TASKS, "order": "natural"}
    return {**stream, "classifier": type(learner).__name__, **parameters}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute in one thread, and give the others back afterwards.

    Two threads gain a fourth of the time on 8 × 8 images when a machine of two cores is idle, and
    make it four times as long when it is not. Also, sums are then in one order on any machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _mean(spread: Spread | None) -> float:
    if spread is None:
        raise ValueError("the demo can be described once all its tasks are learnt.")
    return spread.mean


def _share(share: float) -> str:
    """Return a share in words: whole percent, and "none" for none."""
    return f"{100 * share:.0f} %" if share >= 0.005 else "none"
