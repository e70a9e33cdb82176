"""The BibTeX file and the page of references name the same works."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = " ".join((DOCS / "references.md").read_text("utf-8").split())
BIB = (DOCS / "references.bib").read_text("utf-8")


def test_every_work_of_the_bibliography_is_on_the_page_and_the_reverse():
    titles = set(re.findall(r"title = \{\{(.*?)\}\}", BIB))
    for title in titles:
        assert f"*{title}.*" in PAGE
    shown = re.findall(r"(?<!\*)\*([A-Z][^*]{8,}?)\.\*", PAGE)
    assert {title.strip() for title in shown} <= titles


def test_arxiv_ids_agree():
    assert set(re.findall(r"eprint = \{([\d.]+)\}", BIB)) == set(
        re.findall(r"arXiv:([\d.]+)\]", PAGE)
    )


def test_keys_are_unique():
    keys = re.findall(r"^@\w+\{(\w+),", BIB, re.M)
    assert len(keys) == len(set(keys)) == BIB.count("\n@")
