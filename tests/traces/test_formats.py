"""Formats are registered, recognised from the beginning of a file, and extended by other packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.traces import formats
from gavelpy.traces.formats import ReadOptions, reader_named, reader_names
from gavelpy.traces.reader import read_trace
from gavelpy.traces.source import Head
from tests.traces.histories import SAMPLES, write_sample


class PunchCards:
    """A format of another package."""

    name: ClassVar[str] = "punch_cards"
    title: ClassVar[str] = "decks of cards"

    def matches(self, head: Head) -> bool:
        return head.text.startswith("DECK")

    def read(self, path: Path, options: ReadOptions) -> Trace:
        return Trace((JobSpec(JobId("card"), 80.0),), np.zeros(1))


@pytest.fixture
def _with_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("punch_cards", f"{__name__}:PunchCards", formats.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry] if group == formats.GROUP else [])
    formats._plugins.cache_clear()
    yield
    formats._plugins.cache_clear()


@pytest.mark.usefixtures("_with_plugin")
def test_format_of_another_package_is_recognised(tmp_path: Path) -> None:
    file = tmp_path / "deck"
    file.write_text("DECK 1\n")

    assert reader_names()[-1] == "punch_cards"
    assert read_trace(file).jobs[0].id == "card"


@pytest.mark.parametrize("name", reader_names())
def test_every_format_has_a_name_a_title_and_a_sample(name: str) -> None:
    reader = reader_named(name)

    assert reader.name == name
    assert "\n" not in reader.title
    assert name in {sample.format for sample in SAMPLES.values()}


@pytest.mark.parametrize("sample", SAMPLES)
def test_sample_is_recognised_as_its_format_only(tmp_path: Path, sample: str) -> None:
    path = write_sample(tmp_path, sample)

    assert read_trace(path).provenance["format"] == SAMPLES[sample].format


@pytest.mark.parametrize("sample", SAMPLES)
def test_provenance_names_file_and_hash(tmp_path: Path, sample: str) -> None:
    found = read_trace(write_sample(tmp_path, sample)).provenance

    assert found["file"]
    assert len(found["sha256"]) == 64


def test_unknown_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_text("job,start,end\n1,2,3\n")

    with pytest.raises(InvalidInput, match=r"t:1: file must be a trace in one of the formats csv, gavel, philly"):
        read_trace(file)


def test_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"format must be one of csv, gavel, philly.*, got 'phily'"):
        read_trace(tmp_path / "t", from_format="phily")


def test_ambiguous_file_is_refused_with_both_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gavelpy.traces.gavel.GavelReader.matches", lambda self, head: True)
    file = tmp_path / "t"
    file.write_text("id,arrival_s,steps_total\na,0,1\n")

    with pytest.raises(InvalidInput, match="format must be chosen with --from FORMAT, as csv and gavel fit"):
        read_trace(file)
    assert len(read_trace(file, from_format="csv")) == 1


def test_name_of_a_built_in_format_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("csv", f"{__name__}:PunchCards", formats.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry])
    formats._plugins.cache_clear()

    with pytest.raises(InvalidInput, match="name of its own, got 'csv'"):
        reader_names()
    formats._plugins.cache_clear()
