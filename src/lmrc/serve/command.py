"""The command ``lmrc serve``. What it needs is imported when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from lmrc.practice.options import Device, Flag, Quiet
from lmrc.practice.usage import UsageError, printer


def serve(
    path: Annotated[
        Path,
        typer.Argument(
            help="A model, which may not exist yet, or a folder of models.",
            metavar="MODEL_OR_FOLDER",
            file_okay=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="LMRC_TOKEN",
            help="Token that clients must send; required if --host admits other machines.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token, to keep it off the command line.", exists=True),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A host name of this server, such as example.org; can be repeated."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes; more than one needs --read-only.")
    ] = 1,
    read_only: Annotated[bool, Flag("--read-only", help="Predict, but change no model.")] = False,
    max_upload: Annotated[
        float, typer.Option(min=0.1, max=2000, help="Largest request, in megabytes.")
    ] = 64,
    max_megapixels: Annotated[
        float, typer.Option(min=0.01, max=150, help="Largest image, in megapixels.")
    ] = 25,
    max_images: Annotated[
        int, typer.Option(min=1, max=100_000, help="Most images in a request or a task.")
    ] = 5000,
    max_memory: Annotated[
        float, typer.Option(min=1, help="Memory for uploaded images, in megabytes.")
    ] = 1000,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Teach a model and predict with it in a browser, or over HTTP.

    Uploaded images are kept in memory, not on disk, until they are learnt. Needs additional
    packages: pip install '.[serve]' in lmrc's folder

    Example: lmrc serve pets.lmrc
    """
    from lmrc.practice.lazy_imports import import_lazily
    from lmrc.serve.settings import MEGA, Settings

    import_lazily()
    if token_file is not None:
        token = token_file.read_text(encoding="utf-8").strip()
    settings = Settings(
        path, host, port, token or "", workers, read_only, device, tuple(allow_host or ()),
        int(max_upload * MEGA), int(max_megapixels * MEGA), max_images, int(max_memory * MEGA),
    )  # fmt: skip
    settings.check()
    try:
        from lmrc.serve.app import run
    except ImportError as error:
        raise UsageError(
            "lmrc serve needs additional packages: pip install '.[serve]' in lmrc's folder "
            f"({error})"
        ) from error
    run(settings, printer(quiet))
