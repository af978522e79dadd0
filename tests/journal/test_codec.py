"""Every event survives encoding and decoding; other bytes are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import JournalCorrupt, JournalTooNew
from gavelpy.journal.codec import decode, decode_state, encode
from gavelpy.journal.versions import NEWEST
from gavelpy.mechanism.events import (
    AgentRejoined,
    AllocationFailed,
    AllocationSolved,
    CheckpointSaved,
    ConfigChanged,
    DirectorySeen,
    Event,
    FailureClass,
    GpuMemoryMeasured,
    IdsReserved,
    JobAnnotated,
    JobCancelled,
    JobsArchived,
    JobsHeld,
    JobsReleased,
    JobsRequeued,
    JobSubmitted,
    LastStepReported,
    LeaseEnded,
    LeaseStarted,
    MetricsReported,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeUnhealthy,
    NodeUnreachable,
    Outcome,
    PolicyChanged,
    PriceChanged,
    PriorityChanged,
    ProgressReported,
    ReservationAdded,
    ReservationRemoved,
    SavingDeclared,
    SchedulerRestarted,
    ThroughputEstimated,
    TotalAnnounced,
    TurnMeasured,
    WakeupDue,
)
from gavelpy.mechanism.settings import MechanismSettings, rules_of
from gavelpy.model.job import JobId, JobSpec, NodeId
from tests.mechanism.builders import make_spec

TWO = np.array([3, 5])
STEPS = np.array([1.5, np.inf])
RUNTIME_JOB = JobSpec(
    JobId("b"),
    100.0,
    owner="alice",
    environment={"SEED": "7"},
    one_process_a_node=True,
    checkpoint_every_s=30.0,
    warning_s=5.0,
    warning_signal=10,
)
SHARING = AllocationSolved(
    4, TWO, TWO, np.array([0.25, 1.0]), 0.5, 1e-12, "highs", np.array([[3, 5]]), np.array([1]), np.array([0.5])
)
WARNED = replace(SHARING, warning="feasible, but proved to a gap of 1.0e-05 only")
PRICED = replace(SHARING, resources=("cpus",), resource_value=np.array([[0.0, 0.25]]))
OF_LATER_VERSIONS: list[Event] = [
    SHARING,
    WARNED,
    PRICED,
    ConfigChanged(MechanismSettings(packing=True)),
    ConfigChanged(MechanismSettings(lease_min_s=30.0, retry_s=10.0)),
    ConfigChanged(MechanismSettings(retry_s=10.0, losses_free=1)),
    ConfigChanged(MechanismSettings(lease_min_s=6.0, start_max_s=300.0)),
    ConfigChanged(MechanismSettings(move_lag_s=1_800.0)),
    ConfigChanged(MechanismSettings(late_ends=True)),
    NodeJoined(NodeId("n0"), "v100", 4, True, "5eed"),
    NodeUnhealthy(NodeId("n0"), "its disk is full"),
    NodeJoined(NodeId("n0"), "v100", 4, True, "5eed", ("image", "time"), "gavelpy 0.3"),
    NodeJoined(NodeId("n0"), "v100", 4, rack="r1", zone="hall-2", region="north"),
    ConfigChanged(MechanismSettings(keep_unsaved=True)),
    ConfigChanged(MechanismSettings(solve_at_least_every_s=1800.0)),
    NodeDraining(NodeId("n0"), force=True),
    NodeLost(NodeId("n0"), is_forgotten=True),
    NodeUnreachable(NodeId("n0"), alive_to=3),
    SavingDeclared(TWO, TWO),
    TotalAnnounced(TWO, TWO, np.array([10.0, 0.5])),
    GpuMemoryMeasured(TWO, TWO, np.array([10.0, 0.5])),
    TurnMeasured(TWO, TWO, np.array([10.0, 0.0]), np.array([0.0, 0.5])),
    MetricsReported(TWO, TWO, np.array([0, 1]), np.array([10.0, 0.0]), np.array([-0.5, 3.0]), ("loss", "accuracy")),
    JobSubmitted(JobSpec(JobId("tune-3"), 100.0, app="tune:at=3:jobs=9:rungs=10.0/3:schedule=hyperband")),
    ConfigChanged(MechanismSettings(packing=True, packing_measured=True)),
    ConfigChanged(MechanismSettings(in_order=True)),
    ConfigChanged(MechanismSettings(move_within_round=True)),
    LeaseEnded(TWO, TWO, STEPS, Outcome.UNRUNNABLE),
    LeaseEnded(TWO, TWO, STEPS, Outcome.FAILED, failure=FailureClass.OUT_OF_MEMORY),
    DirectorySeen(NodeId("n0"), "0f1e2d3c", True),
    LastStepReported(TWO, TWO),
    ConfigChanged(MechanismSettings(finish_grace_s=600.0)),
    JobSubmitted(JobSpec(JobId("later"), 100.0, hold=True, begin_at_s=1.7e9, begin_s=60.0)),
    JobsHeld(TWO, True),
    ReservationAdded("disks", ("n0", "n1"), 5.0, 9.0, "new disks"),
    ReservationRemoved("disks"),
    JobsReleased(TWO),
    JobsRequeued(TWO),
    JobsArchived(TWO, 3600.0, ("n0", "n1")),
    PriorityChanged(TWO, "high"),
    JobSubmitted(JobSpec(JobId("then"), 100.0, after_ok=(1, 2), after_any=(0,), no_preempt=True)),
    JobSubmitted(JobSpec(JobId("one-3"), 100.0, array_size=5, array_position=3, array_limit=2)),
]
EXAMPLES: list[Event] = [
    NodeJoined(NodeId("n0"), "v100", 4),
    NodeLost(NodeId("n0")),
    NodeDraining(NodeId("n0")),
    NodeJoined(NodeId("n1"), "v100", 4, False),
    NodeUnreachable(NodeId("n0")),
    PolicyChanged("max_min_fairness", "{}", "mean"),
    IdsReserved(1_250, 88_000, "lost with the journal"),
    JobAnnotated(3, 5, "exit code 1"),
    JobSubmitted(JobSpec(JobId("a"), 100.0, gpus=2, rates_steps_per_s={"v100": 2.5}, deadline_s=60.0, entity="vision")),
    JobSubmitted(RUNTIME_JOB),
    JobCancelled(7),
    PriceChanged("v100", 2.48),
    ConfigChanged(MechanismSettings(round_s=60.0, rules=rules_of({"queue": "by_type"}))),
    LeaseStarted(TWO, TWO, np.array([0, 1, 3]), np.array([9, 4, 5])),
    LeaseEnded(TWO, TWO, STEPS, Outcome.LOST),
    LeaseEnded(TWO, TWO, STEPS, Outcome.STOPPED, True),
    ProgressReported(TWO, TWO, STEPS),
    CheckpointSaved(TWO, TWO, STEPS),
    AllocationSolved(4, TWO, TWO, np.array([0.25, 1.0]), 0.5, 1e-12, "highs"),
    *OF_LATER_VERSIONS,
    AllocationFailed(4, "infeasible"),
    ThroughputEstimated(TWO, np.array([[1.0, 2.0], [np.nan, np.nan]])),
    WakeupDue(np.array([2, 0, 1])),
    WakeupDue(),
    SchedulerRestarted(3),
    AgentRejoined(NodeId("n0"), TWO, TWO, STEPS),
]


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_event_survives_the_way_to_bytes_and_back(event: Event) -> None:
    record = encode(event, 12.5)

    now_s, again = decode(record)

    assert now_s == 12.5
    assert type(again) is type(event)
    assert encode(again, now_s) == record


def test_pairs_come_back_as_they_were() -> None:
    event = decode(encode(SHARING, 0.0))[1]

    assert isinstance(event, AllocationSolved)
    assert event.pair_jobs.tolist() == [[3, 5]]
    assert (event.pair_gpu_type.tolist(), event.pair_share.tolist()) == ([1], [0.5])


@pytest.mark.parametrize(
    ("event", "version"),
    [
        (AllocationSolved(4, TWO, TWO, np.array([0.25, 1.0])), 2),
        (ConfigChanged(MechanismSettings()), 2),
        (SHARING, 3),
        (LeaseEnded(TWO, TWO, STEPS, Outcome.FAILED), 2),
        (SavingDeclared(TWO, TWO), 6),
        (TotalAnnounced(TWO, TWO, np.array([10.0, 0.5])), 7),
        (GpuMemoryMeasured(TWO, TWO, np.array([10.0, 0.5])), 13),
        (LeaseEnded(TWO, TWO, STEPS, Outcome.UNRUNNABLE), 6),
        (LeaseEnded(TWO, TWO, STEPS, Outcome.FAILED, failure=FailureClass.SYSTEM), 7),
        (ConfigChanged(MechanismSettings(system_failures_max=3)), 7),
        (WARNED, 6),
        (PRICED, 14),
        (TurnMeasured(TWO, TWO, np.array([10.0, 0.0]), np.array([0.0, 0.5])), 15),
        (ConfigChanged(MechanismSettings(packing=True)), 3),
        (ConfigChanged(MechanismSettings(retry_max_s=60.0)), 4),
        (ConfigChanged(MechanismSettings(losses_free=1)), 5),
        (ConfigChanged(MechanismSettings(keep_unsaved=True)), 6),
        (ConfigChanged(MechanismSettings(solve_at_least_every_s=1800.0)), 6),
        (NodeDraining(NodeId("n0")), 2),
        (NodeDraining(NodeId("n0"), force=True), 6),
        (ConfigChanged(MechanismSettings(late_ends=True)), 6),
        (NodeJoined(NodeId("n0"), "v100", 4), 2),
        (JobSubmitted(JobSpec(JobId("a"), 100.0)), 2),
        (JobSubmitted(JobSpec(JobId("a"), 100.0, hold=True)), 7),
        (JobSubmitted(JobSpec(JobId("a"), 100.0, begin_s=60.0)), 7),
        (JobsHeld(TWO), 7),
        (ReservationAdded("disks", ("n0",), 5.0, 9.0), 7),
        (NodeJoined(NodeId("n0"), "v100", 4, True, "5eed"), 5),
    ],
)
def test_a_record_is_of_the_oldest_version_that_can_say_it(event: Event, version: int) -> None:
    raw = msgspec.msgpack.decode(encode(event, 0.0))

    assert raw[0] == version
    text, is_config = str(raw), isinstance(event, ConfigChanged)
    assert ("packing" in text) == (version >= 3 and is_config)
    assert ("retry_max_s" in text) == (version >= 4 and is_config)
    assert ("losses_free" in text) == ("start_max_s" in text) == (version >= 5 and is_config)
    assert ("solve_at_least_every_s" in text) == (version >= 6 and is_config)
    assert ("keep_unsaved" in text) == (version >= 6 and is_config)
    assert ("late_ends" in text) == (version >= 6 and is_config)
    assert ("system_failures_max" in text) == (version >= 7 and is_config)
    assert ("move_lag_s" in text) == (version >= 10 and is_config)
    assert ("5eed" in text) == (version == 5 and not is_config)


def test_every_kind_of_event_has_an_example_here() -> None:
    assert {type(event) for event in EXAMPLES} == set(get_args(Event))


def test_values_come_back_as_they_were() -> None:
    event = decode(encode(JobSubmitted(RUNTIME_JOB), 0.0))[1]

    assert isinstance(event, JobSubmitted)
    assert event.spec == RUNTIME_JOB


@pytest.mark.parametrize(
    "raw",
    [
        [1, "JobCancelled", 0.0],
        [0, "JobCancelled", 0.0, [3]],
        [3, "JobCancelled", 0.0, [3]],
        [4, "JobCancelled", 0.0, [3]],
        [4, "AllocationSolved", 0.0, [3]],
        [5, "JobCancelled", 0.0, [3]],
        [6, "JobCancelled", 0.0, [3]],
        [6, "NodeDraining", 0.0, ["n0"]],
        [2, "NodeDraining", 0.0, ["n0", True]],
        [5, "NodeJoined", 0.0, ["n0", "v100", 4, True]],
        [2, "NodeJoined", 0.0, ["n0", "v100", 4, True, "5eed"]],
        [True, "JobCancelled", 0.0, [3]],
        [1, "JobExploded", 0.0, [3]],
        [1, "JobCancelled", "soon", [3]],
        [1, "JobCancelled", 0.0, []],
        [1, "JobCancelled", 0.0, ["three"]],
        [1, "JobCancelled", 0.0, [True]],
        [1, "LeaseEnded", 0.0, [[1], [2], [3.0], 0]],
        [1, "JobSubmitted", 0.0, [{"id": "a", "steps_total": -1.0}]],
        [1, "JobSubmitted", 0.0, [{"id": "a"}]],
        [2, "JobSubmitted", 0.0, [{"id": "a", "steps_total": 1.0, "warning_signal": 65}]],
        [2, "JobSubmitted", 0.0, [{"id": "a", "steps_total": 1.0, "environment": {"A": 1}}]],
        [2, "WakeupDue", 0.0, []],
        [1, "ConfigChanged", 0.0, [{"round_s": -5.0}]],
        [1, "ConfigChanged", 0.0, [{"queue": "by_colour"}]],
        [8, "LeaseEnded", 0.0, []],
        [7, "LeaseEnded", 0.0, [TWO.tolist(), TWO.tolist(), STEPS.tolist(), 2, False, 9]],
        {"not": "a list"},
        7,
    ],
    ids=str,
)
def test_a_record_that_is_no_event_is_corrupt(raw: Any) -> None:
    record = msgspec.msgpack.encode(raw)

    with pytest.raises(JournalCorrupt):
        decode(record)


@pytest.mark.parametrize("name", ["ConfigChanged", "JobExploded"])
def test_a_record_of_a_newer_version_is_not_corrupt_but_too_new(name: str) -> None:
    record = msgspec.msgpack.encode([NEWEST + 1, name, 0.0, [{}]])

    with pytest.raises(JournalTooNew, match=f"at most {NEWEST}, got {NEWEST + 1}: a newer gavelpy has written it"):
        decode(record)


@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_are_corrupt_or_an_event(data: bytes) -> None:
    try:
        now_s, event = decode(data)
    except (JournalCorrupt, JournalTooNew):
        return
    assert encode(event, now_s)


@given(cut=st.integers(0, 400), value=st.integers(0, 255), which=st.integers(0, len(EXAMPLES) - 1))
def test_a_damaged_record_raises_nothing_but_corrupt(cut: int, value: int, which: int) -> None:
    record = bytearray(encode(EXAMPLES[which], 1.0))
    record[cut % len(record)] = value

    try:
        _, event = decode(bytes(record))
    except (JournalCorrupt, JournalTooNew):
        return
    assert type(event) in get_args(Event)


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode([1, 2])])
def test_a_snapshot_that_is_no_map_is_corrupt(data: bytes) -> None:
    with pytest.raises(JournalCorrupt):
        decode_state(data)


def test_reservation_of_a_job_comes_back_from_the_journal() -> None:
    event = JobSubmitted(make_spec("a", owner="ann", reservation="x"))

    assert decode(encode(event, 0.0))[1].spec == event.spec
