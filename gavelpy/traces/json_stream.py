"""Reads a JSON array one element at a time, in memory bounded by the largest element.

The array is the document itself, or the value of one key of the object that the document is.
"""

from __future__ import annotations

import json
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


def json_elements(source: TraceFile, key: str = "", *, takes_one: bool = False) -> Iterator[Element]:
    """The elements of the array in the file; of the array at `key`, if the file is an object.

    With `takes_one`, an object without `key` is the only element.
    """
    window = _Window(source)
    first = window.peek()
    if first == "{" and key:
        line = window.line
        has_array, members = window.members_until(key)
        if not has_array:
            if not takes_one or key in members:
                found = repr(members[key]) if key in members else ", ".join(members) or "no member"
                raise Place(source.file, line).error("text", f"an object with an array {key!r}", found)
            window.end("")
            yield Element(members, Place(source.file, line))
            return
        window.take()
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
        self._passed = 0  # characters of elements
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

    def members_until(self, key: str) -> tuple[bool, dict[str, Any]]:
        """Reads an object up to the array at `key`, which is next if the first answer is true; else all of it.

        The second answer has the members before. They must be within ELEMENT_MAX characters.
        """
        members: dict[str, Any] = {}
        self.take()
        mark = "," if self.peek() != "}" else "}"
        while mark != "}":
            name = self.element()
            if not isinstance(name, str) or name in members:
                raise Place(self.file, self.line).error("text", "an object whose keys are strings, each once", name)
            self._require(":")
            if name == key and self.peek() == "[":
                return True, members
            members[name] = self.element()
            mark = self.peek()
            if mark == ",":
                self.take()
            if self._passed > ELEMENT_MAX:
                allowed = f"at most {ELEMENT_MAX:,} characters long before {key!r}"
                raise Place(self.file, self.line).error("text", allowed, "more")
            if mark not in (",", "}"):
                raise Place(self.file, self.line).error("text", "a comma or the end of the object", mark or "the end")
        self.take()
        return False, members

    def _require(self, mark: str) -> None:
        if self.peek() != mark:
            raise Place(self.file, self.line).error("text", f"{mark!r} after a key", self.peek() or "the end")
        self.take()

    def element(self) -> object:
        """The value that starts at the next character that is not white space."""
        self.peek()
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
        self._passed += end - self._at
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
