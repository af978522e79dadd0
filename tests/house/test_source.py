"""The house rules, held against every file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.house import rules
from tests.house.project import PACKAGE, ROOT, name_of, public_modules, python_files, text_files

# Where everything may be caught, as "file:function": the top of a shell's loop and nothing else.
BROAD_HANDLERS_ALLOWED: frozenset[str] = frozenset()
NAMES_THAT_SAY_NOTHING = frozenset({"utils", "util", "common", "helpers", "misc", "manager", "managers"})

every_file = pytest.mark.parametrize("path", python_files("gavelpy", "tests", "benchmarks", "examples"), ids=name_of)
every_source = pytest.mark.parametrize("path", python_files("gavelpy"), ids=name_of)
every_core = pytest.mark.parametrize("path", python_files("gavelpy/mechanism", "gavelpy/model"), ids=name_of)
every_public = pytest.mark.parametrize("path", public_modules(), ids=name_of)
every_text = pytest.mark.parametrize("path", text_files(), ids=name_of)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@every_file
def test_file_fits_in_four_hundred_lines(path: Path) -> None:
    assert len(read(path).splitlines()) <= rules.FILE_LINES_MAX


@every_file
def test_functions_fit_in_sixty_lines(path: Path) -> None:
    assert rules.long_functions(read(path)) == []


@every_file
def test_file_is_named_for_its_idea(path: Path) -> None:
    assert path.stem not in NAMES_THAT_SAY_NOTHING


@every_source
def test_classes_are_named_for_what_they_are(path: Path) -> None:
    assert rules.managers(read(path)) == []


@every_source
def test_package_does_not_print(path: Path) -> None:
    assert rules.prints(read(path)) == []


@every_source
def test_only_the_top_of_a_shell_catches_everything(path: Path) -> None:
    found = {f"{name_of(path)}:{function}" for function in rules.broad_handlers(read(path))}

    assert found - BROAD_HANDLERS_ALLOWED == set()


@every_core
def test_core_draws_no_random_numbers(path: Path) -> None:
    assert rules.draws(read(path)) == []


@every_public
def test_public_module_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(read(path)))


@every_text
def test_no_file_names_a_path_of_somebodys_machine(path: Path) -> None:
    assert rules.machine_paths(read(path)) == []


def test_every_package_of_tests_has_its_init() -> None:
    folders = {path.parent for path in python_files("tests")}

    assert [name_of(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_broad_handlers_allowed_are_still_there() -> None:
    sources = ((name_of(path), read(path)) for path in python_files("gavelpy"))
    found = {f"{name}:{function}" for name, source in sources for function in rules.broad_handlers(source)}

    assert found >= BROAD_HANDLERS_ALLOWED


def test_files_under_the_rules_include_this_one() -> None:
    assert Path(__file__) in python_files("tests")
    assert PACKAGE / "errors.py" in public_modules()
    assert ROOT / "Makefile" in text_files()
