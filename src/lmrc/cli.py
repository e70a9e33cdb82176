"""The command line: thin verbs over the package.

What a command needs is imported when it runs, so that ``lmrc --help`` is quick.
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
import warnings
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lmrc import __version__, interrupts
from lmrc.experiments.options import one_by_one
from lmrc.experiments.warned import in_one_line
from lmrc.interrupts import INTERRUPTED
from lmrc.outside import cut, say
from lmrc.practice.commands import COMMANDS
from lmrc.practice.options import Flag
from lmrc.practice.usage import typed

app = typer.Typer(
    name="lmrc",
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # main() has its own way with errors
)

for _command in COMMANDS:
    app.command()(_command)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"lmrc {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        Flag("--version", callback=_print_version, is_eager=True, help="Print it and end."),
    ] = False,
    debug: Annotated[bool, Flag("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Class-incremental learning without keeping old data.

    Example: lmrc learn pets.lmrc week1/ makes a model of the images in week1, and
    lmrc predict pets.lmrc photo.jpg asks it. docs/tutorial.md walks through it all.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the page and the records.", file_okay=False)
    ] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(help="Runs of each method.", min=1)] = 1,
    epochs: Annotated[int, typer.Option(help="Passes over each task.", min=1)] = 12,
    quiet: Annotated[bool, Flag("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Teach a network ten digits, two at a time, and show what it forgets.

    Compares LMRC+, LMRC, LM, fine-tuning, and LMRC with ten exemplars per class, and writes a
    page with tables and figures. A minute per seed.

    Example: lmrc demo --seeds 5 --out runs/five-seeds
    """
    from lmrc.experiments.demo import main as run_demo

    run_demo(out, seeds=seeds, epochs=epochs, quiet=quiet)


class Experiment(StrEnum):
    """What can be reproduced, in the order of the paper; then what goes beyond it."""

    softmax_suppression = "softmax-suppression"
    incremental = "incremental"
    rehearsal = "rehearsal"
    capacity = "capacity"
    consolidation = "consolidation"
    heads = "heads"
    ablation = "ablation"
    rotations = "rotations"


