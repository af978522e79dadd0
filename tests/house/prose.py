"""Rules for prose: no line of a document wider than the page, and none of the words that make prose odd."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from tests.house.rules import parsed

COLUMNS_MAX = 120
RELATIVE = frozenset({"who", "whose"})  # one line of source often needs them: "jobs whose lease ends"
_FENCE = re.compile(r"^\s*(?:```|~~~)")
# Words that personify software, or that are archaic. docs/glossary.md has the terms to use instead.
_ODD = re.compile(
    r"\b(nobody|somebody|everybody|anybody|whoever|whose|who|tells?|told|telling|hears?|heard|unheard|says?|said"
    r"|asks?|asked|asking|besides?|anew|lest|for ever|hold(?:s|ing)? up|held up|go(?:es|ing)? on|gone on|at hand)\b",
    re.IGNORECASE,
)


def wide_lines(markdown: str) -> list[str]:
    """Lines of prose of more than COLUMNS_MAX columns. Tables, code and lines that no space divides cannot wrap."""
    lines = enumerate(markdown.splitlines(), 1)
    prose = ((number, line) for (number, line), is_code in zip(lines, _code(markdown), strict=True) if not is_code)
    return [
        f"line {number}: {len(line)} columns"
        for number, line in prose
        if len(line) > COLUMNS_MAX and not line.lstrip().startswith("|") and " " in line[4:COLUMNS_MAX]
    ]


def odd_words(markdown: str) -> list[str]:
    """Odd words with their lines, except in code."""
    return [f"line {number}: {word}" for number, word in _odd(markdown)]


def odd_words_of_source(source: str) -> list[str]:
    """Odd words of comments and docstrings with their lines, except in code and examples."""
    if all(word[0].lower() in RELATIVE for word in _ODD.finditer(source)):  # most files; parsing takes long
        return []
    found = ((line + number - 1, word) for line, text in _prose(source) for number, word in _odd(text))
    return [f"line {number}: {word}" for number, word in sorted(found) if word.lower() not in RELATIVE]


def _odd(text: str) -> Iterator[tuple[int, str]]:
    prose = re.sub(r"```.*?```|`[^`\n]*`", lambda code: re.sub(r"[^\n]", " ", code[0]), text, flags=re.DOTALL)
    for number, line in enumerate(prose.splitlines(), 1):
        yield from ((number, found[0]) for found in _ODD.finditer(line))


def _prose(source: str) -> Iterator[tuple[int, str]]:
    """Comments and docstrings, each with its first line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                yield node.body[0].lineno, re.sub(r">>>.*", "", docstring)


def _code(markdown: str) -> list[bool]:
    """Whether each line belongs to a block of code, fenced or indented."""
    is_fenced, flags = False, []
    for line in markdown.splitlines():
        is_mark = bool(_FENCE.match(line))
        flags.append(is_fenced or is_mark or line.startswith("    "))
        is_fenced ^= is_mark
    return flags
