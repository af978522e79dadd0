"""Journals of older versions are still read, with their original meaning."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from gavelpy.journal.codec import EVENT_NAMES, encode
from gavelpy.journal.file import read
from gavelpy.mechanism.events import (
    Event,
    IdsReserved,
    JobAnnotated,
    JobSubmitted,
    NodeJoined,
    NodeUnreachable,
    PolicyChanged,
)
from gavelpy.model.job import JobId, JobSpec, NodeId
from tests.journal.test_codec import EXAMPLES, OF_LATER_VERSIONS, RUNTIME_JOB

VERSION_1 = Path(__file__).parent / "fixtures" / "version_1.journal"  # written by the code of version 1
NEW_EVENTS = (NodeUnreachable, PolicyChanged, JobAnnotated, IdsReserved)
NEW_VALUES = (RUNTIME_JOB, NodeId("n1"))
THEN = [
    event
    for event in EXAMPLES
    if not isinstance(event, NEW_EVENTS)
    and getattr(event, "spec", None) not in NEW_VALUES
    and getattr(event, "node_id", None) not in NEW_VALUES
    and not getattr(event, "is_by_time", False)
    and event not in OF_LATER_VERSIONS
]


@pytest.mark.parametrize("position", range(len(THEN)))
def test_event_of_version_1_is_read_as_it_was_meant(position: int) -> None:
    now_s, event = list(read(VERSION_1))[position]

    assert encode(event, now_s) == encode(THEN[position], position + 0.5)


def test_every_event_of_the_old_journal_is_compared() -> None:
    assert len(list(read(VERSION_1))) == len(THEN)


def test_a_job_of_version_1_has_the_defaults_of_later_fields() -> None:
    event = list(read(VERSION_1))[3][1]

    assert isinstance(event, JobSubmitted)
    assert event.spec == JobSpec(
        JobId("a"), 100.0, gpus=2, rates_steps_per_s={"v100": 2.5}, deadline_s=60.0, entity="vision"
    )


def test_a_server_of_version_1_sees_the_shared_checkpoints() -> None:
    event = next(read(VERSION_1))[1]

    assert isinstance(event, NodeJoined)
    assert event.sees_checkpoints


# The names in journals of released versions: a class may be renamed, its name in journals stays.
NAMES_IN_JOURNALS = [
    "NodeJoined",
    "NodeLost",
    "NodeSilent",
    "NodeDraining",
    "NodeHindered",
    "DirectorySeen",
    "JobSubmitted",
    "JobCancelled",
    "JobsHeld",
    "JobsReleased",
    "JobsRequeued",
    "PriceChanged",
    "ConfigChanged",
    "PolicyChanged",
    "NumbersSkipped",
    "ReservationAdded",
    "ReservationRemoved",
    "JobNoted",
    "LeaseStarted",
    "LeaseEnded",
    "ProgressReported",
    "CheckpointSaved",
    "SavingDeclared",
    "LastStepReported",
    "TotalAnnounced",
    "AllocationSolved",
    "AllocationFailed",
    "ThroughputEstimated",
    "WakeupDue",
    "SchedulerRestarted",
    "AgentRejoined",
    "PriorityChanged",
    "JobsArchived",
    "GpuMemoryMeasured",
    "TurnMeasured",
    "MetricsReported",
]


def test_names_in_journals_stay_when_classes_are_renamed() -> None:
    assert list(EVENT_NAMES) == NAMES_IN_JOURNALS


def test_every_event_has_one_name_in_journals() -> None:
    assert set(EVENT_NAMES.values()) == set(get_args(Event))
    assert len(set(EVENT_NAMES.values())) == len(EVENT_NAMES)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_is_written_under_its_name_in_journals(event: Event) -> None:
    _, name, _, _ = msgspec.msgpack.decode(encode(event, 1.0))

    assert EVENT_NAMES[name] is type(event)
