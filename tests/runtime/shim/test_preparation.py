"""Real shims prepare the software of a job before they start it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavelpy.runtime.lease_files import LeaseOutcome
from gavelpy.runtime.snapshots import archive_file, store_snapshot
from tests.runtime.shim.driver import processes_left, started, wait_for

SHOWS = "import os; print(sorted(os.listdir()), open('data.txt').read())"
NODE = {"GAVEL_NODE_ID": "n1"}
LARGE = 768 << 20  # bytes that take longer to read than a kill takes


def with_snapshot(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A lease directory, and the software of a job with a snapshot of two files."""
    source, lease = tmp_path / "source", tmp_path / "lease"
    source.mkdir()
    (source / "data.txt").write_text("of the snapshot")
    digest = store_snapshot(source, tmp_path)
    code = str(lease / "code")
    return lease, {"snapshot": digest, "archive": str(archive_file(tmp_path, digest)), "code": code}


def test_job_runs_in_a_copy_of_its_snapshot_that_goes_with_the_lease(tmp_path: Path) -> None:
    lease, software = with_snapshot(tmp_path)

    with started(lease, SHOWS, software=software, working_directory=software["code"]) as shim:
        end = shim.end()

    assert (end.outcome, end.detail) == (LeaseOutcome.FINISHED, "all ranks exited with code 0")
    assert shim.lines() == ["['data.txt'] of the snapshot"]
    assert not Path(software["code"]).exists()


@pytest.mark.parametrize(("kind", "name"), [("venv", "virtual"), ("conda", "conda")])
def test_environment_without_python_fails_the_job_as_a_missing_command_does(
    tmp_path: Path, kind: str, name: str
) -> None:
    with started(tmp_path, "print('never')", software={kind: "/nowhere/env"}, environment=NODE) as shim:
        end = shim.end()

    assert (end.outcome, end.exit_code) == (LeaseOutcome.FAILED, 127)
    assert end.detail == f"the {name} environment /nowhere/env has no bin/python on node n1"
    assert shim.lines() == []


def test_environment_with_python_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to("/bin/true")

    with started(tmp_path / "lease", "print('runs')", software={"venv": str(tmp_path / "env")}) as shim:
        end = shim.end()

    assert end.outcome is LeaseOutcome.FINISHED
    assert shim.lines() == ["runs"]


def test_snapshot_that_was_removed_fails_the_job_with_its_path(tmp_path: Path) -> None:
    lease, software = with_snapshot(tmp_path)
    Path(software["archive"]).unlink()

    with started(lease, SHOWS, software=software, environment=NODE) as shim:
        end = shim.end()

    assert (end.outcome, end.exit_code) == (LeaseOutcome.FAILED, 127)
    assert end.detail == f"{software['archive']} cannot be read on node n1: No such file or directory"


def test_damaged_snapshot_is_not_run(tmp_path: Path) -> None:
    lease, software = with_snapshot(tmp_path)
    Path(software["archive"]).write_bytes(b"something else")

    with started(lease, SHOWS, software=software, environment=NODE) as shim:
        end = shim.end()

    assert end.outcome is LeaseOutcome.FAILED
    assert "is damaged: its SHA-256 is" in end.detail
    assert shim.lines() == []


def test_lease_that_is_killed_during_the_preparation_starts_nothing(tmp_path: Path) -> None:
    lease, software = with_snapshot(tmp_path)
    with Path(software["archive"]).open("r+b") as archive:
        archive.truncate(LARGE)

    with started(lease, SHOWS, software=software) as shim:
        wait_for(Path(software["code"]).exists)
        shim.order(kill=True)
        end = shim.end()

    assert (end.outcome, end.detail) == (
        LeaseOutcome.STOPPED,
        "the lease was over before the job's software was prepared",
    )
    wait_for(lambda: not processes_left(shim))
    assert not Path(software["code"]).exists()
