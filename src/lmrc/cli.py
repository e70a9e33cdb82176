"""The command line: thin commands over the package.

Imports that a command needs are inside it, so that ``lmrc --help`` is fast.
"""

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
from lmrc.experiments.recipe import EXPERIMENTS
from lmrc.interrupts import INTERRUPTED
from lmrc.practice.commands import COMMANDS
from lmrc.practice.options import Flag
from lmrc.practice.usage import options_given
from lmrc.serve.command import serve
from lmrc.text import in_one_line, say, shorten

app = typer.Typer(
    name="lmrc",
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # main() prints errors
)

for _command in (*COMMANDS, serve):
    app.command()(_command)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"lmrc {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        Flag(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, Flag("--debug", help="Print the traceback of an error.")] = False,
) -> None:
    """Class-incremental learning: teach a classifier new classes without keeping the old images.

    Example: lmrc learn pets.lmrc week1/ trains a model on the images in week1, and
    lmrc predict pets.lmrc photo.jpg predicts the class of a photo. Tutorial: docs/tutorial.md
    """
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the report and the records.", file_okay=False)
    ] = Path("runs/demo"),
    seeds: Annotated[
        int, typer.Option(help="Runs of each method, with different seeds.", min=1)
    ] = 1,
    epochs: Annotated[int, typer.Option(help="Epochs per task.", min=1)] = 12,
    quiet: Annotated[bool, Flag("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Learn ten digits in five tasks with several methods, and show what each forgets.

    Compares LMRC+, LMRC, LM, fine-tuning, and LMRC with ten exemplars per class, and writes a
    report with tables and figures. Takes a minute per seed.

    Example: lmrc demo --seeds 5 --out runs/five-seeds
    """
    from lmrc.experiments.demo import main as run_demo

    run_demo(out, seeds=seeds, epochs=epochs, quiet=quiet)


Experiment = StrEnum("Experiment", [(name.replace("-", "_"), name) for name in EXPERIMENTS])  # type: ignore[misc]


@app.command()
def reproduce(
    context: typer.Context,
    experiment: Annotated[
        Experiment, typer.Argument(help="The experiment to run.", metavar="EXPERIMENT")
    ],
    dataset: Annotated[
        str | None,
        typer.Option(
            help="digits, mnist, cifar100, imagenet200, folder:PATH or npz:PATH.",
            show_default="digits; mnist for softmax-suppression",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder.", show_default="runs/EXPERIMENT-DATASET", file_okay=False),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs of each method, with different seeds.", min=1)
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(help="One or more methods: short names or dotted paths."),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="A backbone, such as cnn or resnet18; see lmrc learn --help.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs per task.")] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Number of tasks.")] = None,
    first_classes: Annotated[
        int | None,
        typer.Option(min=1, help="Classes in the first task; the others share the rest equally."),
    ] = None,
    memory: Annotated[
        list[str] | None, typer.Option(help="Exemplars per class, one or more numbers.")
    ] = None,
    memory_total: Annotated[
        list[str] | None, typer.Option(help="Exemplars in total, one or more numbers.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Resize the images of a folder to SIZE×SIZE or HEIGHTxWIDTH pixels.",
            show_default="original size if all are equal and small, else 64",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Images per class.")] = None,
    validate: Annotated[
        float | None,
        typer.Option(
            help="Share of each class's training images to hold out and score on, instead of the "
            "test set: to choose hyper-parameters."
        ),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            help="Class order: natural, per-seed, one seed for all runs, or a JSON file with a "
            "list of labels or a list of tasks (lists of labels; classes may recur)."
        ),
    ] = None,
    blurry: Annotated[
        float | None,
        typer.Option(help="Share of each class's training images that is moved to other tasks."),
    ] = None,
    disjoint: Annotated[
        float | None,
        typer.Option(help="With --blurry: share of the classes that stay disjoint (i-Blurry)."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A parameter of the methods, such as response_weight=3; can be repeated.",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Run folder of incremental, whose records consolidation and heads read.",
            file_okay=False,
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the files of the data set.", file_okay=False)
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Parallel runs.", show_default="one per core; on a GPU, 1"),
    ] = None,
    device: Annotated[str, typer.Option(help="Device: auto, cuda, mps or cpu.")] = "auto",
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            help="Run on a Ray cluster: the one at this address; without an address, the one that "
            "this machine belongs to, or a new one on this machine.",
        ),
    ] = None,
    gpus_per_run: Annotated[
        float | None,
        typer.Option(min=0, help="With --ray: 0.25 packs four runs on a GPU.", show_default="1"),
    ] = None,
    announce_classes: Annotated[
        bool,
        Flag(
            "--announce-classes",
            help="Pass all classes to the first partial_fit, as scikit-learn's estimators require.",
        ),
    ] = False,
    keep_models: Annotated[
        bool,
        Flag("--keep-models", help="Save the final model of each run under trained/."),
    ] = False,
    quiet: Annotated[bool, Flag("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Run an experiment of the paper, or continue one that was interrupted.

    softmax-suppression is Fig. 1, incremental Fig. 3, rehearsal Table 1, capacity Figs. 4a and 5,
    consolidation Figs. 4b and 4c; heads shows how often each head wins on each task's images.
    Beyond the paper, ablation adds the parts of LMRC+ to LMRC one by one, rotations compares
    LMRC+ with and without rotations, and pretrained begins with ImageNet weights.

    Settings are the paper's unless an option changes them. Each finished task is a line in the
    folder's records; what is recorded is not run again.

    Example: lmrc reproduce incremental --dataset digits --seeds 3

    To choose a setting: lmrc reproduce incremental --methods lmrc --validate 0.1
    --set response_weight=3 --out runs/weight-3
    """
    from lmrc.experiments import options

    try:
        options.check_options(experiment.value, options_given(context))
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


class FigureFormat(StrEnum):
    """Further formats of a figure."""

    PDF = "pdf"


@app.command()
def report(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A run folder, or one above several.", exists=True, file_okay=False, metavar="DIR"
        ),
    ],
    figures: Annotated[
        FigureFormat | None,
        typer.Option(help="Write figures in this format, too, with embedded fonts: for a paper."),
    ] = None,
    quiet: Annotated[bool, Flag("--quiet", "-q", help="Print nothing.")] = False,
) -> None:
    """Rebuild the report (page, tables, figures) of a run folder from its records.

    Of a folder above several run folders: write an index.html over their reports.

    Example: lmrc report runs/incremental-digits --figures pdf
    """
    from lmrc.report.page import write_report
    from lmrc.report.records import RECORDS

    if not (folder / RECORDS).exists():
        from lmrc.report.index import write_index

        page, entries = write_index(folder)
        if not quiet:
            say(f"{len(entries)} reports: {page}")
        return
    page, contents = write_report(folder, pdf=figures is not None)
    if not quiet:
        say(*contents.markdown.split("\n"), "", f"Report with figures and tables: {page}")


