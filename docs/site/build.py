"""Build the documentation site: ``python docs/site/build.py OUT``; ``make docs`` calls it.

The pages of ``docs/`` and those of the repository that they lead to (README, results, benchmarks,
sources) are collected in a folder, from which Sphinx makes the site. Links are written as a reader
of the repository needs them; here they are rewritten for the site. A link that leads nowhere ends
the build. The references of Python, of the command line and of parameters are made from the code.
"""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
import posixpath
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = {  # in the repository: on the site
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "results/README.md": "results/index.md",
    "results/provenance.md": "results/provenance.md",
    "results/search/README.md": "results/search/index.md",
    "results/QUEUE.md": "results/queue.md",
}
CONTENTS = {
    "Tutorials": ["tutorial", "tutorials/browser", "tutorials/arrays", "tutorials/compare"],
    "How-to": [
        "how-to/choose",
        "how-to/few-images",
        "how-to/check",
        "how-to/unknown",
        "how-to/known-class-again",
        "how-to/exemplars",
        "how-to/backbone",
        "how-to/larger-than-memory",
        "new-method",
        "serve",
        "deploy",
        "cluster",
    ],
    "Reference": [
        "reference/python",
        "reference/parameters",
        "reference/cli",
        "reference/metrics",
        "reference/records",
        "format",
    ],
    "Explanation": [
        "paper",
        "beyond",
        "beyond-measured",
        "trust",
        "reproduction",
        "privacy",
        "reliability",
        "scale",
    ],
    "Results": [
        "results",
        "results/index",
        "results/search/index",
        "results/provenance",
        "results/pages",
        "results/queue",
        "benchmarks",
    ],
    "More": ["glossary", "references", "contributing", "changelog"],
}
#: Pages of the Python reference: title, what it says at first, and names. A name of the package
#: that is on none of them ends the build.
PYTHON = {
    "lmrc": (
        "LMRC: the paper's classifier",
        "",
        ["LMRCClassifier"],
    ),
    "lmrc-plus": (
        "LMRC+: the stronger classifier",
        "How it works: [LMRC+](../beyond.md).",
        ["LMRCPlusClassifier"],
    ),
    "baselines": (
        "Baselines",
        "Used as [LMRC](lmrc.md); they share the [parameters of all methods](parameters.md).",
        ["FineTuneClassifier", "LwFClassifier", "EWCClassifier", "JointClassifier"],
    ),
    "saving": (
        "Load a model",
        "Every classifier has `save`. What is in the file: [a model on disk](../format.md).",
        ["load"],
    ),
    "data": (
        "Data sets and streams",
        "",
        ["load_dataset", "Dataset", "ClassStream", "data.stream.Task"],
    ),
    "evaluation": (
        "Evaluation",
        "Formulas: [metrics](metrics.md).",
        [
            "evaluate",
            "summarize",
            "evaluation.run.TaskRecord",
            "evaluation.metrics",
            "evaluation.trust",
        ],
    ),
    "labels": (
        "Label vectors",
        "How many fit: [LMRC in pictures](../paper.md).",
        ["LabelMapping", "capacity", "labels.theory.expected"],
    ),
    "method": (
        "A method of your own",
        "Step by step: [your own method in one page](../new-method.md).",
        [
            "IncrementalClassifier",
            "methods.parameters.parameter",
            "nets.growing.GrowingLinear",
            "nets.multihead.MultiHead",
            "checks",
        ],
    ),
    "errors": (
        "Errors and warnings",
        "",
        ["CapacityError", "CapacityWarning", "ModelFileError", "TrainingError"],
    ),
}
#: Members of classifiers that users need; those that methods define are on the page of these.
USED = {
    "lmrc": "partial_fit, fit, predict, predict_topk, similarities, decision_function, score, "
    "forget, rename, save, exemplars_per_class",
}
USED["lmrc-plus"] = (
    f"{USED['lmrc']}, predict_proba, unknown_scores, unknown_threshold, outputs, "
    "similarities_by_rule, prediction_rule_, prediction_rules_, is_calibrated_, augmentation_"
)
SHOWN_AS_CODE = {".py": "python", ".toml": "toml", ".bib": "bibtex", ".cff": "yaml"}
LINK = re.compile(r"(\]\()(?![a-z]+:|#|<)([^)#\s]+)((?:#[^)\s]*)?\))")


class BrokenLinkError(Exception):
    """A page links to a file that does not exist."""


