"""Ends recorded by shims on the scheduler's machine, read while their agent is down."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from gavelpy.mechanism.events import Outcome
from gavelpy.model.job import NodeId
from gavelpy.runtime import lease_files
from gavelpy.runtime.daemon.leases.lease import Part, PartReport, Phase
from gavelpy.runtime.daemon.nodes.watch import recorded_ends

REPORTED = PartReport(3, 7, Phase.RUNNING, steps_done=40.0, steps_saved=30.0)

NOT_ROOT = 65_534


def make_part() -> Part:
    """A part that its node reported some time ago."""
    part = Part(NodeId("n0"), 0, 0, (0,))
    part.report = REPORTED
    return part


def make_directory(state: Path, lease: int) -> Path:
    """The directory of a lease of an agent with this state directory."""
    directory = lease_files.lease_directory(state / lease_files.LEASES_DIRECTORY, lease)
    directory.mkdir(parents=True)
    return directory


def test_a_shim_that_wrote_its_end_is_not_gone(tmp_path: Path) -> None:
    end = lease_files.End(lease_files.LeaseOutcome.FINISHED, 0, 100.0, 100.0, "all ranks exited with code 0", 5.0)
    lease_files.write_end(make_directory(tmp_path, 3), end)

    ends = recorded_ends(str(tmp_path), [(3, 7, make_part())])

    assert ends == [
        PartReport(3, 7, Phase.ENDED, 100.0, 30.0, outcome=Outcome.FINISHED, detail="all ranks exited with code 0")
    ]


def test_a_shim_that_was_killed_wrote_none(tmp_path: Path) -> None:
    make_directory(tmp_path, 3)

    assert recorded_ends(str(tmp_path), [(3, 7, make_part())]) == []


@pytest.mark.parametrize("directory", ["", "/nowhere"])
def test_what_cannot_be_found_is_unknown(directory: str) -> None:
    assert recorded_ends(directory, [(3, 7, make_part())]) is None


def test_a_damaged_record_is_unknown(tmp_path: Path) -> None:
    (make_directory(tmp_path, 3) / lease_files.END_FILE).write_text("{")

    assert recorded_ends(str(tmp_path), [(3, 7, make_part())]) is None


def test_the_directory_of_another_user_is_unknown(tmp_path: Path) -> None:
    make_directory(tmp_path, 3)
    (tmp_path / lease_files.LEASES_DIRECTORY).chmod(0)
    gc.collect()  # finalizers of earlier tests must not run as another user
    user = os.geteuid()
    os.seteuid(user or NOT_ROOT)  # root may read every file

    try:
        found = recorded_ends(str(tmp_path), [(3, 7, make_part())])
    finally:
        os.seteuid(user)

    assert found is None
