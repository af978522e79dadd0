"""For any bytes in a file, a reader returns or raises InvalidInput."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.traces.problem_json import read_problem
from gavelpy.traces.reader import read_throughputs, read_trace
from gavelpy.traces.workloads import catalogue, workloads_directory
from tests.traces.samples import CSV_TABLE, CSV_TRACE, GAVEL_JSON, gavel_line, make_problem

TOML = (workloads_directory() / "gpus.toml").read_text(encoding="utf-8")
READERS: dict[str, tuple[Callable[[str | Path], object], str]] = {
    "Gavel's columns": (read_trace, f"{gavel_line()}\n{gavel_line()}\n"),
    "CSV trace": (read_trace, CSV_TRACE),
    "CSV table": (read_throughputs, CSV_TABLE),
    "JSON table": (read_throughputs, json.dumps(GAVEL_JSON)),
    "problem": (read_problem, json.dumps(make_problem(pairs=[], entities=[{"id": "x"}]))),
    "catalogue": (catalogue, TOML),
}
SPLICES = st.sampled_from(
    [
        b"nan",
        b"-1",
        b"1e999",
        b"9" * 400,
        b"null",
        b"{}",
        b"[]",
        b'"',
        b",",
        b"\t",
        b"\n",
        b"\0",
        b"\xff",
        b"0.5",
        b"\\ud800",
    ]
)


@st.composite
def damaged(draw: st.DrawFn, text: str) -> bytes:
    """`text` with some parts replaced by tokens that often break parsers."""
    data = text.encode()
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 12))
        data = data[:start] + draw(SPLICES) + data[start + length :]
    return data


def complaint(reader: Callable[[str | Path], object], file: Path, data: bytes) -> str:
    """The reader's complaint about the bytes; "" = none. Any other exception passes through and fails the test."""
    file.write_bytes(data)
    try:
        reader(file)
    except InvalidInput as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "input"


@pytest.mark.parametrize("kind", READERS)
def test_undamaged_sample_is_accepted(file: Path, kind: str) -> None:
    reader, text = READERS[kind]

    assert complaint(reader, file, text.encode()) == ""


@pytest.mark.parametrize("kind", READERS)
@given(data=st.data())
def test_damaged_file_is_accepted_or_refused(file: Path, kind: str, data: st.DataObject) -> None:
    reader, text = READERS[kind]

    found = complaint(reader, file, data.draw(damaged(text)))

    assert found == "" or found.startswith(f"{file}:")


@pytest.mark.parametrize("kind", READERS)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_accepted_or_refused(file: Path, kind: str, data: bytes) -> None:
    reader, _ = READERS[kind]

    found = complaint(reader, file, data)

    assert found == "" or found.startswith(f"{file}:")