@app.command()
def reproduce(
    context: typer.Context,
    experiment: Annotated[
        Experiment, typer.Argument(help="Which figure or table.", metavar="EXPERIMENT")
    ],
    dataset: Annotated[
        str | None,
        typer.Option(
            help="digits, mnist, cifar100, imagenet200, folder:PATH or npz:PATH; by default "
            "digits, and mnist for softmax-suppression."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder; runs/EXPERIMENT-DATASET by default.", file_okay=False),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each method.", min=1)] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(help="Short names or dotted paths, one or several."),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="mlp, cnn, resnet18, resnet34, resnet18-wide.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over a task.")] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Tasks.")] = None,
    first_classes: Annotated[
        int | None,
        typer.Option(min=1, help="Classes of the first task; the others have equally many each."),
    ] = None,
    memory: Annotated[
        list[str] | None, typer.Option(help="Exemplars of each class, one number or several.")
    ] = None,
    memory_total: Annotated[
        list[str] | None, typer.Option(help="Exemplars of all classes together, likewise.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Bring the images of a folder to SIZE×SIZE, or HEIGHTxWIDTH pixels; by default as "
            "they are, if all are alike and small, else 64.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Images per class.")] = None,
    validate: Annotated[
        float | None,
        typer.Option(
            help="Score on this share of each class's training images, held out, and leave the "
            "test set alone: to choose settings by."
        ),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            help="natural, per-seed, a seed for all runs, or a JSON file: a list of labels, or a "
            "list of those of each task, where classes may recur."
        ),
    ] = None,
    blurry: Annotated[
        float | None,
        typer.Option(help="Share of each class's training images that come with other tasks."),
    ] = None,
    disjoint: Annotated[
        float | None,
        typer.Option(help="With --blurry: share of the classes that do not mix (i-Blurry)."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A parameter of the methods that have it, such as response_weight=3; can be "
            "repeated.",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Run folder of incremental whose records consolidation and heads read.",
            file_okay=False,
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the data set's files are.", file_okay=False)
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs side by side; by default one per core, on a GPU one."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cuda, mps or cpu.")] = "auto",
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            help="Make the runs tasks of a Ray cluster: the one at this address, or else the one "
            "that this machine belongs to, or a new one of it alone.",
        ),
    ] = None,
    gpus_per_run: Annotated[
        float | None,
        typer.Option(min=0, help="With --ray; 0.25 packs four runs on a GPU. 1 if not given."),
    ] = None,
    announce_classes: Annotated[
        bool,
        Flag(
            "--announce-classes",
            help="Tell learners all classes at their first task, as scikit-learn's own need it.",
        ),
    ] = False,
    keep_models: Annotated[
        bool,
        Flag("--keep-models", help="Keep the model that each run ends with, under trained/."),
    ] = False,
    quiet: Annotated[bool, Flag("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Run an experiment of the paper, or go on with one that was stopped.

    softmax-suppression is Fig. 1, incremental Fig. 3, rehearsal Table 1, capacity Figs. 4a and 5,
    consolidation Figs. 4b and 4c; heads shows which head wins against which. Beyond the paper,
    ablation goes from LMRC to LMRC+ step by step, and rotations shows what quarter turns cost.

    Settings are the paper's; an option replaces one of them. Each finished task is a line
    in the folder's records, and nothing that is in them is run again.

    Example: lmrc reproduce incremental --dataset digits --seeds 3

    To choose a setting: lmrc reproduce incremental --methods lmrc --validate 0.1
    --set response_weight=3 --out runs/weight-3
    """
    from lmrc.experiments import options

    try:
        options.check_options(experiment.value, typed(context))
        changes = {
            "seeds": seeds,
            "methods": options.several(methods),
            "backbone": backbone,
            "epochs": epochs,
            "tasks": tasks,
            "first_classes": first_classes,
            "memory": options.memory_sizes(memory, memory_total),
            "total": bool(memory_total) or None,
            "size": options.image_size(size),
            "limit": limit,
            "validate": options.share("--validate", validate),
            "order": options.class_order(order),
            "announce_classes": announce_classes or None,
            "blurry": options.share("--blurry", blurry),
            "disjoint": options.share("--disjoint", disjoint),
            "settings": options.learner_settings(setting),
        }
        from lmrc.experiments.reproduce import main as run_experiment

        run_experiment(
            experiment.value,
            dataset,
            out,
            source=source,
            data_dir=data_dir,
            jobs=jobs,
            device=device,
            ray=ray,
            gpus_per_run=gpus_per_run,
            keep_models=keep_models,
            quiet=quiet,
            **changes,
        )
    except options.UsageError as error:
        raise typer.BadParameter(str(error), ctx=context) from error


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(help="A run folder.", exists=True, file_okay=False, metavar="DIR")
    ],
    quiet: Annotated[bool, Flag("--quiet", "-q", help="Print nothing.")] = False,
) -> None:
    """Make the tables, figures and page of a run folder again, from its records alone.

    Example: lmrc report runs/incremental-digits
    """
    from lmrc.report.page import read_contents, write_contents

    description, contents = read_contents(folder)
    page = write_contents(folder, description, contents)
    if not quiet:
        say(*contents.markdown.split("\n"), "", f"The page with figures and tables: {page}")


def main() -> None:
    """Run the command line and end the process.

    The exit code is 0 if all is well, 1 if the work failed, 2 for wrong use and 130 for Ctrl-C.
    An error is one line on standard error; with ``--debug``, anywhere, its traceback.
    """
    for name in ("stdout", "stderr"):  # who starts us may have closed them
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    for stream in (sys.stdout, sys.stderr):  # file names may be in no encoding at all
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    arguments = [word for word in sys.argv[1:] if word != "--debug"]  # wherever it stands
    debug = len(arguments) < len(sys.argv) - 1
    interrupts.listen()
    try:
        # Not standalone: typer would frame errors and print several lines.
        with warnings.catch_warnings(), _together(arguments):
            warnings.showwarning = _show_warning
            code = app(one_by_one(arguments), standalone_mode=False, prog_name="lmrc")
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):  # which of them, or 130 at once, is up to typer
        code = INTERRUPTED
    except BrokenPipeError:  # who read our output has had enough: lmrc predict … | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        code = getattr(error, "exit_code", 1)
        if debug:
            traceback.print_exc()
        else:
            _tell(error, code)
    if code == INTERRUPTED:
        interrupts.ignore()
        print("lmrc: interrupted", file=sys.stderr)
    sys.exit(code)


def _together(arguments: list[str]) -> AbstractContextManager[object]:
    """Join the other processes, if ``torchrun`` has started several."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return nullcontext()
    from lmrc.training import ranks

    if ranks.started_by_torchrun() and not {"learn", "reproduce"} & set(arguments):
        raise RuntimeError("torchrun is for learn and reproduce: run this command without it")
    return ranks.process_group()


def _tell(error: Exception, code: int) -> None:
    """Print an error on one line; of several processes, wrong use is for the first to tell."""
    rank = _rank()
    if not rank:
        say(f"lmrc: {_one_line(error)}", file=sys.stderr)
    elif code != 2 and type(error).__name__ != "FirstFailedError":
        say(f"lmrc: process {rank}: {_one_line(error)}", file=sys.stderr)


def _rank() -> int:
    """Return this process's number among those that ``torchrun`` has started."""
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdecimal() else 0


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    if not _rank():
        sys.stderr.write(in_one_line(message))


def _is_own(error: Exception) -> bool:
    return type(error).__module__.startswith("lmrc.")


def _one_line(error: Exception) -> str:
    if hasattr(error, "format_message"):  # wrong use: the classes are click's or typer's own
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "lmrc"
        # Their messages do not always name the value; what was typed does.
        typed = shlex.join(["lmrc", *sys.argv[1:]])
        said = error.format_message().rstrip(".").replace("Value error, ", "")
        message = f"{typed}: {said} (see {command} --help)"
    elif isinstance(error, (ValueError, OSError, RuntimeError)) or _is_own(error):
        message = str(error) or type(error).__name__
    else:  # not foreseen, so the message alone may say nothing
        message = f"{type(error).__name__}: {error} (lmrc --debug … shows where)"
    return cut(" ".join(message.split()))
