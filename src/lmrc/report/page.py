"""The page of a run: one HTML file that needs nothing else, made from the records alone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from string import Template

from markupsafe import Markup, escape

from lmrc.report.build import build
from lmrc.report.contents import Contents
from lmrc.report.figures import printable
from lmrc.report.html import Section, joined, prose
from lmrc.report.records import Description, RunRecord
from lmrc.report.settings import asked


def render(description: Description, records: Sequence[RunRecord]) -> str:
    """Return the page of tasks as HTML.

    Parameters
    ----------
    description : Description
        What was asked, and what the run showed.
    records : sequence of RunRecord
        What was measured; at least one.
    """
    return assemble(description, build(description, records))


def assemble(description: Description, contents: Contents) -> str:
    """Return the page of any report as HTML."""
    template = Template(files("lmrc.report").joinpath("page.html").read_text(encoding="utf-8"))
    headline = description.headline or contents.headline or "This run has not ended yet."
    findings = " ".join(description.findings or contents.findings)
    parts = {
        "title": prose(description.title),
        "headline": prose(headline),
        "lead": Markup('<p class="lead">{}</p>').format(prose(findings)) if findings else "",
        "notes": joined(
            Markup('<p class="caveat">{}</p>').format(prose(text)) for text in contents.notes
        ),
        "question": prose(description.question),
        "asked": asked(description),
        "sections": Markup("\n").join(map(_section, contents.sections)),
        "settings": contents.settings,
        "commands": "\n".join(command.words for command in description.commands),
        "environment": contents.environment,
    }
    # What is no Markup is escaped here, whatever it is.
    page = template.substitute({name: escape(part) for name, part in parts.items()})
    return printable(page)


def _section(section: Section) -> Markup:
    return Markup(
        '<section aria-labelledby="{anchor}">\n'
        '<h2 id="{anchor}">{heading}</h2>\n{body}\n</section>\n'
    ).format(anchor=section.anchor, heading=prose(section.heading), body=section.body)
