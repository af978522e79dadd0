"""Parses TOML for every reader of configuration files: a text that is not TOML raises InvalidInput with its line."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

from gavelpy.errors import InvalidInput

_LINE: Final = re.compile(r"at line (\d+)")
_LONG: Final = re.compile(r"[\d_]{4300}")
_EXPECTED: Final = re.compile(r"Expected (.*), got .*")
_WORDS: Final = {  # what msgspec calls types, and what the writer of a file calls them
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def parsed_toml(text: str, file: str = "") -> dict[str, Any]:  # Any: TOML values
    """The document in `text`. Raises InvalidInput for bad syntax, endless nesting and numbers of thousands of digits.

    >>> parsed_toml("[node]\\ncpus = 4")
    {'node': {'cpus': 4}}
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InvalidInput("text must be TOML: lists or tables are nested too deeply", file=file) from None
    except tomllib.TOMLDecodeError as error:
        named = _LINE.search(str(error))
        line = int(named[1]) if named else text.count("\n") + (not text.endswith("\n"))  # the end of the text
        raise InvalidInput(f"text must be TOML: {error}", file=file, line=line) from None
    except ValueError:  # Python's limit of digits
        found = _LONG.search(text)
        line = text.count("\n", 0, found.start()) + 1 if found else 0
        raise InvalidInput("text must be TOML: a number has thousands of digits", file=file, line=line) from None


def allowed_by(complaint: str) -> str:
    """What a field may be, from msgspec's complaint about its value.

    >>> allowed_by("Expected `float | null`, got `str`")
    'a number or null'
    """
    matched = _EXPECTED.fullmatch(complaint)
    kinds = (matched[1] if matched else complaint).replace("`", "").split(" | ")
    return " or ".join(_WORDS.get(kind, kind) for kind in kinds)
