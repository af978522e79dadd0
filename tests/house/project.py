"""Paths of the project's files. They need no git, so the house rules also work in a source archive."""

from __future__ import annotations

import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gavelpy"
GENERATED = ("_pb2", "_pb2_grpc")  # made from .proto files by `make generate`
FOLDERS = (".ci", "benchmarks", "deploy", "docs", "examples", "gavelpy", "tests", "workloads")
TEXT = frozenset(
    {"", ".cfg", ".csv", ".html", ".ini", ".ipynb", ".json", ".md", ".proto", ".py", ".sh", ".toml", ".txt"}
)


def name_of(path: Path) -> str:
    """The path from the project's root, with forward slashes on every platform."""
    return path.relative_to(ROOT).as_posix()


def python_files(*folders: str) -> list[Path]:
    """Every hand-written Python file below these folders of the project; generated code is skipped."""
    files = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in files if not path.stem.endswith(GENERATED))


@functools.cache
def text_files() -> list[Path]:
    """Every text file of the project: those at its root and those below its folders."""
    below = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return sorted(
        path for path in (*ROOT.iterdir(), *below) if path.is_file() and path.suffix in TEXT and path.name != ".git"
    )


def public_modules() -> list[Path]:
    """The modules and packages of gavelpy that have no underscore in front of their name."""
    files = python_files("gavelpy")
    return [path for path in files if path.name == "__init__.py" or not path.name.startswith("_")]
