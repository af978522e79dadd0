"""Small files that a reader sees as a whole: texts, and JSON records whose fields are checked.

A file is written under a temporary name and renamed, so a reader sees the old or the new one. It is read with a limit,
and without following a link or waiting for a FIFO: another user may have made it. Standard library only: the shim loads
this.
"""

from __future__ import annotations

import json
import math
import os
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from gavelpy.errors import RemoteViolation

FILE_BYTES_MAX: Final = 4 << 20

Record = TypeVar("Record")
_Kind = tuple[Callable[[object], bool], Callable[[Any], object]]  # a test of a value, and its conversion


def write_text_whole(path: Path, text: str) -> None:
    """Writes a file under a temporary name and renames it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, text.encode())
    except OSError as error:  # the error of a write has no file name
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)
    temporary.replace(path)


def read_text_whole(path: Path) -> str | None:
    """The text of a regular file of at most FILE_BYTES_MAX; None if there is none. Never blocks on a FIFO."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RemoteViolation(f"{path} cannot be read: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RemoteViolation(f"{path} must be a plain file")
        content = os.read(descriptor, FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(content) > FILE_BYTES_MAX:
        raise RemoteViolation(f"{path} must have at most {FILE_BYTES_MAX} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise RemoteViolation(f"{path} must be UTF-8: {error}") from error


def write_record(path: Path, record: object) -> None:
    """Writes a dataclass as a JSON object."""
    write_text_whole(path, json.dumps(vars(record), allow_nan=False))


def read_record(path: Path, kind: type[Record], enums: Mapping[str, type[StrEnum]]) -> Record | None:
    """Reads a dataclass; None if there is no file. Raises RemoteViolation unless the fields have their types.

    `enums`: the enumerations among the types, by name. Unknown keys are ignored.
    """
    text = read_text_whole(path)
    if text is None:
        return None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RemoteViolation(f"{path} must be JSON: {error}") from error
    if not isinstance(content, dict):
        raise RemoteViolation(f"{path} must be a JSON object, got {type(content).__name__}")
    items = [item for item in fields(kind) if _is_given(item, content)]  # type: ignore[arg-type]  # a dataclass
    return kind(**{item.name: _value(path, item, content, enums) for item in items})


def read_bounded(
    path: Path, kind: type[Record], enums: Mapping[str, type[StrEnum]], most: float, *names: str
) -> Record | None:
    """As `read_record`, with these numbers in [0, most]: a job can write anything into its lease directory."""
    record = read_record(path, kind, enums)
    for name in names if record is not None else ():
        if not 0 <= (value := getattr(record, name)) <= most:
            raise RemoteViolation(f"{path}: {name} must be in [0, {most:.12g}], got {value!r}")
    return record


def _is_given(item: Field[Any], content: dict[str, object]) -> bool:
    return item.name in content or item.default is item.default_factory is MISSING


def _value(
    path: Path, item: Field[Any], content: dict[str, object], enums: Mapping[str, type[StrEnum]]
) -> Any:  # the annotated type of the field
    value, enum = content.get(item.name), enums.get(str(item.type))
    of_enum: _Kind = (lambda value: value in list(enum or ()), enum or str)
    accepts, convert = of_enum if enum is not None else _KINDS[str(item.type)]
    if not accepts(value):
        raise RemoteViolation(f"{path}: {item.name} must be {item.type}, got {str(value)[:100]!r}")
    return convert(value)


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _is_float(value: object) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_list(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(accepts, value))


def _is_texts_by_name(value: object) -> bool:
    return isinstance(value, dict) and all(_is_text(name) and _is_text(text) for name, text in value.items())


_KINDS: Final[Mapping[str, _Kind]] = {  # by annotation of the field
    "int": (_is_int, int),
    "float": (_is_float, float),
    "bool": (lambda value: isinstance(value, bool), bool),
    "str": (_is_text, str),
    "tuple[int, ...]": (_is_list(_is_int), tuple),
    "tuple[str, ...]": (_is_list(_is_text), tuple),
    "tuple[float, ...]": (_is_list(_is_float), lambda values: tuple(map(float, values))),
    "Mapping[str, str]": (_is_texts_by_name, dict),
    "tuple[Mapping[str, str], ...]": (_is_list(_is_texts_by_name), tuple),
}
