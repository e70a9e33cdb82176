"""Options that commands of daily use share, and what they may be."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from lmrc.methods.catalog import METHODS
from lmrc.methods.parameters import Parameter, defaults

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

#: Parameters of all methods that ``lmrc learn`` offers, by name.
PARAMETERS: dict[str, Parameter] = {
    name: declared
    for method in reversed(METHODS.values())  # of the first that has it
    if method.options
    for name, declared in method.options.parameters.items()
}
#: Their options; `--set` is for the others.
OPTIONS = {name: p.option for name, p in PARAMETERS.items() if p.option}
OPTIONS |= {"device": "--device", "verbose": "--quiet"}
Method = StrEnum(  # type: ignore[misc]
    "Method", [(n.replace("+", "_plus"), n) for n, m in METHODS.items() if m.options]
)

#: What `learn` says of a default, where it has a rule of its own or words are shorter.
_SHOWN = {"batch_size": "32 if the first images are under 2,000, else 128", "random_state": "0"}


def with_parameters(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each parameter that has one, in the place of ``**given``."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [_option(name, p) for name, p in PARAMETERS.items() if p.option]
    positional = [p for p in own if p.kind is p.POSITIONAL_OR_KEYWORD]
    keyword = [p for p in own if p.kind is p.KEYWORD_ONLY]
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*positional, *options, *keyword]
    )
    return command


def _option(name: str, declared: Parameter) -> inspect.Parameter:
    """Return a parameter for typer, None unless it is named."""
    kind: Any = {"int": int, "float": float, "bool": bool}.get(declared.type, str)
    words = [declared.option]
    if name == "random_state":
        kind = int
    elif name == "weights":
        kind = Path
    elif declared.choices[:2] == (False, True):
        kind, words = bool, [f"{declared.option}/--no-{declared.option.removeprefix('--')}"]
    elif declared.choices:
        members = [(re.sub(r"\W", "_", choice), choice) for choice in declared.choices]
        kind = StrEnum(name, members)  # type: ignore[misc, no-redef]
    panel = Shape if declared.fixed or name in ("weights", "random_state") else Training
    extra: dict[str, Any] = {"exists": True, "metavar": "FILE"} if kind is Path else {}
    extra |= {"metavar": ""} if kind is bool else {}
    shown = _SHOWN.get(name) or _default(name)
    info = panel(*words, help=declared.help.partition(". ")[0].rstrip(".") + ".", **extra)
    info.show_default = shown
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def _default(name: str) -> str | bool:
    """Return the default in words, of each method where they differ."""
    told = {}
    for method, found in METHODS.items():
        if found.options and name in found.options.parameters:
            own = defaults(found.options)
            words = _number(own[name])
            if (first := own.get(f"first_{name}")) not in (None, own[name]):
                words += f" ({_number(first)} at the first learn)"
            told[method] = words
    usual, *others = told.items()
    if usual[1] in ("None", "False"):
        return False
    if not others:
        return usual[1] if usual[0] == "lmrc" else f"{usual[1]}, with {usual[0]} alone"
    different = [f"{words} with {method}" for method, words in others if words != usual[1]]
    return "; ".join([usual[1], *different])


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that were named, as classifiers take them."""
    named = {name: value for name, value in options.items() if value is not None}
    settings: dict[str, Any] = {
        n: str(v) if isinstance(v, StrEnum) else v for n, v in named.items()
    }
    if "weights" in settings:
        settings["weights"] = str(settings["weights"].absolute())
    if settings.get("class_weight") == "none":
        settings["class_weight"] = None
    return settings
