"""Late ends of lost leases: a node's record outranks what the core inferred, while it can still change something."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.commands import KillLease
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AgentRejoined, JobCancelled, NodeJoined, NodeLost, Outcome
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.reports import OPEN_MAX
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.job import NodeId
from tests.mechanism.builders import answer, end, make_spec, plans, running_core, start, tell, wake


def lost_core(**settings: object) -> SchedulerCore:
    """Job 0 ran under lease 0 on n0, which is lost; n1 has joined since."""
    core = running_core(make_spec("a"), **{"late_ends": True, **settings})
    tell(core, NodeLost(NodeId("n0")), 5.0)
    tell(core, NodeJoined(NodeId("n1"), "v100", 1))
    return core


def granted_core(**settings: object) -> SchedulerCore:
    """The same, and lease 1 on n1 is granted."""
    core = lost_core(**settings)
    wake(core)
    assert plans(answer(core, (0, 0, 1.0)))[0].grant_leases.tolist() == [1]
    return core


def restarted_core() -> SchedulerCore:
    """The same, and lease 1 has started."""
    core = granted_core()
    start(core, 0)
    return core


def test_a_finish_that_is_reported_late_finishes_a_waiting_job() -> None:
    core = lost_core()

    commands = end(core, 0, 0, Outcome.FINISHED, steps=1e6)

    assert core.jobs.state[0] == JobState.FINISHED
    assert core.jobs.steps_done[0] == 1e6
    assert commands == []


def test_without_the_setting_a_lost_lease_is_over_for_good() -> None:
    core = lost_core(late_ends=False)

    end(core, 0, 0, Outcome.FINISHED, steps=1e6)

    assert core.jobs.state[0] == JobState.WAITING


@pytest.mark.parametrize("make", [granted_core, restarted_core])
def test_a_late_finish_ends_the_newer_lease(make: Callable[[], SchedulerCore]) -> None:
    core = make()

    commands = end(core, 0, 0, Outcome.FINISHED, steps=1e6)

    assert core.jobs.state[0] == JobState.FINISHED
    assert [(command.job, command.lease) for command in commands if isinstance(command, KillLease)] == [(0, 1)]
    assert core.leases.in_force == 0


def test_a_late_finish_counts_once() -> None:
    core = granted_core()
    end(core, 0, 0, Outcome.FINISHED, steps=1e6)

    assert end(core, 0, 0, Outcome.FINISHED, steps=1e6) == []
    assert core.jobs.lost_leases == {}


def test_the_finish_of_a_lease_that_was_not_lost_by_this_job_changes_nothing() -> None:
    core = granted_core()

    end(core, 0, 7, Outcome.FINISHED, steps=1e6)

    assert core.jobs.state[0] == JobState.GRANTED


def test_a_late_failure_counts_while_no_newer_lease_runs() -> None:
    waiting, running = lost_core(), restarted_core()

    end(waiting, 0, 0, Outcome.FAILED)
    end(running, 0, 0, Outcome.FAILED)

    assert (waiting.jobs.failures[0], running.jobs.failures[0]) == (1, 0)
    assert running.jobs.state[0] == JobState.RUNNING


def test_a_late_checkpoint_counts_while_there_is_no_newer_lease() -> None:
    waiting, granted = lost_core(), granted_core()

    end(waiting, 0, 0, Outcome.STOPPED, steps=500.0)
    end(granted, 0, 0, Outcome.STOPPED, steps=500.0)

    assert (waiting.jobs.steps_saved[0], waiting.jobs.saved_lease[0]) == (500.0, 0)
    assert (granted.jobs.steps_saved[0], granted.jobs.saved_lease[0]) == (0.0, -1)


def test_a_lease_that_ended_as_lost_is_open_too() -> None:
    core = running_core(make_spec("a"), late_ends=True)
    end(core, 0, 0, Outcome.LOST, now_s=5.0)

    end(core, 0, 0, Outcome.FINISHED, steps=1e6)

    assert core.jobs.state[0] == JobState.FINISHED


def test_a_node_that_is_back_without_a_lease_may_still_find_its_record() -> None:
    core = running_core(make_spec("a"), late_ends=True)
    none = np.zeros(0, dtype=np.int64)
    tell(core, AgentRejoined(NodeId("n0"), none, none, np.zeros(0)))

    end(core, 0, 0, Outcome.FINISHED, steps=1e6)

    assert core.jobs.state[0] == JobState.FINISHED


def test_a_cancelled_job_has_no_open_lease() -> None:
    core = lost_core()

    tell(core, JobCancelled(0))
    end(core, 0, 0, Outcome.FINISHED, steps=1e6)

    assert core.jobs.state[0] == JobState.CANCELLED
    assert core.jobs.lost_leases == {}


def test_all_gpus_of_a_gang_are_known_when_its_last_server_is_lost() -> None:
    core = running_core(make_spec("gang", gpus=2), servers=[("v100", 1), ("v100", 1)], late_ends=True)
    tell(core, NodeLost(NodeId("n0")), 5.0)
    tell(core, NodeLost(NodeId("n1")), 6.0)

    assert core.jobs.lost_leases[0][0].tolist() == [0, 1]


def test_only_the_newest_lost_leases_of_a_job_are_open() -> None:
    core = running_core(make_spec("a"), late_ends=True)
    for lease in range(OPEN_MAX + 2):
        end(core, 0, lease, Outcome.LOST)
        wake(core)
        if core.jobs.lease[0] < 0:
            answer(core, (0, 0, 1.0))
        start(core, 0)

    assert sorted(core.jobs.lost_leases[0]) == list(range(2, OPEN_MAX + 2))


def test_open_leases_outlive_a_restart() -> None:
    core = restore(decode_state(encode_state(snapshot(granted_core()))))

    end(core, 0, 0, Outcome.FINISHED, steps=1e6)

    assert core.jobs.state[0] == JobState.FINISHED
