"""JSON files whose errors name the line and the path of a value, such as `jobs[3].gpus`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gavelpy.errors import InvalidInput
from gavelpy.traces.fields import Place

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


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidInput(f"key must be unique in its object, got {key!r} twice")
        for text in (key, value):
            if isinstance(text, str) and any("\ud800" <= c <= "\udfff" for c in text):
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
