"""The demo: ten digits learnt two at a time, by LMRC+, LMRC, LM and fine-tuning.

scikit-learn's embedded digits, five tasks of two classes in natural order, a small CNN.
"""

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
from lmrc.experiments.recipe import load_recipe
from lmrc.experiments.runs import Run, measure
from lmrc.report.live import show
from lmrc.report.page import PAGE, write_report
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
from lmrc.report.summary import (
    MethodSummary,
    Spread,
    markdown_table,
    summarize_methods,
    with_exemplars,
)
from lmrc.text import say

TASKS = 5
EXEMPLARS = 10  # per class

LMRC, LMRC_PLUS, LM, FINE_TUNING = "LMRC", "LMRC+", "LM", "fine-tuning"
LMRC_EXEMPLARS = with_exemplars(LMRC, EXEMPLARS)

#: Method and exemplars per class by title, in the order of the tables.
RUNS = {
    LMRC_PLUS: ("lmrc+", 0),
    LMRC: ("lmrc", 0),
    LM: ("lm", 0),
    FINE_TUNING: ("finetune", 0),
    LMRC_EXEMPLARS: ("lmrc", EXEMPLARS),
}

TITLE = "lmrc demo: ten digits, two at a time"
QUESTION = (
    "A small network learns the ten handwritten digits of scikit-learn in five tasks of "
    "two: 0 and 1, then 2 and 3, and so on. The images of earlier tasks are not available. After "
    "each task, the network is tested on all digits it has seen. How accurate is it? Fine-tuning "
    "just continues training. LMRC gives each task a head of its own and preserves the old heads' "
    "responses; LM is LMRC without that (response weight 0). LMRC+ goes beyond the paper: it also "
    "predicts from drift-compensated class statistics. Its rotations are switched off here: a "
    f"rotated 6 is a 9. The last method is LMRC with {EXEMPLARS} exemplars per class."
)


def main(out: Path, *, seeds: int = 1, epochs: int = 12, quiet: bool = False) -> None:
    """Run the demo, show it, and write records, table, figure and page.

    An earlier demo in the folder is replaced. Each method is run with the seeds 0, 1, ….
    """
    options = {"--out": out, "--seeds": seeds, "--epochs": epochs}
    command = shlex.join(["lmrc", "demo", *(str(w) for pair in options.items() for w in pair)])
    description = Description("demo", TITLE, QUESTION, [Command(command)])
    clear_folder(out, description)
    records = []
    with show(dict.fromkeys(RUNS, seeds * TASKS), tasks=TASKS, quiet=quiet) as progress:
        for record in run(seeds=seeds, epochs=epochs):
            append_record(out, record)
            records.append(record)
            progress.update(records)
    summaries = summarize_methods(records)
    findings = describe(summaries)
    write_description(out, replace(description, headline=headline(summaries), findings=findings))
    page, _ = write_report(out)
    if seeds > 1 or not progress.shows_table:
        say(*markdown_table(summaries).split("\n"), "", f"`{command}`, {records[-1].hardware}", "")
    width = min(shutil.get_terminal_size().columns, 100)
    print(textwrap.fill(" ".join(findings), width))
    say("", f"Report with figures and tables: {page}")


def run(*, seeds: int = 1, epochs: int = 12) -> Iterator[RunRecord]:
    """Train every method on the digits and yield a record after each task.

    All methods with one seed come first, then all with the next.
    """
    common: dict[str, Any] = {"epochs": epochs, "backbone": "cnn", "batch_size": 32}
    recipe = load_recipe("incremental", "digits", order="natural", **common)
    dataset = load_dataset("digits")
    with _one_thread():
        for seed in range(seeds):
            for title, (method, memory) in RUNS.items():
                chosen = Run(method, seed, memory, title)
                # Too small for a GPU to pay off; and the numbers are the same everywhere.
                for record, _ in measure(recipe, chosen, dataset, 0, None, device="cpu"):
                    yield record


def headline(summaries: Sequence[MethodSummary]) -> str:
    """Return the result in one sentence, from the records."""
    old = {summary.method: _mean(summary.old) for summary in summaries}
    return (
        f"Final accuracy on the old digits, exemplar-free: LMRC {_share(old[LMRC])}, LMRC+ "
        f"{_share(old[LMRC_PLUS])}, fine-tuning {_share(old[FINE_TUNING])}."
    )


def describe(summaries: Sequence[MethodSummary]) -> list[str]:
    """Return the findings in three sentences, from the records."""
    found = {summary.method: summary for summary in summaries}
    old = {method: _mean(summary.old) for method, summary in found.items()}
    new = _mean(found[FINE_TUNING].new)
    is_suppressed = old[FINE_TUNING] < 0.05 < 0.5 < new
    forgets = (
        f"Fine-tuning ends with {_share(new)} accuracy on the last two digits and "
        f"{_share(old[FINE_TUNING])} on the eight before"
        f"{': every new task suppresses the old classes' * is_suppressed}."
    )
    keeps = (
        f"On those eight, exemplar-free LMRC has {_share(old[LMRC])}, LM, which lets the old "
        f"responses drift, {_share(old[LM])}, and LMRC with {EXEMPLARS} exemplars per class "
        f"{_share(old[LMRC_EXEMPLARS])}."
    )
    beyond = (
        "LMRC+, which predicts from drift-compensated class statistics, has "
        f"{_share(old[LMRC_PLUS])}, exemplar-free."
    )
    return [forgets, keeps, beyond]


def clear_folder(out: Path, description: Description) -> None:
    """Remove the files of an earlier demo; refuse the folder of another experiment."""
    is_demo = (out / DESCRIPTION).exists() and read_description(out).experiment == "demo"
    if (out / RECORDS).exists() and not is_demo:
        raise FileExistsError(
            f"{out} holds the records of another experiment; choose another folder with --out."
        )
    out.mkdir(parents=True, exist_ok=True)
    for name in (PAGE, "accuracy.svg", "accuracy.png", "table.csv", RECORDS):
        (out / name).unlink(missing_ok=True)
    write_description(out, description)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute in one thread, for the length of a ``with``.

    On 8 × 8 images, two threads save a quarter of the time on two idle cores, and take four times
    as long on busy ones. Also, sums are then in the same order on any machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _mean(spread: Spread | None) -> float:
    if spread is None:
        raise ValueError("the demo can be described once all of its tasks are learnt.")
    return spread.mean


def _share(share: float) -> str:
    """Return a share in whole percent."""
    return f"{100 * share:.0f} %"
