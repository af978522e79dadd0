"""Invalid events are refused with the name of the field, before anything changes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AgentRejoined,
    AllocationSolved,
    CheckpointSaved,
    Event,
    JobCancelled,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeUnreachable,
    Outcome,
    PriceChanged,
    ProgressReported,
    SchedulerRestarted,
    ThroughputEstimated,
    WakeupDue,
)
from gavelpy.mechanism.snapshot import snapshot
from gavelpy.model.job import NodeId
from tests.mechanism.builders import end, make_spec, running_core, tell

N0, N9 = NodeId("n0"), NodeId("n9")
NO_ROWS = np.zeros(0, dtype=np.int64)
NAN = float("nan")


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (NodeLost(N9), "node_id must be one of n0, got 'n9'"),
        (NodeUnreachable(N9), "node_id must be one of n0, got 'n9'"),
        (NodeDraining(N9), "node_id must be one of n0, got 'n9'"),
        (AgentRejoined(N9, NO_ROWS, NO_ROWS, floats()), "node_id must be one of n0, got 'n9'"),
        (AgentRejoined(N0, ints(0), ints(0, 1), floats(1)), "columns of one event must be of one length"),
        (AgentRejoined(N0, ints(0), ints(0), floats(NAN)), "steps_done must be a number, got nan"),
        (NodeJoined(NodeId(""), "v100", 1), "node_id must be a non-empty name without control characters, got ''"),
        (NodeJoined(NodeId("a\nb"), "v100", 1), "node_id must be a non-empty name without control characters"),
        (NodeJoined(N9, "", 1), "gpu_type must be a non-empty name without control characters, got ''"),
        (NodeJoined(N9, "v100", 0), "gpu_count of 'n9' must be in [1, 1000000], got 0"),
        (NodeJoined(N9, "v100", 2_000_000), "gpu_count of 'n9' must be in [1, 1000000], got 2000000"),
        (JobSubmitted(make_spec("a")), "id must not be that of a living job, got 'a' (job 0)"),
        (JobCancelled(1), "jobs must be in [0, 1), got 1"),
        (JobCancelled(-1), "jobs must be in [0, 1), got -1"),
        (PriceChanged("k80", 1.0), "gpu_type must be one of v100, got 'k80'"),
        (PriceChanged("v100", NAN), "price_usd_per_gpu_h of 'v100' must be a finite number >= 0, got nan"),
        (PriceChanged("v100", -1.0), "price_usd_per_gpu_h of 'v100' must be a finite number >= 0, got -1.0"),
        (LeaseStarted(ints(1), ints(0), ints(0, 1), ints(0)), "jobs must be in [0, 1), got 1"),
        (LeaseStarted(ints(0), ints(0), ints(0, 1), ints(5)), "gpus must be in [0, 1), got 5"),
        (LeaseStarted(ints(0), ints(0), ints(0, 0), ints()), "gpu_offsets must rise from 0 to 0"),
        (LeaseStarted(ints(0), ints(0), ints(0), ints(0)), "gpu_offsets must rise from 0 to 1"),
        (LeaseEnded(ints(0), ints(-1), floats(1), Outcome.STOPPED), "leases must be 0 or more, got -1"),
        (LeaseEnded(ints(0), ints(0), floats(NAN), Outcome.STOPPED), "steps_done must be a number, got nan"),
        (LeaseEnded(ints(0), ints(0), floats(), Outcome.STOPPED), "columns of one event must be of one length"),
        (ProgressReported(ints(-1), ints(0), floats(1)), "jobs must be in [0, 1), got -1"),
        (CheckpointSaved(ints(7), ints(0), floats(1)), "jobs must be in [0, 1), got 7"),
        (AllocationSolved(1, ints(3), ints(0), floats(1)), "jobs must be in [0, 1), got 3"),
        (AllocationSolved(1, ints(0), ints(1), floats(1)), "gpu_type must be in [0, 1), got 1"),
        (AllocationSolved(1, ints(0), ints(0), floats(1.5)), "share must be in [0, 1], got 1.5"),
        (AllocationSolved(1, ints(0), ints(0), floats(NAN)), "share must be in [0, 1], got nan"),
        (
            AllocationSolved(1, ints(0), ints(0), floats(1), resources=("cpus",)),
            "resource_value must be one row for each of resources, got 0 for 1",
        ),
        (ThroughputEstimated(ints(0), np.ones((1, 2))), "rates_steps_per_s must have shape (1, 1) at most, got (1, 2)"),
        (ThroughputEstimated(ints(0), np.full((1, 1), -1.0)), "rates_steps_per_s must be in [0, 1e+18]"),
        (ThroughputEstimated(ints(0), np.full((1, 1), np.inf)), "rates_steps_per_s must be in [0, 1e+18]"),
        (WakeupDue(ints(0, 1)), "type_order must hold each of 0 to 0 once, or nothing, got [0, 1]"),
        (SchedulerRestarted(0), "incarnation must be > 0, got 0"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_event_without_sense_is_refused_and_changes_nothing(event: Event, complaint: str) -> None:
    core = running_core(make_spec("a"))
    before = encode_state(snapshot(core))

    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        core.handle(event, 50.0)

    assert encode_state(snapshot(core)) == before


def test_unknown_node_is_refused_when_none_has_joined() -> None:
    core = SchedulerCore()

    with pytest.raises(InvalidInput, match=r"node_id must be one of \(none has joined\), got 'n0'"):
        core.handle(NodeLost(N0), 1.0)


def test_the_id_of_a_job_that_is_over_may_be_used_again() -> None:
    core = running_core(make_spec("a"))
    end(core, 0, 0, Outcome.FINISHED, steps=1e6, now_s=10.0)

    tell(core, JobSubmitted(make_spec("a")), 11.0)

    assert core.jobs.serial_of["a"] == 1
    assert core.jobs.count == 2
