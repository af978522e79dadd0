"""Help texts show every word of their source: rich markup drops words in square brackets unless they are escaped."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gavelpy.cli.commands import app as gavel
from gavelpy.runtime.agent.main import app as gavel_node
from gavelpy.runtime.daemon.main import app as gavel_scheduler

WIDE = {"COLUMNS": "500", "TERMINAL_WIDTH": "500"}
APPS = {"gavel": gavel, "gavel-node": gavel_node, "gavel-scheduler": gavel_scheduler}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:  # Any: click's
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def words_of(command: object) -> set[str]:
    """The words of a command's description and of its parameters' help, as a reader should see them."""
    parts = [command, *getattr(command, "params", [])]
    text = " ".join(getattr(part, "help", "") or "" for part in parts)
    return set(text.replace("\b", " ").replace(r"\[", "[").split())


CASES = [(name, *found) for name, app in APPS.items() for found in commands(typer.main.get_command(app))]


@pytest.mark.parametrize(("name", "path", "command"), CASES, ids=[" ".join([name, *path]) for name, path, _ in CASES])
def test_help_shows_every_word_of_its_source(name: str, path: tuple[str, ...], command: object) -> None:
    shown = CliRunner().invoke(APPS[name], [*path, "--help"], env=WIDE).output

    assert sorted(words_of(command) - set(re.findall(r"[^\s│]+", shown))) == []


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("simulate", {"--gpus-per-node", "--gpus-per-server"}),
        ("submit", {"--one-process-per-node", "--one-process-a-node"}),
    ],
)
def test_renamed_option_keeps_its_old_name(command: str, names: set[str]) -> None:
    (found,) = (inner for path, inner in commands(typer.main.get_command(gavel)) if path == (command,))

    assert any(names <= set(parameter.opts) for parameter in found.params)
