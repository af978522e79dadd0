"""A reported checkpoint is in the directory of the lease that reports it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gavelpy.runtime import lease_files
from gavelpy.runtime.agent.connection import DETAIL_CHARACTERS_MAX, report_of
from gavelpy.runtime.lease_files import Launch, LeaseOutcome, Progress
from tests.runtime.agent.test_lease_registry import launched, make_registry


def reported(state: Path, steps_saved: float) -> float:
    """Reported steps of a lease that had 30 steps on record and resumed at 45 from a checkpoint of another lease."""
    directory = launched(state)
    lease_files.write_launch(directory, Launch(7, 3, ("true",), "/", {}, ({}, {}), steps_done=45.0))
    for rank in (0, 1):
        lease_files.write_progress(directory, rank, Progress(70.0, steps_saved, 1.0))
    lease_files.write_end(directory, lease_files.End(LeaseOutcome.STOPPED, 0, steps_saved, steps_saved, "", 12.0))
    (found,) = make_registry(state).folders
    return float(report_of(found).steps_saved)


@pytest.mark.parametrize(("saved", "told"), [(45.0, 30.0), (60.0, 60.0)])
def test_checkpoint_of_an_earlier_lease_is_not_reported_as_its_own(tmp_path: Path, saved: float, told: float) -> None:
    assert reported(tmp_path, saved) == told


def test_a_checkpoint_that_fails_is_reported_until_one_succeeds(tmp_path: Path) -> None:
    directory = launched(tmp_path)
    lease_files.write_launch(directory, Launch(7, 3, ("true",), "/", {}, ({}, {})))
    told = []
    for error in ("", "OSError: No space left on device", ""):
        lease_files.write_progress(directory, 1, Progress(70.0, save_error=error))
        (folder,) = make_registry(tmp_path).folders
        told.append(report_of(folder).detail)

    assert told == ["", "a checkpoint failed: OSError: No space left on device", ""]


@pytest.mark.parametrize("error", ["\ud800", "two\nlines \x1b[31m", "x" * 100_000])
def test_a_job_cannot_spoil_the_report_by_what_it_calls_an_error(tmp_path: Path, error: str) -> None:
    directory = launched(tmp_path)
    lease_files.write_launch(directory, Launch(7, 3, ("true",), "/", {}, ({}, {})))
    (directory / lease_files.progress_file(0)).write_text(json.dumps({"steps_done": 1.0, "save_error": error}))
    (folder,) = make_registry(tmp_path).folders

    detail = report_of(folder).detail

    assert detail.startswith("a checkpoint failed: ")
    assert detail.isprintable()
    assert len(detail) <= DETAIL_CHARACTERS_MAX
