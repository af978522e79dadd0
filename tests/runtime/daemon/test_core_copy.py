"""A copy of the core stays as it was, whatever happens to the core or to the copy afterwards."""

from __future__ import annotations

import numpy as np

from gavelpy.journal.codec import encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AllocationSolved, JobCancelled, JobSubmitted, NodeJoined, NodeLost, WakeupDue
from gavelpy.mechanism.snapshot import copied, snapshot
from gavelpy.model.job import JobId, JobSpec, NodeId


def make_core() -> SchedulerCore:
    """A gang that runs on two nodes, and one job that waits."""
    core = SchedulerCore()
    core.handle(NodeJoined(NodeId("n0"), "v100", 2), 0.0)
    core.handle(NodeJoined(NodeId("n1"), "v100", 2), 0.0)
    core.handle(JobSubmitted(JobSpec(JobId("gang"), 1e6, gpus=4, rates_steps_per_s={"v100": 1.0})), 1.0)
    core.handle(JobSubmitted(JobSpec(JobId("waits"), 1e6, rates_steps_per_s={"v100": 1.0})), 1.0)
    core.handle(WakeupDue(), 1.0)
    core.handle(AllocationSolved(1, np.array([0]), np.array([0]), np.array([1.0])), 2.0)
    return core


def go_on(core: SchedulerCore) -> None:
    """Applies events of many kinds."""
    core.handle(NodeLost(NodeId("n1")), 3.0)
    core.handle(NodeJoined(NodeId("n2"), "k80", 8), 4.0)
    core.handle(JobCancelled(1), 5.0)
    core.handle(JobSubmitted(JobSpec(JobId("new"), 1e6, entity="team", rates_steps_per_s={"k80": 1.0})), 6.0)
    core.handle(WakeupDue(), 7.0)


def test_copy_stays_as_it_was_when_the_core_continues() -> None:
    core = make_core()
    before = encode_state(snapshot(core))
    double = copied(core)

    go_on(core)

    assert encode_state(snapshot(double)) == before
    assert encode_state(snapshot(core)) != before


def test_core_stays_as_it_was_when_the_copy_continues_and_both_would_do_the_same() -> None:
    core = make_core()
    before = encode_state(snapshot(core))
    double = copied(core)

    go_on(double)
    untouched = encode_state(snapshot(core))
    go_on(core)

    assert untouched == before
    assert encode_state(snapshot(core)) == encode_state(snapshot(double))
