"""Options of the commands for daily use; those of `learn` come from the declared parameters."""

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

Flag = partial(typer.Option, metavar="")  # otherwise the help text shows <bool>
Choice = partial(typer.Option, case_sensitive=False)
Shape = partial(Choice, rich_help_panel="Model (fixed by the first learn)")
Training = partial(Choice, rich_help_panel="Training (kept for later learns until changed)")

Model = Annotated[Path, typer.Argument(help="A model's folder.", metavar="MODEL", file_okay=False)]
Quiet = Annotated[bool, Flag("--quiet", "-q", help="Print errors and warnings only.")]
Check = Annotated[
    bool,
    Flag("--quiet", "-q", help="Print nothing; the exit code says whether the model is intact."),
]
Json = Annotated[bool, Flag("--json", help="Print JSON.")]
NoImages = Annotated[bool, Flag("--no-images", help="A page without thumbnails.")]
Device = Annotated[str, typer.Option(help="Device: auto, cuda, mps or cpu.")]

#: Parameters of all methods that ``lmrc learn`` offers, by name.
PARAMETERS: dict[str, Parameter] = {
    name: declared
    for method in reversed(METHODS.values())  # the first method that has it wins
    if method.options
    for name, declared in method.options.parameters.items()
}


def beyond_switch(declared: Parameter) -> list[Any]:
    """Return the choices of a parameter that an on/off option cannot express."""
    if not {True, False} <= set(declared.choices):
        return []
    return [choice for choice in declared.choices if not isinstance(choice, bool)]


#: Their options; all other parameters and values are set by `--set`.
OPTIONS = {n: p.option for n, p in PARAMETERS.items() if p.option and not beyond_switch(p)}
OPTIONS |= {"device": "--device", "verbose": "--quiet"}
Method = StrEnum(  # type: ignore[misc]
    "Method", [(n.replace("+", "_plus"), n) for n, m in METHODS.items() if m.options]
)

#: Defaults of `learn` that are not the classifiers'.
_SHOWN = {"batch_size": "128; 32 if the first task has under 2,000 images", "random_state": "0"}


def with_parameters(command: Callable[..., None]) -> Callable[..., None]:
    """Replace ``**parameters`` in a command's signature by an option for each that has one."""
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
    """Return an option as typer reads it; it is None if not given."""
    kind: Any = {"int": int, "float": float}.get(declared.type.removesuffix(" | None"), str)
    words = [declared.option]
    if name == "random_state":
        kind = int
    elif name == "weights":
        kind = Path
    elif {True, False} <= set(declared.choices):
        kind, words = bool, [f"{declared.option}/--no-{declared.option.removeprefix('--')}"]
    elif declared.choices:
        values = [_shown(choice) for choice in declared.choices]
        members = [(re.sub(r"\W", "_", f"_{value}"), value) for value in values]
        kind = StrEnum(name, members)  # type: ignore[misc, no-redef]
    panel = Shape if declared.fixed or name in ("weights", "random_state") else Training
    extra: dict[str, Any] = {"exists": True, "metavar": "FILE"} if kind is Path else {}
    extra |= {"metavar": ""} if kind is bool else {}
    shown = _SHOWN.get(name) or _default(name)
    text = declared.help.partition(". ")[0].rstrip(".") + "."
    text += "".join(f" Or --set {name}={value}." for value in beyond_switch(declared))
    info = panel(*words, help=text, **extra)
    info.show_default = shown
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def _default(name: str) -> str | bool:
    """Return the default as text, for each method if they differ."""
    texts = {}
    for method, entry in METHODS.items():
        if entry.options and name in entry.options.parameters:
            own = defaults(entry.options)
            words = _number(own[name])
            if (first := own.get(f"first_{name}")) not in (None, own[name]):
                words += f" (first learn: {_number(first)})"
            texts[method] = words
    (method, text), *others = texts.items()
    if text in ("None", "False"):
        return False
    if not others:
        return text if method == "lmrc" else f"{text}; {method} only"
    different = [f"{method}: {other}" for method, other in others if other != text]
    return "; ".join([text, *different])


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shown(choice: Any) -> str:
    return "none" if choice is None else str(choice)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given parameters, in the form that classifiers take."""
    present = {name: value for name, value in options.items() if value is not None}
    settings: dict[str, Any] = {
        name: next(c for c in PARAMETERS[name].choices if _shown(c) == v)
        if isinstance(v, StrEnum)
        else v
        for name, v in present.items()
    }
    if "weights" in settings:
        settings["weights"] = str(settings["weights"].absolute())
    return settings
