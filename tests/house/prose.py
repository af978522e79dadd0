"""Rules for documents: no line wider than the page, and none of the words that make prose odd."""

from __future__ import annotations

import re

COLUMNS_MAX = 120
_FENCE = re.compile(r"^\s*(?:```|~~~)")
# Words that personify software, or that are archaic. docs/glossary.md has the terms to use instead.
_ODD = re.compile(
    r"\b(nobody|somebody|everybody|anybody|whoever|whose|who|tells?|told|telling|hears?|heard|unheard|says?|said"
    r"|asks?|asked|asking|besides?|anew|lest|for ever|hold(?:s|ing)? up|held up|go(?:es|ing)? on|gone on|at hand)\b",
    re.IGNORECASE,
)


def wide_lines(markdown: str) -> list[str]:
    """Lines of prose of more than COLUMNS_MAX columns. Tables, code and lines without spaces cannot wrap."""
    lines = enumerate(markdown.splitlines(), 1)
    prose = ((number, line) for (number, line), is_code in zip(lines, _code(markdown), strict=True) if not is_code)
    return [
        f"line {number}: {len(line)} columns"
        for number, line in prose
        if len(line) > COLUMNS_MAX and not line.lstrip().startswith("|") and " " in line[4:COLUMNS_MAX]
    ]


def odd_words(markdown: str) -> list[str]:
    """Odd words with their lines, except in code."""
    text = re.sub(r"```.*?```|`[^`\n]*`", lambda code: re.sub(r"[^\n]", " ", code[0]), markdown, flags=re.DOTALL)
    return [
        f"line {number}: {found[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        for found in _ODD.finditer(line)
    ]


def _code(markdown: str) -> list[bool]:
    """Whether each line belongs to a block of code, fenced or indented."""
    is_fenced, flags = False, []
    for line in markdown.splitlines():
        is_mark = bool(_FENCE.match(line))
        flags.append(is_fenced or is_mark or line.startswith("    "))
        is_fenced ^= is_mark
    return flags
