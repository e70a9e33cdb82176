"""From a run folder to its report: one HTML page, figures and tables, from the records alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from markupsafe import Markup, escape

from lmrc.methods.catalog import title_of
from lmrc.report import ablation, capacity, figures, incremental, model, rehearsal, suppression
from lmrc.report.beside import Beside, compared, find_beside, summaries_beside
from lmrc.report.html import Contents, Section, joined, prose
from lmrc.report.records import (
    DESCRIPTION,
    RECORDS,
    Command,
    Description,
    RunRecord,
    by_method_and_seed,
    encoded,
    is_complete,
    name_runs,
    read_description,
    read_lines,
    read_records,
)
from lmrc.report.sections import metric_of
from lmrc.report.settings import recipe_section
from lmrc.report.summary import summarize_methods, with_exemplars
from lmrc.store.files import write_atomically

PAGE = "report.html"

#: By experiment; those of other names (the demo, your own) are shown as `incremental` is.
BUILDERS: dict[str, Callable[[Description, Sequence[RunRecord]], Contents]] = {
    "softmax-suppression": suppression.build,
    "rehearsal": rehearsal.build,
    "consolidation": incremental.build_consolidation,
    "heads": incremental.build_heads,
    "ablation": ablation.build,
    "pretrained": ablation.build_pretrained,
}

#: Title and seed of a method's run.
TitleAndSeed = tuple[str, int]


# --- Files ----------------------------------------------------------------------------------------


def write_report(folder: Path, *, pdf: bool = False) -> tuple[Path, Contents]:
    """Write ``report.html`` and, beside it, each figure as SVG and PNG and each table as CSV.

    From ``records.jsonl`` and ``run.json`` of the folder; figures as PDF, too, if wanted. Returns
    the path of the page, and what it contains.
    """
    try:
        description, contents = read_contents(folder)
        page = assemble(description, contents)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"{folder} cannot be shown ({type(error).__name__}: {error}): its {DESCRIPTION} or "
            f"{RECORDS} is not as lmrc writes it. Restore it, or run the experiment again in "
            "another folder."
        ) from error
    for name, drawing in contents.drawings.items():
        svg = drawing.to_svg(name)
        write_atomically(folder / f"{name}.svg", encoded(figures.svg_file(svg)))
        write_atomically(folder / f"{name}.png", figures.to_png(drawing.figure))
        if pdf:
            write_atomically(folder / f"{name}.pdf", figures.to_pdf(drawing.figure))
    for name, table in contents.tables.items():
        write_atomically(folder / f"{name}.csv", encoded(table))
    write_atomically(folder / PAGE, encoded(page))
    return folder / PAGE, contents


def read_contents(folder: Path) -> tuple[Description, Contents]:
    """Read a run folder, of whatever experiment, and return the contents of its report."""
    for name in (DESCRIPTION, RECORDS):
        if not (folder / name).exists():
            raise FileNotFoundError(
                f"{folder} holds no {name}: name a folder that lmrc reproduce or lmrc demo wrote"
            )
    description = read_description(folder)
    if description.experiment == "capacity":
        return description, capacity.build(description, read_lines(folder, capacity.CapacityRecord))
    if description.experiment == model.EXPERIMENT:
        return description, model.build(description, model.read_score(folder))
    records = read_records(folder)
    return description, build(description, records, find_beside(folder, description, records))


# --- The page -------------------------------------------------------------------------------------


def render(description: Description, records: Sequence[RunRecord]) -> str:
    """Return the page of runs over tasks as HTML."""
    return assemble(description, build(description, records))


def assemble(description: Description, contents: Contents) -> str:
    """Return the page of any report as HTML."""
    template = Template(files("lmrc.report").joinpath("page.html").read_text(encoding="utf-8"))
    headline = description.headline or contents.headline or "This run is not finished."
    findings = " ".join(description.findings or contents.findings)
    parts = {
        "title": prose(description.title),
        "headline": prose(headline),
        "lead": Markup('<p class="lead">{}</p>').format(prose(findings)) if findings else "",
        "notes": joined(
            Markup('<p class="caveat">{}</p>').format(prose(text)) for text in contents.notes
        ),
        "question": prose(description.question),
        "recipe": recipe_section(description),
        "sections": Markup("\n").join(map(_section, contents.sections)),
        "settings": contents.settings,
        "commands": "\n".join(command.words for command in description.commands),
        "environment": contents.environment,
    }
    # All that is no Markup is escaped here.
    page = template.substitute({name: escape(part) for name, part in parts.items()})
    return figures.printable(page)


def bare_page(title: str, body: Markup) -> str:
    """Return a page in the style of a report, with a body of one's own."""
    template = files("lmrc.report").joinpath("page.html").read_text(encoding="utf-8")
    head = Template(template.partition("<main>")[0]).substitute(title=escape(title))
    page = Markup(head)  # noqa: S704
    page += Markup("<main>\n{}\n</main>\n</body>\n</html>\n").format(body)
    return figures.printable(page)


