"""The commands for daily use.

Imports that a command needs are inside it, so that ``lmrc --help`` is fast.
"""

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
    NoImages,
    Quiet,
    Shape,
    Training,
    given,
    with_parameters,
)
from lmrc.practice.usage import UsageError, options_given, print_json, printer, show


@with_parameters
def learn(
    context: typer.Context,
    model: Annotated[
        Path,
        typer.Argument(
            help="Folder of the model; the first learn creates it.",
            metavar="MODEL",
            file_okay=False,
            readable=False,  # a learn beside this one may remove its own folder during the check
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A folder with one sub-folder of images per class (or train/ and val/ with such "
            "sub-folders), a .csv file with the columns path (or file, filename, image) and label "
            "(or class), or an .npz file with the arrays X and y.",
            metavar="SOURCE",
            exists=True,
        ),
    ] = None,
    method: Annotated[
        Method | None,
        Shape(
            help="lmrc is the method of the paper; lmrc+ is more accurate, and slower to train "
            "unless the backbone is pre-trained.",
            show_default="lmrc+ for photographs (colour, 64 pixels or more), vectors and "
            "pre-trained backbones, else lmrc",
        ),
    ] = None,
    size: Annotated[
        str | None,
        Shape(
            help="Resize images to SIZE×SIZE or HEIGHTxWIDTH pixels.",
            metavar="SIZE",
            show_default="the size of the pre-trained backbone; without one, the original size if "
            "it is the same for all images and small, else 64",
        ),
    ] = None,
    from_scratch: Annotated[
        bool,
        Shape(
            "--from-scratch",
            metavar="",
            help="Train the whole network from random weights, for photographs too.",
        ),
    ] = False,
    *,
    setting: Annotated[
        list[str] | None,
        Training(
            "--set",
            metavar="NAME=VALUE",
            help="Any other parameter of the classifier, such as momentum=0.8 or "
            "halve_at=[20,30]; can be repeated.",
        ),
    ] = None,
    val: Annotated[
        float,
        typer.Option(
            min=0,
            max=0.9,
            help="Share of each class's images to hold out for validation if SOURCE has no val/. "
            "Not needed with a frozen backbone, whose accuracy is measured by leave-one-out.",
        ),
    ] = 0.0,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1, max=100, show_default="as before; 2 at first", help="Versions to keep."
        ),
    ] = None,
    device: Device = "auto",
    resume: Annotated[bool, Flag("--resume", help="Continue an interrupted learn.")] = False,
    discard: Annotated[bool, Flag("--discard", help="Discard an interrupted learn.")] = False,
    checkpoint_every: Annotated[
        float, typer.Option(min=0, help="Seconds between the checkpoints that --resume needs.")
    ] = 60.0,
    quiet: Quiet = False,
    **parameters: Any,
) -> None:
    """Train a model on labelled images of new classes, known classes, or both.

    The first learn creates the model and fixes its architecture: backbone, image size, label
    vectors. Photographs are learnt with a pre-trained backbone, in seconds or minutes. Each later
    learn adds a task and needs none of the earlier images. An interrupted learn leaves the model
    unchanged and continues with --resume.

    Example: lmrc learn pets.lmrc week1/
    """
    from lmrc.practice.lazy_imports import import_lazily

    import_lazily()
    from lmrc.experiments import options
    from lmrc.practice.learn import Request
    from lmrc.practice.learn import learn as run

    settings = given(parameters) | (options.learner_settings(setting, OPTIONS) or {})
    sides = options.image_size(size)
    with_resume = {"model", "source", "--resume", "--checkpoint-every", "--quiet"}
    if resume and not set(options_given(context)) <= with_resume:
        raise UsageError(
            "--resume takes its options from the interrupted learn: use lmrc learn MODEL --resume, "
            "or lmrc learn MODEL SOURCE --resume if you have moved the images"
        )
    if source is None and not (resume or discard):
        raise UsageError("SOURCE is missing: give a folder of images after the model")
    request = None
    if source is not None:
        name = method and method.value
        request = Request(
            str(source.absolute()), settings, sides, val, keep, device, name, from_scratch
        )
    run(
        model,
        request,
        resume=resume,
        discard=discard,
        checkpoint_every=checkpoint_every,
        quiet=quiet,
        say=printer(quiet),
    )


