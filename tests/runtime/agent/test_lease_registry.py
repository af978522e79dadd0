"""The leases of a state directory, as a starting agent finds them."""

from __future__ import annotations

import os
from pathlib import Path

from gavelpy.runtime import lease_files
from gavelpy.runtime.agent.leases.directory import SHIM_APPEARS_S, LeaseDirectory
from gavelpy.runtime.agent.leases.orders import LeaseOrder, NodeAssignment, OrderKind
from gavelpy.runtime.agent.leases.reconcile import Accept, Forget, Kill, LocalPhase, Refuse
from gavelpy.runtime.agent.leases.registry import LeaseRegistry
from gavelpy.runtime.lease_files import Launch, LeaseOutcome, Progress, ShimPhase, ShimState
from gavelpy.runtime.shim.processes import boot_id

ASSIGNMENT = NodeAssignment(("true",), "/", (0, 1), "v100", steps_done=30.0, grace_s=1.0)
ORDER = LeaseOrder(7, 3, 1_000.0, OrderKind.PREPARE, assignment=ASSIGNMENT)
NONE = 1 << 22  # larger than every process id


def make_registry(state: Path, *, has_booted_since: bool = False) -> LeaseRegistry:
    registry = LeaseRegistry(state, begin=lambda folder: None)
    registry.load(10.0, has_booted_since=has_booted_since)
    return registry


def prepared(state: Path) -> LeaseDirectory:
    registry = make_registry(state)
    registry.act(Accept(ORDER, ASSIGNMENT, start=False), 10.0)
    return registry.folders[0]


def launched(state: Path) -> Path:
    """The directory of a lease with a shim that was started and has ended."""
    folder = prepared(state)
    folder.close_port()
    directory = folder.directory
    lease_files.write_launch(directory, Launch(7, 3, ("true",), "/", {}, ({}, {}), steps_done=30.0))
    return directory


def test_prepared_lease_is_found_again_with_its_port(tmp_path: Path) -> None:
    before = prepared(tmp_path)
    before.close_port()
    assert before.assignment is not None

    (after,) = make_registry(tmp_path).folders

    assert after.phase is LocalPhase.PREPARED
    assert after.assignment == before.assignment
    assert after.port is not None
    assert after.port.number == before.assignment.rendezvous_port
    after.close_port()


def test_leases_of_another_boot_are_lost(tmp_path: Path) -> None:
    launched(tmp_path)

    (found,) = make_registry(tmp_path, has_booted_since=True).folders

    assert found.end is not None
    assert (found.end.outcome, found.end.steps_saved) == (LeaseOutcome.LOST, 30.0)
    assert "booted since" in found.end.detail


def test_lease_without_a_shim_state_is_lost_with_its_saved_steps(tmp_path: Path) -> None:
    directory = launched(tmp_path)
    lease_files.write_progress(directory, 0, Progress(steps_done=90.0, steps_saved=80.0))
    registry = make_registry(tmp_path)
    assert not registry.folders[0].has_lost_shim

    later_s = 10.1 + SHIM_APPEARS_S
    registry.observe(later_s)
    registry.act(Kill(7), later_s)

    end = lease_files.read_end(directory)
    assert end is not None
    assert (end.outcome, end.steps_done, end.steps_saved) == (LeaseOutcome.LOST, 80.0, 80.0)


def test_shim_with_a_reused_process_id_has_ended(tmp_path: Path) -> None:
    directory = launched(tmp_path)
    lease_files.write_shim(directory, ShimState(os.getpid(), 1, boot_id(), ShimPhase.RUNNING, started_clock_s=1.0))

    (found,) = make_registry(tmp_path).folders

    assert found.has_lost_shim
    assert found.shim_process == 0


def test_end_that_an_earlier_agent_did_not_see_is_found(tmp_path: Path) -> None:
    directory = launched(tmp_path)
    lease_files.write_shim(directory, ShimState(NONE, 1, boot_id(), ShimPhase.ENDED, started_clock_s=1.0))
    lease_files.write_end(directory, lease_files.End(LeaseOutcome.FAILED, 3, 40.0, 35.0, "rank 1 exited with code 3"))

    (found,) = make_registry(tmp_path).folders

    assert found.phase is LocalPhase.ENDED
    assert (found.progress.steps_done, found.progress.steps_saved) == (40.0, 35.0)


def test_directory_that_was_being_made_is_no_lease(tmp_path: Path) -> None:
    half = tmp_path / "leases" / ".new-00000009"
    half.mkdir(parents=True)

    assert make_registry(tmp_path).folders == ()
    assert not half.exists()


def test_refused_lease_is_remembered_until_it_is_forgotten(tmp_path: Path) -> None:
    make_registry(tmp_path).act(Refuse(ORDER, LeaseOutcome.FAILED, "no"), 10.0)

    registry = make_registry(tmp_path)
    assert registry.folders[0].phase is LocalPhase.ENDED
    assert registry.folders[0].local.until_clock_s == ORDER.until_clock_s
    registry.act(Forget(7), 11.0)

    assert registry.folders == ()
    assert make_registry(tmp_path).folders == ()


def test_lease_without_its_orders_is_killed(tmp_path: Path) -> None:
    directory = launched(tmp_path)
    (directory / lease_files.LEASE_FILE).write_text("garbage")

    (found,) = make_registry(tmp_path).folders

    assert found.local.is_overdue(11.0)
