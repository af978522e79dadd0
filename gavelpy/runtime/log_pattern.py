"""Regular expressions of `gavel logs --grep`: RE2, which matches in time linear in the line, whatever the pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gavelpy.errors import InvalidInput

PATTERN_CHARACTERS_MAX: Final = 1_000
_MEMORY_BYTES_MAX = 1 << 20
_INSTRUCTIONS_MAX = 5_000  # at most about half a second for a line of 16 KiB

Matcher = Callable[[str], bool]


def compile_pattern(pattern: str) -> Matcher:
    """A function that returns whether a line contains a match; raises InvalidInput."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise InvalidInput(
            f"pattern must have at most {PATTERN_CHARACTERS_MAX} characters, got {len(pattern)}: {pattern[:80]!a}..."
        )
    import re2  # on first use

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MEMORY_BYTES_MAX
    try:
        compiled = re2.compile(pattern.encode(), options)
    except re2.error as error:
        detail = error.args[0].decode(errors="replace")
        raise InvalidInput(
            f"pattern must be a regular expression in RE2 syntax ({detail}), got {pattern[:80]!a}; RE2 has no "
            "back-references (\\1), look-around ((?=...), (?<!...)) or possessive quantifiers, and at most 1000 repeats"
        ) from None
    if compiled.programsize > _INSTRUCTIONS_MAX:
        raise InvalidInput(
            f"pattern must compile to at most {_INSTRUCTIONS_MAX} instructions, got {compiled.programsize} for "
            f"{pattern[:80]!a}; use fewer or shorter repeats"
        )
    return lambda text: compiled.search(text.encode()) is not None
