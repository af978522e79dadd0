"""Compiled code has a place on every machine, and processes find what others have compiled."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gavelpy.solve import compiled
from gavelpy.solve.prices import table

PROGRAM = """
from gavelpy.solve.compiled import STORES, njit

@njit(cache=True)
def twice(x):
    return 2 * x

print(twice(21), STORES)
"""


def _printed(program: str, directory: Path, **variables: str) -> str:
    """The output of a file of its own: numba stores nothing for code without a file."""
    script = directory / "program.py"
    script.write_text(program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    ran = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_process_without_a_writable_place_compiles_for_itself(tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # no user can make a directory below it
    nowhere = {
        "NUMBA_CACHE_DIR": str(tmp_path / "file" / "cache"),
        "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
    }

    assert _printed(PROGRAM, tmp_path, **nowhere).split() == ["42", "False"]


def test_first_compilation_of_a_kernel_is_announced_once_and_code_of_others_is_not(tmp_path: Path) -> None:
    program = """
from gavelpy.solve.compiled import njit
from gavelpy.solve.compiling import on_first_compilation

on_first_compilation(lambda is_stored: print("announced", is_stored))

def made(module, by):
    def times(x):
        return by * x
    times.__module__ = module
    return njit()(times)

print(made("other", 2)(21))
print(made("gavelpy.example", 3)(14), made("gavelpy.another", 4)(10))
"""

    assert _printed(program, tmp_path).splitlines() == ["42", "announced True", "42 40"]


def test_kernel_that_was_stored_is_not_announced(tmp_path: Path) -> None:
    program = PROGRAM.replace("@njit", "from gavelpy.solve.compiling import on_first_compilation\n@njit").replace(
        "print(twice", "twice.py_func.__module__ = 'gavelpy.solve.compiling'\non_first_compilation(print)\nprint(twice"
    )

    first, second = (_printed(program, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache")) for _ in range(2))

    assert (first, second) == ("True\n42 True\n", "42 True\n")


TOGETHER = """
import sys
from gavelpy.solve.compiled import STORES, njit

@njit(cache=True)
def one_more(x):
    return x + 1

@njit(cache=True)
def twice(x):
    return one_more(x) + x - 1

print(STORES, flush=True)
sys.stdin.readline()
print(twice(21), sum(sum(f.stats.cache_misses.values()) for f in (twice, one_more)))
"""


def test_processes_that_start_together_compile_each_function_once(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(TOGETHER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, str(script)]
    first, second = (
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    for process in (first, second):
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"

    for process in (first, second):
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=120)[0].split() for process in (first, second)]

    assert sorted(printed) == [["42", "0"], ["42", "2"]]
    assert list((tmp_path / "cache").glob("*/program.twice-*.nbi"))


def test_calls_with_literals_share_one_compiled_function() -> None:
    @compiled.njit()
    def either(first: float, is_first: bool) -> float:
        return first if is_first else 0.0

    @compiled.njit()
    def both(first: float, flag: bool) -> float:
        return either(first, True) + either(first, is_first=False) + either(first, flag)

    assert both(2.0, True) == 4.0
    assert len(either.signatures) == 1


def test_process_that_is_stopped_while_it_compiles_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "WAIT_S", 0.1)
    lock = tmp_path / "kernel.lock"
    compile_one = compiled._one_process_at_a_time(lambda signature: signature, lock)

    with lock.open("ab") as other:  # another opening of the file is another holder
        fcntl.flock(other, fcntl.LOCK_EX)

        assert compile_one("x") == "x"
    assert compile_one("y") == "y"


@pytest.mark.parametrize("variable", ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME"])
def test_what_another_process_has_compiled_is_found(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_COMPILED", tmp_path / "package")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    directory = (tmp_path if variable == "NUMBA_CACHE_DIR" else tmp_path / "numba") / "prices_1234"
    directory.mkdir(parents=True)
    monkeypatch.setattr(table, "_is_cached", table._is_cached.__wrapped__)

    before = table._is_cached()
    (directory / "numba_search.columns-1.py311.nbi").touch()

    assert (before, table._is_cached()) == (False, True)


def test_stored_code_is_not_used_after_a_change_of_a_called_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "adding_kernels.py"
    source.write_text(
        "from gavelpy.solve.compiled import njit\n\n\n@njit(cache=True)\ndef more(x):\n    return x + 1\n"
    )

    def hits() -> int:
        spec = importlib.util.spec_from_file_location("adding_kernels", source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert module.more(1) == 2
        return sum(module.more.stats.cache_hits.values())

    assert hits() == 0
    assert hits() == 1
    monkeypatch.setattr(compiled, "modules_stamp", lambda: (("other_kernels.py", 0.0, 0),))
    assert hits() == 0


def test_all_modules_with_compiled_functions_are_compared() -> None:
    package = Path(compiled.__file__).parents[1]
    users = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        if re.search(r"^from gavelpy\.solve\.compiled import .*njit", file.read_text(encoding="utf-8"), re.MULTILINE)
    }

    assert users
    assert users <= {name for name, _, _ in compiled.modules_stamp()}