def collect(folder: Path) -> None:
    """Write all pages and files of the site to an empty folder."""
    pages = dict(PAGES)
    for path in sorted((ROOT / "docs").rglob("*")):
        source = str(path.relative_to(ROOT))
        if path.suffix in (".md", ".ipynb"):
            pages[source] = source.removeprefix("docs/").replace(".ipynb", ".md")
    generated = {
        "reference/cli.md": "".join(_command_line()),
        "reference/parameters.md": "".join(_parameters()),
        **dict(_python()),
        "results/pages.md": "".join(_reports()),
    }
    linked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "results").rglob("*")
        if path.suffix in (".html", ".png")
    }
    for source, target in pages.items():
        text = (ROOT / source).read_text("utf-8")
        if source.endswith(".ipynb"):
            text, linked = "".join(_notebook(text, Path(source).name)), linked | {source}
        text, files = _with_site_links(text, source, target, {*pages.values(), *generated})
        linked |= files
        _write(folder / target, text + (_table_of_contents() if target == "index.md" else ""))
    for target, text in generated.items():
        _write(folder / target, text)
    for source in sorted(linked):
        target = folder / _place(source)
        if target.suffix == ".md":  # a source file, as a page
            code, language = (ROOT / source).read_text("utf-8"), SHOWN_AS_CODE[Path(source).suffix]
            _write(target, f"---\norphan: true\n---\n# {source}\n\n````{language}\n{code}\n````\n")
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / source, target)


def build(out: Path) -> int:
    """Build the site in a folder; return the exit code of Sphinx, whose warnings are errors."""
    from sphinx.cmd.build import build_main

    with tempfile.TemporaryDirectory() as folder:
        collect(Path(folder))
        shutil.copyfile(Path(__file__).with_name("conf.py"), Path(folder, "conf.py"))
        Path(folder, "_static").mkdir()
        shutil.copyfile(Path(__file__).with_name("site.css"), Path(folder, "_static", "site.css"))
        code = build_main(["-b", "html", "-q", "-W", "--keep-going", folder, str(out)])
        for path in Path(folder).rglob("*"):  # what Sphinx does not know: reports, notebooks, data
            target = out / path.relative_to(folder)
            if path.suffix in (".html", ".png", ".ipynb", ".json") and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
    return code


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _place(source: str) -> str:
    """Return the place on the site of a file of the repository."""
    if source in PAGES:
        return PAGES[source]
    suffix = Path(source).suffix
    if suffix in SHOWN_AS_CODE:
        return f"source/{source.removesuffix(suffix)}-{suffix[1:]}.md"
    return source.removeprefix("docs/")


def _with_site_links(
    text: str, source: str, target: str, generated: set[str]
) -> tuple[str, set[str]]:
    """Return a page with links as the site needs them, and the files that it links to."""
    files: set[str] = set()

    def rewritten(link: re.Match[str]) -> str:
        to = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        if to.endswith(".ipynb") and to != source:
            to = to.replace(".ipynb", ".md")
        path = ROOT / to
        if path.is_dir():  # of results or of code: its page, or the list of all folders
            report = (path / "report.html").exists()
            to = f"{to}/report.html" if report else "results/provenance.md"
        place = _place(to)
        if place not in generated:
            if not (ROOT / to).is_file():
                raise BrokenLinkError(f"{source} links to {link[2]}, which does not exist")
            files.add(to)
        return link[1] + posixpath.relpath(place, posixpath.dirname(target) or ".") + link[3]

    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)  # code is left as it is
    parts = [part if part.startswith("```") else LINK.sub(rewritten, part) for part in parts]
    return "".join(parts), files


def _table_of_contents() -> str:
    """Return the table of contents of the sidebar; the page itself does not show it."""
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(names) + "\n```\n"
        for title, names in CONTENTS.items()
    )


def _notebook(text: str, name: str) -> Iterator[str]:
    """Yield the page of a notebook: text, code, and what the code printed."""
    cells: list[dict[str, Any]] = json.loads(text)["cells"]
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield f"{source}\n\n"
            continue
        yield f"```python\n{source}\n```\n\n"
        for output in cell["outputs"]:
            yield f"```text\n{''.join(output['text'])}```\n\n"
    yield f"[This page as a notebook]({name})\n"


def _reports() -> Iterator[str]:
    """Yield the list of all report pages of results."""
    from lmrc.report.index import reports_in

    yield "# All result pages\n\nMade by `lmrc reproduce` and `lmrc report`, from the records "
    yield "beside them. [Provenance](provenance.md) says what each is, with commit and hardware.\n"
    group = ""
    for entry in reports_in(ROOT / "results"):
        if entry.place.partition("/")[0] != group:
            group = entry.place.partition("/")[0]
            yield f"\n## {group}\n\n"
        link = f"[{entry.place}]({entry.place}/report.html)"
        yield f"- {link}: {entry.headline or entry.title} *({entry.title})*\n"


