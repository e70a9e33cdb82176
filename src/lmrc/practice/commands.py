"""The commands of daily use, as the command line has them.

What a command needs is imported when it runs, so that ``lmrc --help`` is quick.
"""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from lmrc.practice.options import (
    OPTIONS,
    Check,
    Device,
    Flag,
    Json,
    Method,
    Model,
    Quiet,
    Shape,
    Training,
    given,
    with_parameters,
)
from lmrc.practice.usage import UsageError, print_json, show, speaker, typed


@with_parameters
def learn(
    context: typer.Context,
    model: Annotated[
        Path,
        typer.Argument(
            help="The model's folder; made if there is none.", metavar="MODEL", file_okay=False
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A folder with a sub-folder of images for each class (or train/ and val/ with "
            "these), a .csv with the columns path (or file, filename, image) and label (or class), "
            "or an .npz with X and y.",
            metavar="SOURCE",
            exists=True,
        ),
    ] = None,
    method: Annotated[
        Method | None,
        Shape(help="The paper's, or one more accurate on photographs.", show_default="lmrc"),
    ] = None,
    size: Annotated[
        str | None,
        Shape(
            help="Bring images to SIZE×SIZE, or HEIGHTxWIDTH pixels.",
            metavar="SIZE",
            show_default="as they are, if all are alike and small; else 64",
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        Training(
            "--set",
            metavar="NAME=VALUE",
            help="Another parameter of the classifier, such as momentum=0.8 or halve_at=[20,30]; "
            "can be repeated.",
        ),
    ] = None,
    val: Annotated[
        float,
        typer.Option(min=0, max=0.9, help="Share of each class to hold out, if there is no val/."),
    ] = 0.0,
    keep: Annotated[
        int | None,
        typer.Option(min=1, max=100, show_default="as before, 2 at first", help="Versions kept."),
    ] = None,
    device: Device = "auto",
    resume: Annotated[bool, Flag("--resume", help="Go on where it was stopped.")] = False,
    discard: Annotated[bool, Flag("--discard", help="Drop what was stopped.")] = False,
    checkpoint_every: Annotated[
        float, typer.Option(min=0, help="Seconds between states kept for --resume.")
    ] = 60.0,
    quiet: Quiet = False,
    **parameters: Any,
) -> None:
    """Teach a model the images in a folder: new classes, known ones, or both.

    The first learn makes the model and fixes what shapes it: backbone, size of images, label
    vectors. Later ones add to it; the images learnt before are not needed any more. A learn that
    is interrupted changes nothing, and goes on with --resume.

    Example: lmrc learn pets.lmrc week1/ --val 0.1
    """
    from lmrc.experiments import options
    from lmrc.practice.learn import Request
    from lmrc.practice.learn import learn as run

    try:
        others = options.learner_settings(setting, OPTIONS) or {}
        sides = options.image_size(size)
    except options.UsageError as error:
        raise typer.BadParameter(str(error), ctx=context) from error
    settings = given(parameters) | others
    of_resume = {"model", "source", "--resume", "--checkpoint-every", "--quiet"}
    if resume and not set(typed(context)) <= of_resume:
        raise UsageError(
            "--resume remembers its folder and options: write lmrc learn MODEL --resume alone, or "
            "with the folder's new place if it was moved"
        )
    if source is None and not (resume or discard):
        raise typer.BadParameter("name the folder to learn, after the model", ctx=context)
    request = None
    if source is not None:
        place = str(source.absolute())
        kind = method and method.value
        request = Request(place, settings, sides, val, keep, device, kind)
    run(
        model,
        request,
        resume=resume,
        discard=discard,
        checkpoint_every=checkpoint_every,
        quiet=quiet,
        say=speaker(quiet),
    )


def predict(
    model: Model,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            help="Image files, folders or patterns; an .npz with X; - reads an image or a list of "
            "paths from standard input.",
            metavar="IMAGE",
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Classes to name.")] = 1,
    reject_below: Annotated[
        float | None,
        typer.Option(help="Answer unknown below this similarity; evaluate --unknown finds one."),
    ] = None,
    as_json: Annotated[bool, Flag("--json", help="One JSON object on each line.")] = False,
    as_csv: Annotated[bool, Flag("--csv", help="A table with commas.")] = False,
    device: Device = "auto",
    quiet: Annotated[
        bool, Flag("--quiet", "-q", help="Do not name images that cannot be read.")
    ] = False,
) -> None:
    """Name what is in images: class, similarity and head, best first.

    A similarity is at most 1; models of lmrc+ have a score instead, which may be more. An image
    that cannot be read does not stop the others; the exit code is 1 then.

    Example: lmrc predict pets.lmrc photo.jpg more/ --top 3
    """
    from lmrc.practice.later import put_off

    put_off("scipy.stats", "pandas")
    from lmrc.practice import predict as work
    from lmrc.practice.models import open_to_predict

    if as_json and as_csv:
        raise UsageError("--json and --csv at once: choose one")
    if not images and sys.stdin.isatty():
        raise UsageError("name the images, or send their paths to standard input")
    found = work.find_images(images or [work.STANDARD_INPUT])
    if not images:  # a script whose list of images is empty has a slip in it
        first = next(found, None)
        if first is None:
            raise UsageError("name the images: standard input is empty")
        found = chain([first], found)
    asked = open_to_predict(model, device)
    answers = work.predict(asked, found, top=top, reject_below=reject_below)
    form = "json" if as_json else "csv" if as_csv else "text"
    width = work.widest([*asked.classes_, work.UNKNOWN])
    if work.write_answers(answers, form, sys.stdout, quiet=quiet, width=min(width, 30)):
        raise typer.Exit(1)


def evaluate(
    model: Model,
    source: Annotated[
        Path,
        typer.Argument(
            help="As for learn; of test/ or X_test, if any.", metavar="SOURCE", exists=True
        ),
    ],
    unknown: Annotated[
        Path | None,
        typer.Option(
            help="Folder of images of other things: finds a value for predict --reject-below.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the page; runs/evaluate-MODEL if not.", file_okay=False),
    ] = None,
    as_json: Json = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Test a model on labelled images and write a page about it.

    Example: lmrc evaluate pets.lmrc test/ --unknown other-animals/
    """
    from lmrc.practice.evaluate import evaluate as run

    folder = out or Path("runs") / f"evaluate-{model.absolute().stem}"
    say = speaker(quiet or as_json)
    result = run(model, source, folder, unknown=unknown, device=device, say=say)
    if as_json:
        print_json(result)


def info(model: Model, as_json: Json = False, quiet: Check = False) -> None:
    """Say what a model knows and holds: classes, heads, size, exemplars, room for more.

    Example: lmrc info pets.lmrc
    """
    from lmrc.practice import info as work

    show(model, work.describe, work.tell_info, as_json, quiet)


def log(model: Model, as_json: Json = False, quiet: Check = False) -> None:
    """List the versions of a model that are kept, one for each learn, newest first.

    Example: lmrc log pets.lmrc
    """
    from lmrc.practice import log as work

    show(model, work.history, work.tell_log, as_json, quiet)


def rollback(model: Model, quiet: Quiet = False) -> None:
    """Go back to the version before the newest, which is gone then.

    Example: lmrc rollback pets.lmrc
    """
    from lmrc.practice import care

    care.roll_back(model, speaker(quiet))


def forget(
    model: Model,
    name: Annotated[str, typer.Argument(help="The class.", metavar="CLASS")],
    quiet: Quiet = False,
) -> None:
    """Take a class out of a model: label vector, statistics, exemplars; in old versions, too.

    Example: lmrc forget pets.lmrc fish
    """
    from lmrc.practice import care

    care.forget(model, name, speaker(quiet))


def prune(
    model: Model,
    keep: Annotated[int, typer.Option(min=1, help="Versions to keep.")] = 1,
    quiet: Quiet = False,
) -> None:
    """Remove earlier versions now, with the images that they may hold.

    Example: lmrc prune pets.lmrc
    """
    from lmrc.practice import care

    care.prune(model, keep, speaker(quiet))


def rename(
    model: Model,
    name: Annotated[str, typer.Argument(help="The class.", metavar="CLASS")],
    to: Annotated[str, typer.Argument(help="What it shall be called.", metavar="NAME")],
    quiet: Quiet = False,
) -> None:
    """Give a class another name; in old versions, too.

    Example: lmrc rename pets.lmrc fihs fish
    """
    from lmrc.practice import care

    care.rename(model, name, to, speaker(quiet))


def export(
    model: Model,
    out: Annotated[
        Path, typer.Argument(help="The ONNX file to write.", metavar="FILE", dir_okay=False)
    ],
    quiet: Quiet = False,
) -> None:
    """Write a model as an ONNX file that runs without torch and lmrc.

    Its answers are compared with the model's first. Needs more packages:
    pip install 'torch>=2.7' onnx onnxruntime onnxscript

    Example: lmrc export pets.lmrc pets.onnx
    """
    from lmrc.practice.export import export as run

    run(model, out, say=speaker(quiet))


COMMANDS = (learn, predict, evaluate, info, log, rollback, prune, rename, forget, export)
