"""Each example of a help text is a command line that its command accepts, up to what its files and cluster contain."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from tests.cli.test_help import APPS, CASES


def examples(help_text: str) -> Iterator[str]:
    """The lines after `Example:` or `Examples:`, as far as they are indented."""
    for block in help_text.replace("\b", "").split("Example")[1:]:
        lines = block.split("\n")[1:]
        yield from (line.strip() for line in itertools.takewhile(lambda line: line.startswith("  "), lines))


def of_our_programs(line: str) -> list[list[str]]:
    """The words of each command of a line that runs one of our programs, without redirections."""
    found: list[list[str]] = []
    for command in line.split(" && "):
        words = list(itertools.takewhile(lambda word: word not in ("<", "|", ">"), shlex.split(command, comments=True)))
        found += [words] if words[0] in APPS else []
    return found


def parse(words: list[str]) -> None:
    """Parses and checks a command line as its command does before it starts. Raises click's UsageError."""
    command: Any = typer.main.get_command(APPS[words[0]])  # Any: click's
    rest = words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    context = command.make_context(words[0], list(rest))
    if rest and hasattr(command, "commands"):  # a group: what follows must be one of them
        command.resolve_command(context, rest)


EXAMPLES = [(line, words) for _, _, command in CASES for line in examples(command.help or "")
            for words in of_our_programs(line)]  # fmt: skip


@pytest.mark.parametrize("line", ["gavel jobs --nope", "gavel simulate a b c", "gavel top --once=x", "gavel cancle 1"])
def test_a_wrong_example_is_noticed(line: str) -> None:
    with pytest.raises(typer.BadParameter.__bases__[0]):
        parse(line.split())


def test_most_commands_have_examples() -> None:
    assert len(EXAMPLES) > 150


@pytest.mark.parametrize(("line", "words"), EXAMPLES, ids=[line for line, _ in EXAMPLES])
def test_example_is_accepted_by_its_command(
    line: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)  # where none of the files exist: no command looks at them before it starts

    parse(words)
