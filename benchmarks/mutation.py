"""Mutation tests: how many defects the fast tests find: `make mutate MODULE=mechanism/reservations.py`, by mutmut.

Each mutant is one small change of the module. It is killed if a fast test of the module's package (tests/mechanism for
gavelpy/mechanism) fails or takes far too long, and survives otherwise. The survivors are printed as differences: each
is a missing test, or a change without effect.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("gavelpy", "tests", "workloads", "pyproject.toml")
DIGITS = "3702581469"  # last digits of mutant numbers; the first ones are used for a partial run
NOT_MUTATED = (r"raise \w+", r"logger\.\w+", r"\bassert\b")  # message texts, and checks of our own invariants


def run(options: Sequence[str]) -> None:
    """Prints, for each module, how many of its mutants are killed, and the survivors."""
    arguments = parsed(options)
    for module in arguments.modules:
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            measure(Path(module), arguments.tenths, Path(folder))


def parsed(options: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=__doc__)
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="such as mechanism/reservations.py")
    parser.add_argument("--tenths", type=int, choices=range(1, 11), default=2, help="of the mutants (default 2)")
    return parser.parse_args(options)


def measure(module: Path, tenths: int, folder: Path) -> None:
    """Measures one module, in a copy of the project."""
    prepare(module, folder)
    names = f"gavelpy.{'.'.join(module.with_suffix('').parts)}.*[{DIGITS[:tenths]}]"
    done = mutmut(folder, "run", "--max-children", "1", names)
    if done.returncode:
        sys.exit(f"mutmut failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    mutmut(folder, "export-cicd-stats")
    counts = json.loads((folder / "mutants" / "mutmut-cicd-stats.json").read_text(encoding="utf-8"))
    killed, survived = counts["killed"] + counts["timeout"], counts["survived"] + counts["no_tests"]
    tried = killed + survived
    print(f"{module}: {killed} of {tried} mutants killed ({killed / max(1, tried):.0%}), of {counts['total']} in all")
    for name in survivors(folder):
        print(mutmut(folder, "show", name).stdout)


def prepare(module: Path, folder: Path) -> None:
    """Creates the copy, with mutmut's settings for this module."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    settings = {
        "source_paths": ["gavelpy"],
        "only_mutate": [f"gavelpy/{module.as_posix()}"],
        "also_copy": ["tests", "workloads", "pyproject.toml"],
        "pytest_add_cli_args_test_selection": [f"tests/{module.parts[0]}"],
        "pytest_add_cli_args": ["-m", "not slow"],
        "do_not_mutate_patterns": list(NOT_MUTATED),
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]  # JSON lists of strings are TOML
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n".join(["", "[tool.mutmut]", *lines, ""]))


def survivors(folder: Path) -> Iterator[str]:
    for line in mutmut(folder, "results").stdout.splitlines():
        name, _, state = line.strip().partition(": ")
        if state in ("survived", "no tests"):
            yield name


def mutmut(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    run(sys.argv[1:])
