"""The house rules, applied to every file."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from tests.house import rules
from tests.house.project import PACKAGE, ROOT, name_of, public_modules, python_files, text_files

# Functions that may catch every exception, as "file:function": the top of a shell's loop and nothing else.
BROAD_HANDLERS_ALLOWED: frozenset[str] = frozenset()
NAMES_THAT_SAY_NOTHING = frozenset({"utils", "util", "common", "helpers", "misc", "manager", "managers"})

Rule = Callable[[str], list[str]]

ALL = python_files("gavelpy", "tests", "benchmarks", "examples")
SOURCES = python_files("gavelpy")
CORE = python_files("gavelpy/mechanism", "gavelpy/model")


@functools.cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def broken(rule: Rule, paths: list[Path]) -> dict[str, list[str]]:
    """Violations of the rule by file: one test per rule, because one per file and rule would be thousands."""
    found = {name_of(path): rule(read(path)) for path in paths}
    return {name: faults for name, faults in found.items() if faults}


def test_files_fit_in_four_hundred_lines() -> None:
    assert broken(rules.too_many_lines, ALL) == {}


def test_functions_fit_in_sixty_lines() -> None:
    assert broken(rules.long_functions, ALL) == {}


def test_files_are_named_for_their_ideas() -> None:
    assert [name_of(path) for path in ALL if path.stem in NAMES_THAT_SAY_NOTHING] == []


def test_classes_are_named_for_what_they_are() -> None:
    assert broken(rules.managers, SOURCES) == {}


def test_package_does_not_print() -> None:
    assert broken(rules.prints, SOURCES) == {}


def test_only_the_top_of_a_shell_catches_everything() -> None:
    found = {
        f"{name}:{function}"
        for name, functions in broken(rules.broad_handlers, SOURCES).items()
        for function in functions
    }

    assert found == BROAD_HANDLERS_ALLOWED


def test_core_draws_no_random_numbers() -> None:
    assert broken(rules.draws, CORE) == {}


def test_public_modules_have_a_docstring() -> None:
    assert broken(rules.no_docstring, public_modules()) == {}


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    assert broken(rules.machine_paths, text_files()) == {}


def test_every_package_of_tests_has_its_init() -> None:
    folders = {path.parent for path in python_files("tests")}

    assert [name_of(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_files_under_the_rules_include_this_one() -> None:
    assert Path(__file__) in python_files("tests")
    assert PACKAGE / "errors.py" in public_modules()
    assert ROOT / "Makefile" in text_files()