def main() -> None:
    """Run the command line and end the process.

    The exit code is 0 for success, 1 for failure, 2 for wrong usage and 130 for Ctrl-C. An error
    is one line on standard error; with ``--debug``, at any position, its traceback.
    """
    for name in ("stdout", "stderr"):  # the parent process may have closed them
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    for stream in (sys.stdout, sys.stderr):  # file names may not be valid text
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    arguments = [word for word in sys.argv[1:] if word != "--debug"]  # at any position
    debug = len(arguments) < len(sys.argv) - 1
    interrupts.install_handler()
    try:
        # Not standalone: typer would print errors in a frame of several lines.
        with warnings.catch_warnings(), _process_group(arguments):
            warnings.showwarning = _show_warning
            code = app(one_by_one(arguments), standalone_mode=False, prog_name="lmrc")
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):  # typer raises either, or returns 130
        code = INTERRUPTED
    except BrokenPipeError:  # the reader has closed the pipe: lmrc predict … | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        code = getattr(error, "exit_code", 1)
        if debug:
            traceback.print_exc()
        else:
            _print_error(error, code)
    if code == INTERRUPTED:
        interrupts.ignore_further()
        print("lmrc: interrupted", file=sys.stderr)
    sys.exit(code)


def _process_group(arguments: list[str]) -> AbstractContextManager[object]:
    """Return the process group if ``torchrun`` has started several processes."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return nullcontext()
    from lmrc.training import ranks

    if ranks.started_by_torchrun() and not {"learn", "reproduce"} & set(arguments):
        raise RuntimeError("torchrun is only for learn and reproduce: run this command without it")
    return ranks.process_group()


def _print_error(error: Exception, code: int) -> None:
    """Print an error on one line; wrong usage only in the first of several processes."""
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


def _one_line(error: Exception) -> str:
    own = type(error).__module__.startswith("lmrc.")
    if hasattr(error, "format_message"):  # wrong usage: an error of click or typer
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "lmrc"
        # Their messages do not always contain the value; the command does.
        command_line = shlex.join(["lmrc", *sys.argv[1:]])
        said = error.format_message().rstrip(".").replace("Value error, ", "")
        message = f"{command_line}: {said} (see {command} --help)"
    elif isinstance(error, (ValueError, OSError, RuntimeError)) or own:
        message = str(error) or type(error).__name__
    else:  # unexpected: the message alone may be unclear
        message = f"{type(error).__name__}: {error} (lmrc --debug … prints the traceback)"
    return shorten(" ".join(message.split()))