def _section(section: Section) -> Markup:
    return Markup(
        '<section aria-labelledby="{anchor}">\n'
        '<h2 id="{anchor}">{heading}</h2>\n{body}\n</section>\n'
    ).format(anchor=section.anchor, heading=prose(section.heading), body=section.body)


# --- Contents of runs over tasks ------------------------------------------------------------------


def build(
    description: Description, records: Sequence[RunRecord], beside: Beside | None = None
) -> Contents:
    """Return the contents of the report of runs over tasks; at least one record is needed.

    There is no headline before all runs are finished.
    """
    if not by_method_and_seed(records):
        raise ValueError("there are no records to report; run the experiment first.")
    description, records, dropped = _without_abandoned(description, records)
    # A note on the data means that they are not the paper's: its numbers do not compare.
    notes = list(dict.fromkeys(note for r in records if (note := r.extra.get("data_note"))))
    shown = replace(description, paper={}) if notes else description
    ordered = in_recipe_order(records, description.recipe)
    builder = BUILDERS.get(description.experiment, incremental.build)
    own = summarize_methods(ordered, metric_of(description))
    others = summaries_beside(beside, own[0]) if len(own) == 1 else {}
    if builder is incremental.build:
        contents = incremental.build(shown, ordered, list(others.values()))
    else:
        contents = builder(shown, ordered)
    if not _is_finished(description, records):
        contents = replace(contents, headline="", findings=[])
    if len(own) == 1 and builder in (incremental.build, rehearsal.build):
        contents = compared(contents, own[0], others, beside.folder if beside else "")
    notes += dropped
    return replace(contents, notes=notes, markdown="\n\n".join([contents.markdown, *notes]))


def in_recipe_order(records: Iterable[RunRecord], recipe: Mapping[str, Any]) -> list[RunRecord]:
    """Sort records by method, in the order of the recipe.

    Parallel runs finish in any order, and a page is in the order of its records. All methods with
    the first number of exemplars come before all with the next. Methods that the recipe does not
    name come last.
    """
    titles = _titles(recipe.get("methods") or [], recipe)
    planned = [
        with_exemplars(title, memory, recipe.get("total"))
        for memory in recipe.get("memory") or [0]
        for title in titles.values()
    ]
    position = {title: i for i, title in reversed([*enumerate(planned)])}
    return sorted(records, key=lambda record: position.get(record.method, len(planned)))


def _titles(methods: Iterable[str], recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the titles of some methods of a recipe; looking one up is slow."""
    return {method: title_of(method, recipe.get("variants", {})) for method in methods}


def _runs_of(commands: Sequence[Command], recipe: Mapping[str, Any]) -> list[set[TitleAndSeed]]:
    """Return the runs of each command."""
    titles = _titles({method for command in commands for method in command.methods}, recipe)
    return [
        {
            (with_exemplars(titles[method], memory, recipe.get("total")), seed)
            for method, memory, seed in command.runs
        }
        for command in commands
    ]


def _complete(records: Iterable[RunRecord]) -> dict[TitleAndSeed, bool]:
    """Tell of each run in the records whether it covers the whole stream."""
    return {
        (method, seed): is_complete([line.record for line in run])
        for method, seeds in by_method_and_seed(records).items()
        for seed, run in seeds.items()
    }


def _is_finished(description: Description, records: Iterable[RunRecord]) -> bool:
    """Tell whether the runs of all commands are in the records, and all runs there are complete."""
    complete = _complete(records)
    planned = set().union(*_runs_of(description.commands, description.recipe))
    return planned <= set(complete) and all(complete.values())


def _without_abandoned(
    description: Description, records: Sequence[RunRecord]
) -> tuple[Description, Sequence[RunRecord], list[str]]:
    """Leave out unfinished runs of a command that a later, finished one with fewer runs replaces.

    So a user can start five seeds, stop, and run three. Also returns a note about it: none or one.
    """
    complete = {run for run, is_whole in _complete(records).items() if is_whole}
    commands = description.commands
    planned = _runs_of(commands, description.recipe)
    kept = [
        i
        for i, command in enumerate(commands)
        if not any(
            planned[j] <= complete and commands[j].runs < command.runs
            for j in range(i + 1, len(commands))
        )
    ]
    abandoned = sorted(set().union(*planned) - set().union(*(planned[i] for i in kept)) - complete)
    shown = [record for record in records if (record.method, record.seed) not in abandoned]
    if not abandoned or not shown:
        return description, records, []
    note = f"Unfinished runs of an earlier command are not included here: {name_runs(abandoned)}."
    return replace(description, commands=[commands[i] for i in kept]), shown, [note]
