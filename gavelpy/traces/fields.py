"""Reads text, CSV cells and JSON; errors name the file, the line, the field or path, the value and what is allowed."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gavelpy.errors import InvalidInput

EXACT_MAX = 2**53  # largest count that a float holds exactly
_WHOLE = re.compile(r"\+?([0-9]{1,18})(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
_QUOTED = re.compile(r'[,"\r\n]')
_SHOWN_MAX = 80


@dataclass(frozen=True)
class Place:
    """The file and line of a value."""

    file: str
    line: int = 0  # 1-based; 0 = the file as a whole

    def error(self, field: str, allowed: str, value: object) -> InvalidInput:
        """The error that `field` must be `allowed`."""
        return InvalidInput(f"{field} must be {allowed}, got {shown(value)}", file=self.file, line=self.line)

    def whole(self, field: str, text: str, low: int, high: int = EXACT_MAX) -> int:
        """A whole number in [low, high]; `4.0` counts as 4, as spreadsheets write it."""
        match = _WHOLE.fullmatch(text.strip())
        if match is None or not low <= int(match[1]) <= high:
            raise self.error(field, f"a whole number in [{low}, {high}]", text)
        return int(match[1])

    def number(self, field: str, text: str, *, positive: bool = False) -> float:
        """A finite number >= 0 (> 0 when `positive`)."""
        value = self.signed(field, text)
        if value < 0 or (positive and value == 0):
            raise self.error(field, f"a finite number {'>' if positive else '>='} 0", text)
        return value

    def signed(self, field: str, text: str) -> float:
        """A finite number of any sign."""
        stripped = text.strip()
        value = float(stripped) if _NUMBER.fullmatch(stripped) else math.nan
        if not math.isfinite(value):
            raise self.error(field, "a finite number", text)
        return value

    def choice(self, field: str, text: str, allowed: Sequence[str]) -> str:
        """One of `allowed`."""
        if text not in allowed:
            raise self.error(field, f"one of {', '.join(allowed)}", text)
        return text


def shown(value: object) -> str:
    """`value` as one short line."""
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}... ({len(text)} characters)"


def read_text(path: str | Path) -> str:
    """The file as UTF-8 text without byte order mark; raises InvalidInput if it is unreadable, not UTF-8 or blank."""
    file = str(path)
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"file must be readable, got {file!r} ({reason})", file=file) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Place(file, line).error("text", "UTF-8", data[error.start : error.start + 1]) from error
    if not text.strip():
        raise Place(file).error("file", "a file with content", "" if not data else "only white space")
    return text


def write_text(path: str | Path, text: str) -> None:
    """Writes `text` as UTF-8, whole or not at all; line ends stay as they are."""
    file = str(path)
    try:
        _write_whole(Path(path), text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise Place(file).error("text", "free of lone surrogates", text[error.start : error.end]) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"file must be writable, got {file!r} ({reason})", file=file) from error


def _write_whole(path: Path, data: bytes) -> None:
    """Writes a file under a temporary name and renames it: a full disk or Ctrl-C leaves an older file as it was.

    A device, a FIFO and a file in a directory that takes no other file are written directly.
    """
    is_plain = path.is_file() or not path.exists()
    target = path.resolve()  # a link stays one
    is_writable = os.access(target.parent, os.W_OK) and (not target.exists() or os.access(target, os.W_OK))
    if not (is_plain and is_writable) or path.absolute().is_relative_to("/dev"):
        path.write_bytes(data)
        return
    temporary = target.with_name(f".gavel-{os.getpid()}-{threading.get_ident()}")
    try:
        temporary.write_bytes(data)
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)  # after an error


@dataclass(frozen=True)
class CsvTable:
    """A header and rows of text cells, each row with its place and one cell per column."""

    header: tuple[str, ...]
    rows: Iterator[tuple[Place, Sequence[str]]]
    file: str

    def require(self, required: Sequence[str], optional: Sequence[str], prefix: str = "") -> None:
        """Raises InvalidInput for missing, repeated or unknown columns (`prefix` + anything is known)."""
        place = Place(self.file, 1)
        for column in required:
            if column not in self.header:
                raise place.error("header", f"a row of column names with {column!r} among them", ",".join(self.header))
        for i, column in enumerate(self.header):
            if column in self.header[:i]:
                raise place.error("header", "free of repeated columns", column)
            if column not in required and column not in optional:
                name = column.removeprefix(prefix) if prefix and column.startswith(prefix) else ""
                if not name:
                    known = [*required, *optional, *([f"{prefix}<gpu type>"] if prefix else [])]
                    raise place.error("column", f"one of {', '.join(known)}", column)


def csv_table(text: str | Iterable[str], file: str, *, header: Sequence[str] = ()) -> CsvTable:
    """The CSV in a text, or in lines with their ends (comma, double quotes); empty lines are skipped.

    The first line is the header, unless one is given.
    """
    reader = csv.reader(io.StringIO(text, newline="") if isinstance(text, str) else text, strict=True)

    def records() -> Iterator[tuple[Place, list[str]]]:
        try:
            for cells in reader:
                if cells:
                    yield Place(file, reader.line_num), cells
        except csv.Error as error:
            raise InvalidInput(
                f"row must be comma-separated values, got {error}", file=file, line=reader.line_num
            ) from (error)

    found = records()
    _, first = (Place(file), header) if header else next(found, (Place(file), []))
    columns = tuple(column.strip() for column in first)

    def rows() -> Iterator[tuple[Place, list[str]]]:
        for place, cells in found:
            if len(cells) != len(columns):
                raise place.error("row", f"{len(columns)} cells as in the header", f"{len(cells)} cells")
            yield place, cells

    return CsvTable(columns, rows(), file)


def csv_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The inverse of `csv_table`. (csv.writer does not quote a lone carriage return, which csv.reader then refuses.)"""
    return "".join(",".join(map(_cell_text, cells)) + "\n" for cells in (header, *rows))


