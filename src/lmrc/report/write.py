"""Make a run folder's report: figures, tables and the page, from its records alone."""

from __future__ import annotations

from pathlib import Path

from lmrc.report import capacity, figures, model
from lmrc.report.build import build
from lmrc.report.capacity_records import read_capacity_records
from lmrc.report.contents import Contents
from lmrc.report.page import assemble
from lmrc.report.records import (
    DESCRIPTION,
    RECORDS,
    Description,
    encoded,
    read_description,
    read_records,
    replace_file,
)

FIGURE_SVG, FIGURE_PNG = "accuracy.svg", "accuracy.png"
TABLE = "table.csv"
PAGE = "report.html"


def write_report(folder: Path) -> Path:
    """Write ``report.html`` and, beside it, each figure as SVG and PNG and each table as CSV.

    Parameters
    ----------
    folder : Path
        Holds ``records.jsonl`` and ``run.json``; the files are written beside them.

    Returns
    -------
    Path
        Of the page.
    """
    return write_contents(folder, *read_contents(folder))


def read_contents(folder: Path) -> tuple[Description, Contents]:
    """Read a run folder, of whatever experiment, and return what its report holds."""
    for name in (DESCRIPTION, RECORDS):
        if not (folder / name).exists():
            raise FileNotFoundError(
                f"{folder} holds no {name}: name a folder that lmrc reproduce or lmrc demo wrote"
            )
    description = read_description(folder)
    if description.experiment == "capacity":
        return description, capacity.build(description, read_capacity_records(folder))
    if description.experiment == model.EXPERIMENT:
        return description, model.build(description, model.read_score(folder))
    return description, build(description, read_records(folder))


def write_contents(folder: Path, description: Description, contents: Contents) -> Path:
    """Write the files of a report; return the path of its page."""
    for name, drawing in contents.drawings.items():
        svg = drawing.to_svg(name)
        replace_file(folder / f"{name}.svg", encoded(figures.svg_file(svg)))
        replace_file(folder / f"{name}.png", figures.to_png(drawing.figure))
    for name, table in contents.tables.items():
        replace_file(folder / f"{name}.csv", encoded(table))
    replace_file(folder / PAGE, encoded(assemble(description, contents)))
    return folder / PAGE
