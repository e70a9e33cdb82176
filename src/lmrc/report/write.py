"""Make a run folder's report: the figure, the table and the page, from its records alone."""

from __future__ import annotations

from pathlib import Path

from lmrc.report import figures, page
from lmrc.report.records import read_description, read_records, replace_file
from lmrc.report.summary import csv_table, summarize_methods

FIGURE_SVG, FIGURE_PNG = "accuracy.svg", "accuracy.png"
TABLE = "table.csv"
PAGE = "report.html"


def write_report(folder: Path) -> Path:
    """Write ``accuracy.svg``, ``accuracy.png``, ``table.csv`` and ``report.html``.

    Parameters
    ----------
    folder : Path
        Holds ``records.jsonl`` and ``run.json``; the files are written beside them.

    Returns
    -------
    Path
        Of the page.
    """
    records = read_records(folder)
    html = page.render(read_description(folder), records)
    summaries = summarize_methods(records)
    figure = figures.accuracy_over_batches(summaries)
    svg = figures.to_svg(
        figure, name="accuracy", description="Accuracy over all seen classes after each class batch"
    )
    replace_file(folder / FIGURE_SVG, figures.svg_file(svg).encode())
    replace_file(folder / FIGURE_PNG, figures.to_png(figure))
    replace_file(folder / TABLE, csv_table(summaries).encode())
    replace_file(folder / PAGE, html.encode())
    return folder / PAGE
