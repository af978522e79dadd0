"""Reads a JSON array one element at a time, in memory bounded by the largest element.

The array is the document itself, or the value of one key of the object that the document is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from gavelpy.errors import InvalidInput
from gavelpy.traces.fields import Place, parse_json
from gavelpy.traces.source import TraceFile

ELEMENT_MAX = 1 << 24  # characters
_WHITE = " \t\r\n"


@dataclass(frozen=True)
class Element:
    """One element of the array, with the line at which it starts."""

    value: Any  # the reader checks its shape
    place: Place

    def mapping(self, field: str, value: object) -> Mapping[str, Any]:
        """`value`, which must be an object."""
        if not isinstance(value, dict):
            raise self.place.error(field, "an object", value)
        return value

    def sequence(self, field: str, value: object) -> Sequence[Any]:
        """`value`, which must be an array."""
        if not isinstance(value, list):
            raise self.place.error(field, "an array", value)
        return value

    def text(self, of: Mapping[str, Any], field: str) -> str:
        """The member `field`, which must be a string."""
        value = of.get(field)
        if not isinstance(value, str):
            raise self.place.error(field, "a string", value)
        return value


def json_elements(source: TraceFile, key: str = "") -> Iterator[Element]:
    """The elements of the array in the file; of the array at `key`, if the file is an object."""
    window = _Window(source)
    first = window.peek()
    if first == "{" and key:
        window.skip_to(re.compile(rf'"{key}"\s*:\s*\['), f"an object with an array {key!r}")
    elif first == "[":
        window.take()
    else:
        allowed = f"a JSON array, or an object with an array {key!r}" if key else "a JSON array"
        raise Place(source.file, window.line).error("text", allowed, first or "the end of the file")
    is_over = window.peek() == "]"
    if is_over:
        window.take()
    while not is_over:
        line = window.line_of_next()
        yield Element(window.element(), Place(source.file, line))
        mark = window.peek()
        if mark not in ("]", ","):
            raise Place(source.file, window.line).error("text", "a comma or the end of the array", mark or "the end")
        window.take()
        is_over = mark == "]"
    window.end("}" if first == "{" else "")


class _Window:
    """The part of the text that is in memory."""

    def __init__(self, source: TraceFile) -> None:
        self.file, self.line = source.file, 1
        self._chunks = source.chunks()
        self._text, self._at = "", 0
        self._decoder = json.JSONDecoder()

    def peek(self) -> str:
        """The next character that is not white space, without taking it; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _WHITE:
                self.line += self._text[self._at] == "\n"
                self._at += 1
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def line_of_next(self) -> int:
        self.peek()
        return self.line

    def take(self) -> None:
        self._at += 1

    def skip_to(self, pattern: re.Pattern[str], allowed: str) -> None:
        """Continues after the first match, which must be within the first ELEMENT_MAX characters."""
        while (match := pattern.search(self._text, self._at)) is None:
            if len(self._text) - self._at > ELEMENT_MAX or not self._more():
                raise Place(self.file, self.line).error("text", allowed, self._text[self._at : self._at + 20])
        self._advance(match.end())

    def element(self) -> object:
        """The value that starts at the next character."""
        wanted = 1 << 16
        while (end := self._end_of_value()) < 0:
            if len(self._text) - self._at > ELEMENT_MAX:
                raise Place(self.file, self.line).error("element", f"at most {ELEMENT_MAX:,} characters long", "more")
            if not self._more(wanted):
                self._refuse()
            wanted *= 2  # the element is parsed a few times only
        try:
            value = parse_json(self._text[self._at : end], self.file).value  # refuses repeated keys, lone surrogates
        except InvalidInput as error:
            raise error.located(self.file, self.line) from error
        self._advance(end)
        return value

    def _end_of_value(self) -> int:
        """Index after the value at the next character; -1 if it is not complete, or not JSON."""
        try:
            _, end = self._decoder.raw_decode(self._text, self._at)
        except (ValueError, RecursionError):
            return -1
        ended = self._text[end - 1] in '}]"' or end < len(self._text)  # a number may continue
        return end if ended or not self._more() else -1

    def end(self, last: str) -> None:
        """Reads the rest of the file, whose last character must be this one; empty = there must be no rest."""
        found = ""
        while mark := self.peek():
            rest = self._text[self._at :].rstrip(_WHITE) or mark
            found = rest[-1]
            self._advance(len(self._text))
            if not last:
                break
        if found != last:
            allowed = f"ended by {last!r}" if last else "over after the array"
            raise Place(self.file, self.line).error("text", allowed, found or "the end of the file")

    def _refuse(self) -> NoReturn:
        try:
            parse_json(self._text[self._at :], self.file)
        except InvalidInput as error:
            raise error.located(self.file, self.line + max(error.line - 1, 0)) from error
        raise Place(self.file, self.line).error("text", "a complete JSON value", self._text[self._at :][:20])

    def _advance(self, end: int) -> None:
        self.line += self._text.count("\n", self._at, end)
        self._at = end

    def _more(self, characters: int = 1) -> bool:
        """Reads on, at least this many characters if there are as many; returns whether there were any."""
        chunks: list[str] = []
        count = 0
        while count < characters and (chunk := next(self._chunks, None)) is not None:
            chunks.append(chunk)
            count += len(chunk)
        if count:
            self._text, self._at = self._text[self._at :] + "".join(chunks), 0
        return count > 0