def _cell_text(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if _QUOTED.search(cell) else cell


_Path = Sequence[str | int]
_WHITE = " \t\n\r"


@dataclass(frozen=True)
class JsonText:
    """A parsed document and its text."""

    value: Any  # the reader checks its shape
    text: str
    file: str

    def error(self, path: _Path, allowed: str, value: object) -> InvalidInput:
        """The error that the value at `path` must be `allowed`, with its line."""
        return self.place(path).error(dotted(path), allowed, value)

    def place(self, path: _Path) -> Place:
        """The line at which the value at `path`, or its nearest existing parent, starts."""
        return Place(self.file, self.text.count("\n", 0, _offset(self.text, path)) + 1)

    def at(self, path: _Path) -> Any:
        """The value at `path`."""
        value = self.value
        for step in path:
            value = value[step]
        return value


def parse_json(text: str, file: str = "") -> JsonText:
    """The document `text`; refuses bad syntax, repeated keys, lone surrogates, deep nesting and huge numbers."""
    try:
        return JsonText(json.loads(text, object_pairs_hook=_object), text, file)
    except json.JSONDecodeError as error:
        found = text[error.pos : error.pos + 20] or "the end of the file"
        raise InvalidInput(
            f"text must be JSON ({error.msg} at column {error.colno}), got {found!r}", file=file, line=error.lineno
        ) from error
    except InvalidInput as error:
        raise error.located(file) from error
    except RecursionError as error:
        raise Place(file).error("text", "JSON nested at most a few hundred levels deep", text[:20]) from error
    except ValueError as error:  # an integer of thousands of digits
        raise Place(file).error("number", "of at most 4300 digits", "more") from error


def dotted(path: _Path) -> str:
    """`jobs[3].gpus`; keys that are not identifiers are in brackets."""
    text = ""
    for step in path:
        if isinstance(step, str) and step.isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text or "file"


_SURROGATE = re.compile("[\ud800-\udfff]")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidInput(f"key must be unique in its object, got {key!r} twice")
        for text in (key, value):
            if isinstance(text, str) and not text.isascii() and _SURROGATE.search(text):
                raise InvalidInput(f"text must be free of lone surrogates, got {text!r}")
        found[key] = value
    return found


def _offset(text: str, path: _Path) -> int:
    """Index in `text` of the value at `path`. Parses the valid document again; slow, but used for errors only."""
    decoder = json.JSONDecoder()
    at = _skip(text, 0, _WHITE)
    for step in path:
        inside = _member(text, at, step, decoder)
        if inside < 0:
            break
        at = inside
    return at


def _member(text: str, at: int, step: str | int, decoder: json.JSONDecoder) -> int:
    """Index of member `step` of the object or array at `at`; -1 = none."""
    is_object = text[at] == "{"
    if text[at] not in "{[" or is_object != isinstance(step, str):
        return -1
    at = _skip(text, at + 1, _WHITE)
    index = 0
    while text[at] not in "}]":
        key: str | int = index
        if is_object:
            key, at = decoder.raw_decode(text, at)
            at = _skip(text, at, _WHITE + ":")
        if key == step:
            return at
        _, at = decoder.raw_decode(text, at)
        at = _skip(text, at, _WHITE + ",")
        index += 1
    return -1


def _skip(text: str, at: int, characters: str) -> int:
    while at < len(text) and text[at] in characters:
        at += 1
    return at
