"""The page of a run: one HTML file that needs nothing else, made from the records alone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

from lmrc.report.build import build
from lmrc.report.contents import Contents
from lmrc.report.html import Section, prose
from lmrc.report.records import Description, RunRecord
from lmrc.report.settings import asked


def render(description: Description, records: Sequence[RunRecord]) -> str:
    """Return the page of class batches as HTML.

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
    return template.substitute(
        title=prose(description.title),
        headline=prose(headline),
        lead=f'<p class="lead">{prose(findings)}</p>' if findings else "",
        notes="".join(f'<p class="caveat">{prose(text)}</p>' for text in contents.notes),
        question=prose(description.question),
        asked=asked(description),
        sections="\n".join(map(_section, contents.sections)),
        settings=contents.settings,
        commands=escape("\n".join(command.words for command in description.commands)),
        environment=contents.environment,
    )


def _section(section: Section) -> str:
    return (
        f'<section aria-labelledby="{section.anchor}">\n'
        f'<h2 id="{section.anchor}">{prose(section.heading)}</h2>\n{section.body}\n</section>\n'
    )
