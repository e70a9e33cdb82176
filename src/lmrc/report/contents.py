"""What a report holds, whatever the experiment: the page and the files beside it show it."""

from __future__ import annotations

from dataclasses import dataclass, field

from markupsafe import Markup

from lmrc.report.html import Drawing, Section


@dataclass(frozen=True)
class Contents:
    """All of a report but the words of its description.

    Attributes
    ----------
    headline : str
        The result in one sentence; empty while the run has not ended.
    findings : list of str
        What the reader sees, sentence by sentence.
    sections : list of Section
        Of the page, in order.
    settings, environment : Markup
        With what the records were made.
    drawings : dict of str to Drawing
        Figures that become files of this name.
    tables : dict of str to str
        CSV that becomes a file of this name.
    markdown : str
        The main table, to print and to paste.
    notes : list of str
        What a reader must know about the data.
    """

    headline: str
    findings: list[str]
    sections: list[Section]
    settings: Markup
    environment: Markup
    markdown: str
    drawings: dict[str, Drawing] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
