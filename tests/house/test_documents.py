"""Statements of the documents about the project are true."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from gavelpy.mechanism.events import Event
from tests.house.project import PACKAGE, ROOT, name_of

DECISIONS = ROOT / "docs" / "decisions"
RECORDS = sorted(DECISIONS.glob("[0-9]*.md"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TARGETS = {
    "demo",
    "docs",
    "test",
    "test-slow",
    "mutate",
    "check",
    "bench",
    "bench-all",
    "bench-guard",
    "generate",
    "help",
    "clean",
}
RECORD_SECTIONS = ["Context", "Decision", "Alternatives", "Consequences"]
PLANNED = "(planned)"


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def tree() -> dict[str, bool]:
    """Folders (with a slash) and modules named in ARCHITECTURE's tree, each with whether it should exist already."""
    block = read(ROOT / "ARCHITECTURE.md").split("## The tree", 1)[1].split("##", 1)[0]
    top = re.findall(r"^    [├└]── ([\w/.]+)(.*)$", block, re.MULTILINE)
    inner = re.findall(r"^    │   [├└]── ([\w/.]+)(.*)$", block, re.MULTILINE)
    named = [*top, *((f"gavelpy/{name}", rest) for name, rest in inner)]
    return {name: PLANNED not in rest for name, rest in named if name.endswith(("/", ".py"))}


def requirements() -> list[str]:
    """Normalised names of the requirements of the library, its extras and its developers, from pyproject.toml."""
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(line for extra in extras.values() for line in extra)]
    return [normalised(re.match(r"[\w.-]+", line)[0]) for line in needed]  # each has a name


def pins() -> dict[str, str]:
    """Exact version of each pinned package by its normalised name."""
    lines = (line for line in read(ROOT / "constraints.txt").splitlines() if line and not line.startswith("#"))
    return {normalised(name): version for name, version in (line.split("==") for line in lines)}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", [name for name, built in tree().items() if built])
def test_what_the_architecture_names_is_there(name: str) -> None:
    assert (ROOT / name).exists()


def test_what_the_architecture_calls_planned_is_not_there_yet() -> None:
    planned = [name for name, built in tree().items() if not built]

    assert [name for name in planned if list((ROOT / name).rglob("*.py"))] == []


def test_architecture_names_every_package() -> None:
    packages = {f"gavelpy/{init.parent.name}/" for init in PACKAGE.glob("*/__init__.py")}
    modules = {f"gavelpy/{path.name}" for path in PACKAGE.glob("*.py") if path.name != "__init__.py"}

    assert (packages | modules) - set(tree()) == set()


def test_architecture_names_every_event() -> None:
    row = next(line for line in read(ROOT / "ARCHITECTURE.md").splitlines() if line.startswith("| `Event` |"))

    assert set(re.findall(r"\w+", row)) >= {kind.__name__ for kind in get_args(Event)}


def test_changelog_has_a_place_for_what_is_unreleased() -> None:
    assert re.search(r"^## Unreleased$", read(ROOT / "CHANGELOG.md"), re.MULTILINE)


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_decision_record_is_in_the_index(record: Path) -> None:
    assert f"({record.name})" in read(DECISIONS / "README.md")


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_decision_record_follows_the_template(record: Path) -> None:
    text = read(record)

    assert re.match(rf"# {record.name[:4]}\. \S", text)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == RECORD_SECTIONS
    assert len(text.splitlines()) <= 60, "a record is one page"


def test_decision_records_are_numbered_without_gaps() -> None:
    assert [int(record.name[:4]) for record in RECORDS] == list(range(1, len(RECORDS) + 1))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)[^)]*\)", read(document))

    assert [link for link in links if not (document.parent / link).is_file()] == []  # the site has no directories


def test_every_requirement_is_pinned() -> None:
    assert sorted(set(requirements()) - set(pins())) == []


def test_the_project_does_not_pin_itself() -> None:
    assert "gavelpy" not in pins()


def test_make_help_lists_the_targets_a_reader_needs() -> None:
    described = re.findall(r"^([a-z-]+):.*## \S", read(ROOT / "Makefile"), re.MULTILINE)

    assert set(described) == TARGETS


def test_ci_runs_check_and_test_and_stops_at_the_first_failure() -> None:
    script = read(ROOT / ".ci" / "run")

    assert re.findall(r"^(?:make|set|export) .*$", script, re.MULTILINE) == [
        "set -euo pipefail",
        "export CI=true",
        "make check",
        "make test",
    ]
