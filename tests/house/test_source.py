"""The house rules, applied to every file."""

from __future__ import annotations

import ast
import functools
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from tests.house import prose, rules
from tests.house.project import PACKAGE, ROOT, name_of, public_modules, python_files, text_files

# Functions that may catch every exception, as "file:function": the top of a shell's loop and nothing else.
BROAD_HANDLERS_ALLOWED: frozenset[str] = frozenset()
NAMES_THAT_SAY_NOTHING = frozenset({"utils", "util", "common", "helpers", "misc", "manager", "managers"})
SMALL_LINES = 60

Rule = Callable[[str], list[str]]

ALL = python_files("gavelpy", "tests", "benchmarks", "examples")
SOURCES = python_files("gavelpy")
CORE = python_files("gavelpy/mechanism", "gavelpy/model")
RULES: dict[Rule, frozenset[Path]] = {
    rules.too_many_lines: frozenset(ALL),
    rules.long_functions: frozenset(ALL),
    rules.managers: frozenset(SOURCES),
    rules.prints: frozenset(SOURCES),
    rules.broad_handlers: frozenset(SOURCES),
    rules.draws: frozenset(CORE),
    rules.no_docstring: frozenset(public_modules()),
    prose.odd_words_of_source: frozenset(ALL),
}


@functools.cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def violations(path: Path) -> dict[Rule, list[str]]:
    """What a file violates of each rule. One file at a time, because the trees of all files are too many to keep.

    It finds the names of a file of the package, too, as long as there is a tree.
    """
    if path in RULES[rules.managers]:
        names(path)
    return {rule: rule(read(path)) for rule, paths in RULES.items() if path in paths}


@functools.cache
def names(path: Path) -> tuple[list[str], list[ast.ImportFrom]]:
    """The classes that a file defines, and what it imports."""
    nodes = list(ast.walk(rules.parsed(read(path))))
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    return classes, [node for node in nodes if isinstance(node, ast.ImportFrom)]


def broken(rule: Rule) -> dict[str, list[str]]:
    """Violations of the rule by file: one test per rule, because one per file and rule would be thousands."""
    found = {name_of(path): violations(path)[rule] for path in RULES[rule]}
    return {name: faults for name, faults in found.items() if faults}


def test_files_fit_in_four_hundred_lines() -> None:
    assert broken(rules.too_many_lines) == {}


def test_functions_fit_in_sixty_lines() -> None:
    assert broken(rules.long_functions) == {}


def test_files_are_named_for_their_ideas() -> None:
    assert [name_of(path) for path in ALL if path.stem in NAMES_THAT_SAY_NOTHING] == []


def test_classes_are_named_for_what_they_are() -> None:
    assert broken(rules.managers) == {}


def test_public_class_names_are_unique() -> None:
    counts = Counter(name for path in SOURCES for name in names(path)[0] if not name.startswith("_"))

    assert [name for name, count in counts.items() if count > 1] == []


def test_small_modules_have_more_than_one_importer() -> None:
    """A module of under 60 lines with a single importer belongs in that importer."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in SOURCES}
    importers = defaultdict(set)
    for importer, path in modules.items():
        for node in names(path)[1]:
            if node.module:
                for name in {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)} & modules.keys():
                    importers[name].add(importer)

    small = {name for name, path in modules.items() if len(read(path).splitlines()) < SMALL_LINES}
    assert [name for name in sorted(small) if len(importers[name]) == 1 and not name.endswith("__main__")] == []


def test_comments_and_docstrings_have_no_odd_words() -> None:
    assert broken(prose.odd_words_of_source) == {}


def test_package_does_not_print() -> None:
    assert broken(rules.prints) == {}


def test_only_the_top_of_a_shell_catches_everything() -> None:
    found = {f"{name}:{function}" for name, functions in broken(rules.broad_handlers).items() for function in functions}

    assert found == BROAD_HANDLERS_ALLOWED


def test_core_draws_no_random_numbers() -> None:
    assert broken(rules.draws) == {}


def test_public_modules_have_a_docstring() -> None:
    assert broken(rules.no_docstring) == {}


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    found = {name_of(path): rules.machine_paths(read(path)) for path in text_files()}

    assert {name: paths for name, paths in found.items() if paths} == {}


def test_every_package_of_tests_has_its_init() -> None:
    folders = {path.parent for path in python_files("tests")}

    assert [name_of(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_files_under_the_rules_include_this_one() -> None:
    assert Path(__file__) in python_files("tests")
    assert PACKAGE / "errors.py" in public_modules()
    assert ROOT / "Makefile" in text_files()
