"""Options that commands of daily use share, and what they may be."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

Flag = partial(typer.Option, metavar="")  # else help would ask for a <bool>
Choice = partial(typer.Option, case_sensitive=False)
Shape = partial(Choice, rich_help_panel="What the first learn fixes")
Training = partial(Choice, rich_help_panel="Training; stays as it is until named again")

Model = Annotated[Path, typer.Argument(help="A model's folder.", metavar="MODEL", file_okay=False)]
Quiet = Annotated[bool, Flag("--quiet", "-q", help="Print errors and warnings only.")]
Check = Annotated[
    bool, Flag("--quiet", "-q", help="Print nothing: the exit code tells if all is well.")
]
Json = Annotated[bool, Flag("--json", help="Print JSON.")]
Device = Annotated[str, typer.Option(help="auto, cuda, mps or cpu.")]

# What options may be. Lists of the package's own would take torch along; a test compares them.
ClassWeight = StrEnum("ClassWeight", ["none", "balanced"])
Method = StrEnum("Method", {"lmrc": "lmrc", "lmrc_plus": "lmrc+"})
Turned = StrEnum("Turned", ["none", "one", "all"])
Backbone = StrEnum(
    "Backbone",
    {
        "auto": "auto",
        "mlp": "mlp",
        "cnn": "cnn",
        "resnet18": "resnet18",
        "resnet34": "resnet34",
        "resnet18_wide": "resnet18-wide",
    },
)
Augment = StrEnum(
    "Augment",
    {
        "auto": "auto",
        "none": "none",
        "crop": "crop",
        "crop_flip": "crop+flip",
        "resized_crop_flip": "resized-crop+flip",
        "jitter_cutout": "jitter+cutout",
        "cutmix": "cutmix",
    },
)