def _command_line() -> Iterator[str]:
    """Yield the reference of the command line."""
    import typer.main
    from typer.cli import get_docs_for_click

    from lmrc.cli import app

    command = typer.main.get_command(app)
    text = get_docs_for_click(
        obj=command, ctx=typer.Context(command, info_name="lmrc"), name="lmrc"
    )
    yield "# Command line\n\nMade from the help texts, which `lmrc COMMAND --help` shows, too.\n\n"
    for name, one in command.commands.items():  # typer cuts these lines
        summary = (one.help or "").partition("\n\n")[0].replace("\n", " ")
        text = re.sub(rf"^\* `{name}`: .*$", f"* `{name}`: {summary}", text, flags=re.M)
    yield re.sub(r"^# .*\n", "", text, count=1)


def _python() -> Iterator[tuple[str, str]]:
    """Yield the pages of the Python reference, with what they say, and their index."""
    import lmrc

    listed = {name for _, _, names in PYTHON.values() for name in names}
    if missing := {*lmrc.__all__} - {"__version__"} - listed:
        raise LookupError(f"no page of the Python reference has {', '.join(sorted(missing))}")
    index = "# Python\n\nClasses and functions without a dot are imported from `lmrc` itself.\n"
    for page, (title, text, names) in PYTHON.items():
        entries = ""
        index += f"\n## [{title}]({page}.md)\n\n| | |\n| --- | --- |\n"
        for name in names:
            found = pkgutil.resolve_name(f"lmrc.{name}")
            kind = _kind(found)
            full = found.__name__ if kind == "module" else f"lmrc.{name}"
            summary = (inspect.getdoc(found) or "").partition("\n")[0]
            index += f"| {{py:obj}}`{name} <{full}>` | {summary} |\n"
            entries += f".. auto{kind}:: {full}\n"
            if page in USED:
                entries += "\n" + "".join(_members(found, USED[page].split(", ")))
            elif page != "baselines" and kind != "function":
                entries += "   :members:\n"
        body = f"\n{text}\n" * bool(text) + f"\n```{{eval-rst}}\n{entries}```\n"
        yield f"reference/{page}.md", f"# {title}\n{body}"
    pages = "\n".join(PYTHON)
    yield "reference/python.md", f"{index}\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"


def _kind(found: Any) -> str:
    """Return what autodoc calls an object."""
    if inspect.ismodule(found):
        return "module"
    if inspect.isclass(found):
        return "exception" if issubclass(found, BaseException) else "class"
    return "function"


def _members(cls: type, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        found = inspect.getattr_static(cls, name)
        kind = "property" if isinstance(found, property) else "method"
        yield f"   .. auto{kind}:: lmrc.{cls.__name__}.{name}\n"


def _parameters() -> Iterator[str]:
    """Yield lists of parameters: those that all methods have, then those of each."""
    import lmrc
    from lmrc.methods.declared import TrainingParameters

    common = TrainingParameters.parameters
    yield "# Parameters\n\nMade from the code. Where an option is named, `lmrc learn` has it; "
    yield "`--set NAME=VALUE` sets any. *Fixed*: cannot be changed after the first task.\n"
    yield "\n## All methods\n\n"
    yield from _list(common)
    for name in ("LMRC", "LMRCPlus", "LwF", "EWC", "FineTune", "Joint"):
        declared = getattr(lmrc, f"{name}Classifier").parameters
        own = {key: value for key, value in declared.items() if value != common.get(key)}
        yield f"\n## {name}Classifier\n\n"
        if own:
            yield "What it adds, or has another default for:\n\n"
            yield from _list(own)
        else:
            yield "Those of all methods.\n"


def _list(parameters: Mapping[str, Any]) -> Iterator[str]:
    for name, declared in parameters.items():
        yield f"`{name}` = `{declared.default!r}`\n: {declared.help}"
        if declared.choices and set(declared.choices) != {True, False}:
            yield f" One of {', '.join(f'`{choice!r}`' for choice in declared.choices)}."
        yield f" Option `{declared.option}`." if declared.option else ""
        yield " *Fixed.*\n\n" if declared.fixed else "\n\n"


if __name__ == "__main__":
    os.environ["TERM"] = "dumb"  # help texts without colour codes
    sys.exit(build(Path(sys.argv[1])))
