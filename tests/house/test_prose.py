"""Documents are plain and wrapped, and every page is in the index."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from gavelpy.mechanism.reasons import ReasonKind
from tests.house import prose
from tests.house.project import ROOT, name_of

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TOP = sorted(ROOT.glob("*.md"))
EVERY = [*PAGES, *TOP, *sorted((DOCS / "decisions").glob("*.md"))]
EVERY += [ROOT / "benchmarks" / "RESULTS.md", ROOT / "workloads" / "README.md"]
GLOSSARY = (DOCS / "glossary.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^\| ([^|]+) \| [^|]+ \| (.*) \|$", GLOSSARY, re.MULTILINE)
CODE = [(name or "", module) for _, cell in TERMS for name, module in re.findall(r"(?:`(\w+)` in )?`([\w.]+)`", cell)]


@pytest.mark.parametrize("page", EVERY, ids=name_of)
def test_page_is_wrapped(page: Path) -> None:
    assert prose.wide_lines(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", EVERY, ids=name_of)
def test_page_has_no_odd_words(page: Path) -> None:
    assert prose.odd_words(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_is_in_the_index(page: Path) -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")

    assert page.name in ("README.md", "index.md") or f"({page.name}" in index


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_is_on_the_site(page: Path) -> None:
    site = (DOCS / "index.md").read_text(encoding="utf-8")

    assert page.name in ("README.md", "index.md") or f"\n{page.stem}\n" in site


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as on GitHub and on the site."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", EVERY, ids=name_of)
def test_links_to_headings_lead_to_one(page: Path) -> None:
    links = re.findall(r"\]\(([\w./-]*\.md)#([^)]+)\)", page.read_text(encoding="utf-8"))

    assert [link for link in links if link[1] not in anchors(page.parent / link[0])] == []


@pytest.mark.parametrize(("name", "module"), sorted({pair for pair in CODE if "." in pair[1]}))
def test_glossary_names_code_that_exists(name: str, module: str) -> None:
    found = import_module(module)

    assert not name or hasattr(found, name)


def test_glossary_has_one_row_a_term() -> None:
    terms = [term for term, _ in TERMS if term != "term"]

    assert len(terms) == len(set(terms)) >= 60


def test_troubleshooting_explains_every_reason() -> None:
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) == {kind.value for kind in ReasonKind}


def test_wide_line_is_seen() -> None:
    assert prose.wide_lines("word " * 30) == ["line 1: 150 columns"]


@pytest.mark.parametrize("line", ["| " + "word " * 30 + "|", "    " + "word " * 30, "x" * 150])
def test_line_that_cannot_wrap_may_be_wide(line: str) -> None:
    assert prose.wide_lines(line) == []


def test_fenced_code_may_be_wide() -> None:
    assert prose.wide_lines("```\n" + "word " * 30 + "\n```\n" + "word " * 30) == ["line 4: 150 columns"]


def test_odd_word_is_seen_with_its_line() -> None:
    assert prose.odd_words("Fine.\nThe job who\n`told` goes on.\n```\nsaid\n```\nBeside it.") == [
        "line 2: who",
        "line 3: goes on",
        "line 7: Beside",
    ]


def test_odd_words_of_comments_and_docstrings_are_seen_with_their_lines() -> None:
    source = '"""Fine.\n\nIt is told.\n"""\n\nsaid = "who"  # nobody\n\n\ndef f():\n    """Not `anew`, but lest."""\n'

    assert prose.odd_words_of_source(source) == ["line 3: told", "line 6: nobody", "line 10: lest"]