def predict(
    model: Model,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            help="Image files, folders or glob patterns; an .npz file with X; - reads an image or "
            "a list of paths from standard input.",
            metavar="IMAGE",
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Number of classes to print.")] = 1,
    reject_below: Annotated[
        float | None,
        typer.Option(
            help="Predict unknown below this similarity; evaluate --unknown suggests a value."
        ),
    ] = None,
    unknown: Annotated[
        bool, Flag("--unknown", help="Predict unknown for images of no known class (lmrc+).")
    ] = False,
    unknown_share: Annotated[
        float | None,
        typer.Option(
            help="As --unknown; share of images of known classes that may be called unknown, too.",
            show_default="0.05",
            metavar="SHARE",
        ),
    ] = None,
    as_json: Annotated[bool, Flag("--json", help="Print one JSON object per line.")] = False,
    as_csv: Annotated[bool, Flag("--csv", help="Print CSV.")] = False,
    device: Device = "auto",
    quiet: Annotated[bool, Flag("--quiet", "-q", help="Do not report unreadable images.")] = False,
) -> None:
    """Predict the classes of images, each with its probability.

    Models without probabilities print a similarity or a score instead. Images that cannot be read
    are skipped, and the exit code is 1.

    Example: lmrc predict pets.lmrc photo.jpg more/ --top 3 --unknown
    """
    from lmrc.practice.lazy_imports import import_lazily

    import_lazily()
    from lmrc.methods.calibrated import UNKNOWN_SHARE
    from lmrc.practice import predict as work
    from lmrc.practice.models import open_to_predict, unknown_threshold

    if as_json and as_csv:
        raise UsageError("--json and --csv cannot be combined: use one of them")
    if unknown and unknown_share is None:
        unknown_share = UNKNOWN_SHARE
    if unknown_share is not None and reject_below is not None:
        raise UsageError("--unknown and --reject-below cannot be combined: use one of them")
    if not images and sys.stdin.isatty():
        raise UsageError("no images: name some, or write their paths to standard input")
    found = work.find_images(images or [work.STANDARD_INPUT])
    if not images:  # without "-", empty input is likely a mistake in a script
        first = next(found, None)
        if first is None:
            raise UsageError("no images: standard input is empty")
        found = chain([first], found)
    classifier = open_to_predict(model, device)
    threshold = None if unknown_share is None else unknown_threshold(classifier, unknown_share)
    predictions = work.predict(
        classifier, found, top=top, reject_below=reject_below, threshold=threshold
    )
    form = "json" if as_json else "csv" if as_csv else "text"
    width = work.max_width(classifier.classes_)
    if work.write_predictions(predictions, form, sys.stdout, quiet=quiet, width=min(width, 30)):
        raise typer.Exit(1)


