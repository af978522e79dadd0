"""Journals that earlier versions wrote lead to the states that their code had: each field of the snapshot.

The fixtures are half to three quarters of the journal of a run by the code of that version, and that code's snapshot
after replaying them: `faults`, an episode of tests/mechanism/faults with nodes that die and fall silent, drains and
restarts of the scheduler (seeds 11 and 30), at the commits that introduced lease protection (1ac97ef1, version 4) and
that precede version 6 (00a5659e); `packed`, a simulation of nine jobs that share GPUs in pairs (1ac97ef1, with
records of version 3); `sized`, a simulation at be335093 under `hierarchical` of twelve jobs, six of them with several
sizes, of two users in four teams with a quota and guaranteed GPUs, where version 18 is the newest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.journal.file import read
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.snapshot import restore, snapshot
from tests.journal.test_codec_before import HEAD, MAGIC

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = ("faults_4", "packed_4", "faults_5", "sized_18")
NOT_STORED = {  # fields that snapshots of these versions lack, so that restoring one has to guess
    "faults_4": {"core.woken_s", "jobs.worked_s"},
    "packed_4": {"core.woken_s", "jobs.worked_s"},
    "faults_5": {"core.woken_s"},
    "sized_18": set(),
}
SINCE_CHANGED = {name: {"jobs.saved_lease"} if name != "sized_18" else set() for name in NAMES}


def replayed(name: str) -> SchedulerCore:
    core = SchedulerCore()
    for now_s, event in read(FIXTURES / f"{name}.journal"):
        core.handle(event, now_s)
        check(core)
    return core


def remembered(name: str) -> SchedulerCore:
    """The state as the code of that version stored it."""
    return restore(decode_state((FIXTURES / f"{name}.snapshot.msgpack").read_bytes()))


def fields(state: Any, path: str = "") -> Iterator[tuple[str, bytes]]:  # Any: a snapshot, or a part of it
    """Each field of a snapshot by its path, as bytes."""
    if isinstance(state, dict):
        for name, value in state.items():
            yield from fields(value, f"{path}.{name}" if path else str(name))
    else:
        yield path, encode_state({"": state})


def versions(name: str) -> set[int]:
    data, position, found = (FIXTURES / f"{name}.journal").read_bytes(), MAGIC, set()
    while position < len(data):
        end = position + HEAD + int.from_bytes(data[position : position + 4], "little")
        found.add(msgspec.msgpack.decode(data[position + HEAD : end])[0])
        position = end
    return found


@pytest.mark.parametrize(
    ("name", "found"),
    [("faults_4", {2, 4}), ("packed_4", {2, 3}), ("faults_5", {2, 5}), ("sized_18", {2, 11, 12})],
)
def test_the_journals_have_records_of_their_versions(name: str, found: set[int]) -> None:
    assert versions(name) == found


@pytest.mark.parametrize("name", NAMES)
def test_a_journal_leads_to_the_state_that_the_code_of_its_version_had(name: str) -> None:
    now, then = dict(fields(snapshot(replayed(name)))), dict(fields(snapshot(remembered(name))))

    assert now.keys() == then.keys()
    assert len(now) > 150
    assert {field for field in now if now[field] != then[field]} - NOT_STORED[name] == SINCE_CHANGED[name]


@pytest.mark.parametrize("name", [name for name in NAMES if SINCE_CHANGED[name]])
def test_only_finished_jobs_have_no_lease_of_a_checkpoint_any_more(name: str) -> None:
    """The end of a job counts all its steps, without a checkpoint: these versions named its last lease for them."""
    now, then = replayed(name).jobs, remembered(name).jobs
    finished = now.state[: now.count] == JobState.FINISHED

    assert finished.any()
    assert not finished.all()
    assert np.array_equal(now.saved_lease[: now.count], np.where(finished, -1, then.saved_lease[: then.count]))


@pytest.mark.parametrize("name", NAMES)
def test_a_replayed_state_is_in_use_again(name: str) -> None:
    """Something runs or is granted, jobs wait or have partners: the states are not trivial."""
    jobs = replayed(name).jobs
    state = jobs.state[: jobs.count]

    assert {JobState.RUNNING, JobState.FINISHED} <= set(state.tolist())
    assert (jobs.lease[: jobs.count] >= 0).any()
    assert ((jobs.partner[: jobs.count] >= 0).any()) == (name == "packed_4")


def test_sizes_and_teams_are_in_use_in_the_journal_that_has_them() -> None:
    core = replayed("sized_18")
    rows = sorted(core.jobs.sizes)

    assert len(rows) == 6
    assert any(core.jobs.gpus[row] != core.jobs.specs[row].gpus for row in rows)
    assert core.jobs.claims.count
    assert [(team.name, team.quota, team.guaranteed) for team in core.settings.teams][1:3] == [
        ("vision", {"v100": 3}, {}),
        ("speech", {}, {"k80": 1}),
    ]
