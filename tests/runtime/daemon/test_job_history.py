"""The history of jobs: computed from events, and stored in snapshots."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.errors import JournalCorrupt
from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    Event,
    JobAnnotated,
    JobCancelled,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    NodeLost,
    Outcome,
    PolicyChanged,
)
from gavelpy.model.job import JobId, JobSpec, NodeId
from gavelpy.runtime.daemon.job_history import HISTORY_MAX, JobHistory, full_id, name_of

ONE = np.array([1])


def folded(*events: Event) -> tuple[JobHistory, SchedulerCore]:
    """JobHistory after one event per second, on a node with enough GPUs and two jobs, train#0 and job-1#1."""
    core, history = SchedulerCore(), JobHistory()
    specs = [JobSpec(JobId(full_id(name, i)), 10.0, owner="alice") for i, name in enumerate(("train", "-"))]
    first: list[Event] = [NodeJoined(NodeId("n0"), "v100", 8), *map(JobSubmitted, specs)]
    for now_s, event in enumerate([*first, *events]):
        core.handle(event, float(now_s))
        history.apply(event, float(now_s), core)
    return history, core


def started(lease: int) -> LeaseStarted:
    return LeaseStarted(ONE, np.array([lease]), np.array([0, 1]), np.array([0]))


def ended(lease: int, outcome: Outcome) -> LeaseEnded:
    return LeaseEnded(ONE, np.array([lease]), np.array([5.0]), outcome)


def test_names_come_from_ids_and_back() -> None:
    history, core = folded()

    assert [name_of(spec.id) for spec in core.jobs.specs] == ["train", "job-1"]
    assert (history.newest("alice", "train"), history.newest("bob", "train")) == (0, -1)


def test_the_history_of_a_job_is_in_order() -> None:
    history, _ = folded(
        started(0), JobAnnotated(1, 0, "it broke"), ended(0, Outcome.FAILED), started(1), JobCancelled(1)
    )

    lines = [happened.line for happened in history.entries(1)]
    assert lines == ["submitted", "started lease 0", "noted lease 0: it broke", "failed lease 0 at step 5",
                     "started lease 1", "cancelled"]  # fmt: skip
    assert (history.started_s(1), history.ended_s(1), history.starts(1)) == (3.0, 7.0, 2)
    assert history.detail(1) == "it broke"
    assert np.isnan(history.started_s(0))


def test_only_the_newest_lines_are_kept() -> None:
    history, _ = folded(*(started(lease) for lease in range(2 * HISTORY_MAX)))

    assert len(history.entries(1)) == HISTORY_MAX
    assert history.entries(1)[-1].lease == 2 * HISTORY_MAX - 1


def test_a_nodes_agent_is_the_last_that_joined_until_the_node_is_lost() -> None:
    joined = [NodeJoined(NodeId(name), "v100", 1, True, f"state of {name}") for name in ("n0", "n1", "n2")]
    history, core = folded(*joined, NodeJoined(NodeId("n1"), "v100", 1, True, "new"), NodeLost(NodeId("n2")))
    older = history.snapshot()
    del older["agents"]

    assert history.agents == {"n0": "state of n0", "n1": "new"}
    assert JobHistory.restore(decode_state(encode_state(history.snapshot())), core).agents == history.agents
    assert JobHistory.restore(older, core).agents == {}


def test_a_snapshot_brings_everything_back() -> None:
    history, core = folded(started(0), JobAnnotated(1, 0, "so"), PolicyChanged("fifo", "{}", ""), JobCancelled(1))

    again = JobHistory.restore(decode_state(encode_state(history.snapshot())), core)

    assert again.entries(1) == history.entries(1)
    assert (again.started_s(1), again.ended_s(1), again.starts(1), again.detail(1)) == (3.0, 6.0, 1, "so")
    assert again.policy is not None
    assert again.policy.policy == "fifo"
    assert again.newest("alice", "job-1") == 1


def test_a_snapshot_says_what_was_so_when_it_was_taken() -> None:
    history, core = folded(started(0))
    taken = history.snapshot()
    history.apply(ended(0, Outcome.STOPPED), 9.0, core)

    before = JobHistory.restore(decode_state(encode_state(taken)), core)

    assert [happened.kind for happened in before.entries(1)] == ["submitted", "started"]
    assert [happened.kind for happened in history.entries(1)] == ["submitted", "started", "stopped"]


@pytest.mark.parametrize("broken", [{"starts": np.zeros(1)}, {"history": 5}, {"notes": {"x": "y"}}, {"policy": [1]}])
def test_a_snapshot_that_is_not_whole_is_said(broken: dict[str, object]) -> None:
    history, core = folded(started(0))

    with pytest.raises(JournalCorrupt):
        JobHistory.restore({**history.snapshot(), **broken}, core)
