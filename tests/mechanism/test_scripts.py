"""Each script in scripts/ gives exactly the commands below its rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mechanism.script import SCRIPTS, Player, split


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_script_gives_the_commands_below_its_rule(path: Path) -> None:
    given, expected = split(path.read_text())

    found = "\n".join(Player().play(given)) + "\n"

    assert found == expected
