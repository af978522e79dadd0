"""A snapshot contains the whole state, and a missing or damaged part is reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import JournalCorrupt, JournalTooNew
from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import CheckpointSaved, JobSubmitted, LeaseEnded, Outcome, SchedulerRestarted
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.lifecycle import JobState, Resumes
from gavelpy.mechanism.snapshot import NEWEST, restore, snapshot
from gavelpy.model.job import JobKind
from gavelpy.model.notify import Notify
from gavelpy.model.software import OF_NODE, Software
from tests.mechanism.builders import fail, make_core, make_spec, running_core, start, tell, wake


def make_state() -> dict[str, Any]:
    """A gang runs, a job waits, and the policy has failed once."""
    core = running_core(make_spec("g", gpus=2), servers=[("v100", 2), ("k80", 1)])
    tell(core, JobSubmitted(make_spec("b", rates={}, job_type="mystery", entity="vision")), 5.0)
    wake(core, 5.0)
    fail(core)
    return snapshot(core)


def test_a_restored_core_has_the_same_snapshot() -> None:
    state = make_state()

    again = snapshot(restore(decode_state(encode_state(state))))

    assert encode_state(again) == encode_state(state)


def test_software_of_a_job_is_restored_and_an_older_snapshot_has_that_of_the_node() -> None:
    core = running_core(make_spec("g"), servers=[("v100", 2)])
    spec = replace(make_spec("b"), software=Software(venv="/opt/torch", snapshot="0" * 64))
    tell(core, JobSubmitted(spec), 5.0)
    state = decode_state(encode_state(snapshot(core)))
    row = state["spec_fields"].index("software")
    older = {**state, "spec_fields": state["spec_fields"][:row] + state["spec_fields"][row + 1 :]}
    older["specs"] = [values[:row] + values[row + 1 :] for values in state["specs"]]

    assert [found.software for found in restore(state).jobs.specs] == [OF_NODE, spec.software]
    assert [found.software for found in restore(older).jobs.specs] == [OF_NODE, OF_NODE]


def test_a_restored_core_shares_nothing_with_its_snapshot() -> None:
    state = make_state()
    before = encode_state(state)
    core = restore(state)

    wake(core, core.wakeup_s)
    core.jobs.rate[:] = 7.0
    core.pool.job[:] = 0

    assert encode_state(state) == before


def test_a_failed_question_is_still_put_off_after_a_restart() -> None:
    core = make_core(make_spec("a"))
    wake(core, 0.0)
    fail(core)

    assert restore(snapshot(core)).wakeup_s == core.wakeup_s == 360.0


@pytest.mark.parametrize("version", [0, None, "1", True])
def test_a_snapshot_without_a_version_is_refused(version: object) -> None:
    with pytest.raises(JournalCorrupt, match=rf"snapshot version must be in \[1, {NEWEST}\], got {version!r}"):
        restore(make_state() | {"version": version})


def test_a_snapshot_of_a_newer_version_is_too_new() -> None:
    with pytest.raises(
        JournalTooNew, match=f"snapshot version must be at most {NEWEST}, got {NEWEST + 1}: a newer gavelpy"
    ):
        restore(make_state() | {"version": NEWEST + 1})


@pytest.mark.parametrize("key", sorted(snapshot(SchedulerCore()).keys() - {"version"}))
def test_a_snapshot_without_a_part_is_refused(key: str) -> None:
    state = make_state()
    del state[key]

    with pytest.raises(JournalCorrupt, match="snapshot is not whole"):
        restore(state)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("settings", {"round_s": -1.0}),
        ("settings", 5),
        ("core", []),
        ("jobs", {}),
        ("nodes", [["n0", 9]]),
        ("nodes", []),
        ("specs", [{"id": "a"}]),
        ("specs", 5),
        ("gangs", {"x": np.array([0])}),
        ("gangs", []),
        ("type_order", ["first"]),
    ],
)
def test_a_snapshot_with_a_damaged_part_is_refused(key: str, value: object) -> None:
    with pytest.raises(JournalCorrupt, match="snapshot is not whole"):
        restore(make_state() | {key: value})


# Older versions --------------------------------------------------------------------------------------------------

VERSION_1 = Path(__file__).parent / "fixtures" / "snapshot_version_1.msgpack"  # written by the code of version 1


def old_core() -> SchedulerCore:
    """A gang (0) and job 1 are being stopped, 1 and 3 have granted leases, 2 was cancelled, 4 is unknown, 5 waits."""
    return restore(decode_state(VERSION_1.read_bytes()))


def test_a_snapshot_of_version_1_keeps_every_promise() -> None:
    core = old_core()

    check(core)
    commands = tell(core, SchedulerRestarted(1), 380.0)

    assert len(commands) == 2 + 1
    assert [int(state) for state in core.jobs.state[:6]] == [0, 1, 4, 1, 0, 0]
    assert core.pool.number.tolist() == [0, 1, 0, 1, 2, 0, 1]
    assert core.pool.usable.tolist() == [True, True, False, False, False, True, True]


def test_a_snapshot_of_version_1_goes_on_under_the_leases_it_knew() -> None:
    core = old_core()

    tell(core, CheckpointSaved(np.array([0]), np.array([0]), np.array([900.0])), 380.0)
    tell(core, LeaseEnded(np.array([0, 1]), np.array([0, 2]), np.array([950.0, 640.0]), Outcome.STOPPED), 381.0)
    start(core, 1, 3, now_s=382.0)

    assert core.jobs.steps_saved[:2].tolist() == [950.0, 640.0]
    assert core.jobs.saved_lease[:2].tolist() == [0, 2]
    assert core.jobs.state[[1, 3]].tolist() == [JobState.RUNNING] * 2
    assert core.jobs.until_s[[1, 3]].tolist() == [720.0] * 2


def test_a_snapshot_of_version_1_is_of_the_latest_version_when_written_again() -> None:
    state = snapshot(old_core())

    assert state["version"] == 10
    assert encode_state(snapshot(restore(state))) == encode_state(state)


def test_a_damaged_snapshot_of_version_1_is_refused() -> None:
    state = decode_state(VERSION_1.read_bytes())
    del state["jobs"]

    with pytest.raises(JournalCorrupt, match="snapshot is not whole"):
        restore(state)


VERSION_2 = Path(__file__).parent / "fixtures" / "snapshot_version_2.msgpack"  # of make_state, by the code of version 2


VERSION_3 = Path(__file__).parent / "fixtures" / "snapshot_version_3.msgpack"  # of make_state, by the code of version 3
VERSION_4 = Path(__file__).parent / "fixtures" / "snapshot_version_4.msgpack"  # of make_state, by the code of version 4
VERSION_5 = Path(__file__).parent / "fixtures" / "snapshot_version_5.msgpack"  # of make_state, by the code of version 5


@pytest.mark.parametrize("older", [VERSION_2, VERSION_3], ids=["2", "3"])
def test_an_older_snapshot_is_what_it_was_and_leases_began_when_their_time_was_last_booked(older: Path) -> None:
    core, now = restore(decode_state(older.read_bytes())), make_state()
    now["jobs"]["began_s"] = now["jobs"]["worked_s"] = np.array([5.0, 0.0])

    check(core)
    assert encode_state(snapshot(core)) == encode_state(now)
    assert core.jobs.partner[:2].tolist() == [-1, -1]
    assert core.jobs.claims.count == 0


def test_a_snapshot_of_version_4_is_what_it_was_and_its_jobs_got_on_from_their_start() -> None:
    core, now = restore(decode_state(VERSION_4.read_bytes())), make_state()
    now["jobs"]["worked_s"] = now["jobs"]["began_s"]

    check(core)
    assert encode_state(snapshot(core)) == encode_state(now)


def test_a_snapshot_of_version_5_is_what_it_was_and_no_job_is_known_to_resume() -> None:
    core, now = restore(decode_state(VERSION_5.read_bytes())), make_state()

    check(core)
    assert encode_state(snapshot(core)) == encode_state(now)
    assert core.jobs.resumes[:2].tolist() == [Resumes.UNKNOWN, Resumes.UNKNOWN]


def test_restored_jobs_are_those_that_validation_would_make() -> None:
    specs = [
        make_spec("a", software=Software(venv="/opt/torch"), notify=Notify(("end",), mail="ann@example.org")),
        make_spec("b", nodes=("n1", "n2"), exclude=("n3",), gpu_types=("v100",), after_ok=(0,), secrets={"A": "b"}),
        make_spec("c", kind=JobKind.INTERACTIVE, one_process_a_node=True, environment={"A": "1"}, deadline_s=5.0),
    ]
    core = make_core(*specs)
    state = decode_state(encode_state(snapshot(core)))

    found = restore(state).jobs.specs

    assert found == specs
    assert [replace(spec) for spec in found] == found, "validation changes nothing"
