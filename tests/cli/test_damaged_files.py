"""Every TOML file that a user writes: with any damage it is accepted, or refused in one line that names the file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gavelpy.cli.output import printable
from gavelpy.errors import InvalidInput, one_line
from tests.cli.damaged_files import READERS, damaged

FAST, SLOW = 25, 300


def complaint(kind: str, file: Path, data: bytes) -> str:
    """The line that a command prints about the bytes; "" = none. Any other exception passes through and fails."""
    file.write_bytes(data)
    try:
        READERS[kind][0](file)
    except InvalidInput as error:
        return one_line(str(error))
    return ""


def wrong_complaints(kind: str, file: Path, count: int) -> list[str]:
    """The complaints about damaged files that do not name the file, span several lines or are endless."""
    rng = random.Random(kind)
    found = [complaint(kind, file, damaged(rng, READERS[kind][1])) for _ in range(count)]
    names = (f"{file}:", f"{file.parent / 'gavel' / 'config.toml'}:")  # the latter is the client's
    return [text for text in found if text and not (text.startswith(names) and is_line(text))]


def is_line(text: str) -> bool:
    return text == printable(text) and len(text) < 5_000


@pytest.mark.parametrize("kind", READERS)
def test_sample_without_damage_is_accepted(tmp_path: Path, kind: str) -> None:
    assert complaint(kind, tmp_path / "input.toml", READERS[kind][1].encode()) == ""


@pytest.mark.parametrize("kind", READERS)
def test_damaged_file_is_accepted_or_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    assert wrong_complaints(kind, tmp_path / "input.toml", FAST) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_hundreds_of_damaged_files_are_accepted_or_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    assert wrong_complaints(kind, tmp_path / "input.toml", SLOW) == []