def evaluate(
    model: Model,
    source: Annotated[
        Path,
        typer.Argument(
            help="Labelled images, as for learn; if they have a test/ or X_test, only that.",
            metavar="SOURCE",
            exists=True,
        ),
    ],
    unknown: Annotated[
        Path | None,
        typer.Option(
            help="Folder of images of no known class: measures how well the model detects them.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the report.", show_default="runs/evaluate-MODEL", file_okay=False
        ),
    ] = None,
    no_images: NoImages = False,
    as_json: Json = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Test a model on labelled images and write a report.

    Example: lmrc evaluate pets.lmrc test/ --unknown other-animals/
    """
    from lmrc.practice.lazy_imports import import_lazily

    import_lazily()
    from lmrc.practice.evaluate import evaluate as run

    folder = out or Path("runs") / f"evaluate-{model.absolute().stem}"
    say = printer(quiet or as_json)
    result = run(
        model, source, folder, unknown=unknown, thumbnails=not no_images, device=device, say=say
    )
    if as_json:
        print_json(result)


def check(
    source: Annotated[
        Path,
        typer.Argument(help="Labelled images, as for learn.", metavar="SOURCE", exists=True),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            help="The model that will learn them: also find new classes that look like a known "
            "one, and known classes whose new images look different.",
            metavar="MODEL",
            exists=True,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the report.", show_default="runs/check-SOURCE", file_okay=False
        ),
    ] = None,
    no_images: NoImages = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Find mistakes in labelled images before they are learnt.

    Finds unreadable and suspicious files, duplicates (also re-encoded, resized or mirrored ones,
    and those between training and test images), labels that are probably wrong, and classes that
    are hard to tell apart. The exit code is 1 if it finds something.

    Example: lmrc check week2/ --model pets.lmrc
    """
    from lmrc.practice.check import check as run

    folder = out or Path("runs") / f"check-{source.absolute().stem}"
    say = printer(quiet)
    if run(source, folder, model=model, thumbnails=not no_images, device=device, say=say):
        raise typer.Exit(1)


def info(model: Model, as_json: Json = False, quiet: Check = False) -> None:
    """Show what a model contains: classes, heads, size, exemplars, room for more classes.

    Example: lmrc info pets.lmrc
    """
    from lmrc.practice.info import describe, print_info

    show(model, describe, print_info, as_json, quiet)


def log(model: Model, as_json: Json = False, quiet: Check = False) -> None:
    """List the stored versions of a model, one per learn, newest first.

    Example: lmrc log pets.lmrc
    """
    from lmrc.practice.info import history, print_log

    show(model, history, print_log, as_json, quiet)


def rollback(model: Model, quiet: Quiet = False) -> None:
    """Delete the newest version of a model and return to the previous one.

    Example: lmrc rollback pets.lmrc
    """
    from lmrc.practice import maintenance

    maintenance.roll_back(model, printer(quiet))


def forget(
    model: Model,
    name: Annotated[str, typer.Argument(help="Name of the class.", metavar="CLASS")],
    quiet: Quiet = False,
) -> None:
    """Remove a class and all that is stored of it from all versions of a model.

    Example: lmrc forget pets.lmrc fish
    """
    from lmrc.practice import maintenance

    maintenance.forget(model, name, printer(quiet))


def prune(
    model: Model,
    keep: Annotated[int, typer.Option(min=1, help="Versions to keep.")] = 1,
    quiet: Quiet = False,
) -> None:
    """Delete earlier versions of a model, with the exemplars (stored images) in them.

    Example: lmrc prune pets.lmrc
    """
    from lmrc.practice import maintenance

    maintenance.prune(model, keep, printer(quiet))


def rename(
    model: Model,
    name: Annotated[str, typer.Argument(help="Name of the class.", metavar="CLASS")],
    to: Annotated[str, typer.Argument(help="New name.", metavar="NAME")],
    quiet: Quiet = False,
) -> None:
    """Rename a class in all versions of a model.

    Example: lmrc rename pets.lmrc fihs fish
    """
    from lmrc.practice import maintenance

    maintenance.rename(model, name, to, printer(quiet))


def export(
    model: Model,
    out: Annotated[
        Path, typer.Argument(help="The ONNX file, or the folder of a web page, to write.")
    ],
    web: Annotated[bool, Flag("--web", help="Write a web page that needs no server.")] = False,
    onnxruntime_web: Annotated[
        Path | None,
        typer.Option(
            help="With --web: folder of the npm package onnxruntime-web; by default npm fetches "
            "it.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Export a model as an ONNX file that runs without torch and lmrc, or as a web page.

    The exported outputs are compared with the model's before anything is written. Needs additional
    packages: pip install '.[onnx]' in lmrc's folder

    Example: lmrc export pets.lmrc pets.onnx

    Example: lmrc export pets.lmrc pets/ --web
    """
    if web:
        from lmrc.practice.web_page import export_page

        export_page(model, out, onnxruntime_web, say=printer(quiet))
        return
    if onnxruntime_web is not None:
        raise UsageError("--onnxruntime-web is for --web")
    if out.is_dir():
        raise UsageError(f"{out} is a folder: name a file, or add --web for a web page")
    from lmrc.practice.export import export as run

    run(model, out, say=printer(quiet))


COMMANDS = (learn, predict, evaluate, check, info, log, rollback, prune, rename, forget, export)
