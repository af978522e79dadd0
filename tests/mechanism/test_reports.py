"""Reports of nodes may arrive twice, late or never, and nodes may leave and return: each report counts once at most."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.mechanism.commands import KillLease
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AgentRejoined,
    CheckpointSaved,
    JobCancelled,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    NodeLost,
    Outcome,
    ProgressReported,
    SchedulerRestarted,
)
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.model.job import NodeId
from tests.mechanism.builders import answer, end, make_core, make_spec, plans, running_core, start, tell, wake

N0, N1 = NodeId("n0"), NodeId("n1")


def told(
    kind: type[ProgressReported] | type[CheckpointSaved], job: int, lease: int, steps: float
) -> ProgressReported | CheckpointSaved:
    return kind(np.array([job]), np.array([lease]), np.array([steps]))


def rejoined(node: NodeId, *leases: tuple[int, int, float]) -> AgentRejoined:
    """AgentRejoined with leases as (job, lease, steps)."""
    rows = np.array(leases, dtype=np.float64).reshape(-1, 3)
    return AgentRejoined(node, rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64), rows[:, 2])


def moved_core() -> SchedulerCore:
    """Job 0 ran under lease 0 on n0, which is stopping, and has lease 1 on n1, not yet started."""
    core = running_core(make_spec("a", rates={"v100": 10.0, "k80": 5.0}), servers=[("v100", 1), ("k80", 1)])
    tell(core, NodeJoined(N0, "v100", 1), 300.0)
    wake(core, 360.0)
    answer(core, (0, 1, 1.0), now_s=360.0)
    assert (core.jobs.stopping[0], core.jobs.lease[0]) == (0, 1)
    return core


# Starting --------------------------------------------------------------------------------------------------------


def test_start_told_twice_counts_from_the_first() -> None:
    core = running_core(make_spec("a"))

    start(core, 0, now_s=50.0)
    end(core, 0, 0, Outcome.STOPPED, steps=900.0, now_s=90.0)

    assert core.jobs.received_s[0].tolist() == [90.0]


def test_start_of_a_lease_that_was_revoked_is_ignored() -> None:
    core = make_core(make_spec("a"))
    wake(core)
    answer(core, (0, 0, 1.0))
    tell(core, JobCancelled(0), 1.0)

    tell(core, LeaseStarted(np.array([0]), np.array([0]), np.array([0, 1]), np.array([0])), 2.0)

    assert core.jobs.state[0] == JobState.CANCELLED


def test_start_of_the_new_lease_says_that_the_old_one_is_over() -> None:
    core = moved_core()

    start(core, 0, now_s=365.0)

    assert core.jobs.stopping[0] == -1
    assert core.jobs.state[0] == JobState.RUNNING


def test_a_lease_that_never_starts_receives_no_time() -> None:
    core = make_core(make_spec("a"))
    wake(core)
    answer(core, (0, 0, 1.0))

    end(core, 0, 0, Outcome.FAILED, now_s=100.0)

    assert core.jobs.received_s[0].tolist() == [0.0]
    assert core.jobs.attained_gpu_s[0] == 0.0


# Progress --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("told_steps", "believed"), [(500.0, 500.0), (2e6, 1e6), (-5.0, 0.0)])
def test_progress_stays_between_the_last_checkpoint_and_the_whole(told_steps: float, believed: float) -> None:
    core = running_core(make_spec("a", steps=1e6))

    tell(core, told(ProgressReported, 0, 0, told_steps), 50.0)

    assert core.jobs.steps_done[0] == believed


def test_progress_of_a_stopping_lease_is_ignored_and_its_checkpoint_counts() -> None:
    core = moved_core()

    tell(core, told(ProgressReported, 0, 0, 4000.0), 361.0)
    after_progress = float(core.jobs.steps_done[0])
    tell(core, told(CheckpointSaved, 0, 0, 3600.0), 362.0)

    assert after_progress == 0.0
    assert (core.jobs.steps_saved[0], core.jobs.steps_done[0]) == (3600.0, 3600.0)


def test_an_older_checkpoint_that_comes_late_takes_nothing_back() -> None:
    core = running_core(make_spec("a"))
    tell(core, told(CheckpointSaved, 0, 0, 900.0), 90.0)

    tell(core, told(CheckpointSaved, 0, 0, 400.0), 95.0)

    assert core.jobs.steps_saved[0] == 900.0


# Ending ----------------------------------------------------------------------------------------------------------


def test_end_told_twice_counts_once() -> None:
    core = running_core(make_spec("a", gpus=2), servers=[("v100", 2)])

    end(core, 0, 0, Outcome.FAILED, now_s=100.0)
    end(core, 0, 0, Outcome.FAILED, now_s=110.0)

    assert core.jobs.failures[0] == 1
    assert core.jobs.attained_gpu_s[0] == 200.0


def test_end_told_twice_in_one_report_counts_once() -> None:
    """Every node of a gang may report the end."""
    core = running_core(make_spec("g", gpus=2), servers=[("v100", 1), ("v100", 1)])
    twice = np.array([0, 0])

    tell(core, LeaseEnded(twice, twice, np.array([900.0, 900.0]), Outcome.STOPPED), 90.0)

    assert core.jobs.state[0] == JobState.WAITING
    assert core.jobs.attained_gpu_s[0] == 180.0


def test_end_of_an_old_lease_leaves_the_new_one_alone() -> None:
    core = moved_core()
    start(core, 0, now_s=365.0)

    end(core, 0, 0, Outcome.FAILED, now_s=370.0)

    assert core.jobs.state[0] == JobState.RUNNING
    assert core.jobs.failures[0] == 0


@pytest.mark.parametrize(
    ("outcome", "steps_left_with"), [(Outcome.STOPPED, 900.0), (Outcome.FAILED, 500.0), (Outcome.LOST, 500.0)]
)
def test_steps_survive_a_stop_and_fall_back_to_the_checkpoint_otherwise(
    outcome: Outcome, steps_left_with: float
) -> None:
    core = running_core(make_spec("a"))
    tell(core, told(CheckpointSaved, 0, 0, 500.0), 50.0)
    tell(core, told(ProgressReported, 0, 0, 900.0), 90.0)

    end(core, 0, 0, outcome, steps=900.0, now_s=90.0)

    assert core.jobs.steps_done[0] == steps_left_with
    assert core.jobs.state[0] == JobState.WAITING


def test_a_job_that_finishes_under_its_stopping_lease_gives_its_new_lease_back() -> None:
    core = moved_core()

    commands = end(core, 0, 0, Outcome.FINISHED, steps=1e6, now_s=362.0)

    assert core.jobs.state[0] == JobState.FINISHED
    assert [(kill.job, kill.lease) for kill in commands if isinstance(kill, KillLease)] == [(0, 1)]
    assert core.pool.free_counts.tolist() == [1, 1]


def test_a_waiting_job_can_finish_under_its_stopping_lease() -> None:
    core = running_core(make_spec("a"))
    tell(core, JobSubmitted(make_spec("b")), 10.0)
    wake(core, 10.0)
    answer(core, (1, 0, 1.0), now_s=10.0)
    wake(core, 360.0)
    assert (core.jobs.state[0], core.jobs.stopping[0]) == (JobState.WAITING, 0)

    end(core, 0, 0, Outcome.FINISHED, steps=1e6, now_s=362.0)

    assert core.jobs.state[0] == JobState.FINISHED


def test_end_of_a_cancelled_job_is_heard_and_changes_nothing_else() -> None:
    core = running_core(make_spec("a"))
    tell(core, JobCancelled(0), 10.0)

    end(core, 0, 0, Outcome.FINISHED, steps=1e6, now_s=11.0)

    assert core.jobs.state[0] == JobState.CANCELLED
    assert core.jobs.stopping[0] == -1


@pytest.mark.parametrize("failures_max", [0, 1, 3])
def test_a_job_that_fails_once_more_than_allowed_is_given_up(failures_max: int) -> None:
    core = running_core(make_spec("a"), failures_max=failures_max)
    states = []

    for lease in range(failures_max + 1):
        end(core, 0, lease, Outcome.FAILED)
        states.append(core.jobs.state[0])
        wake(core)

    assert states == [JobState.WAITING] * failures_max + [JobState.FAILED]


def test_a_job_that_is_stopped_or_lost_has_not_failed() -> None:
    core = running_core(make_spec("a"), failures_max=0)

    end(core, 0, 0, Outcome.LOST)

    assert core.jobs.failures[0] == 0
    assert core.jobs.state[0] == JobState.WAITING


# Nodes -----------------------------------------------------------------------------------------------------------


def test_lost_node_ends_its_leases_and_books_their_time() -> None:
    core = running_core(make_spec("a"), make_spec("b"), servers=[("v100", 1), ("v100", 1)])

    kills = tell(core, NodeLost(N1), 200.0)

    assert [kill.lease for kill in kills if isinstance(kill, KillLease)] == [1]
    assert core.jobs.received_s[:2, 0].tolist() == [0.0, 200.0]
    assert core.jobs.state[:2].tolist() == [JobState.RUNNING, JobState.WAITING]
    assert core.pool.counts.tolist() == [1]


def test_late_end_from_a_lost_node_is_ignored() -> None:
    core = running_core(make_spec("a"), servers=[("v100", 1), ("v100", 1)])
    tell(core, NodeLost(N0), 200.0)
    wake(core)

    end(core, 0, 0, Outcome.FINISHED, steps=1e6, now_s=201.0)

    assert core.jobs.state[0] != JobState.FINISHED


def test_a_node_that_is_lost_twice_is_lost_once() -> None:
    core = running_core(make_spec("a"))
    tell(core, NodeLost(N0), 200.0)

    assert tell(core, NodeLost(N0), 210.0) == []


def test_rejoining_node_keeps_what_it_runs() -> None:
    core = running_core(make_spec("a"))

    kills = tell(core, rejoined(N0, (0, 0, 700.0)), 80.0)

    assert kills == []
    assert core.jobs.steps_done[0] == 700.0


def test_rejoining_node_that_runs_a_promised_lease_has_started_it() -> None:
    core = make_core(make_spec("a"))
    wake(core)
    answer(core, (0, 0, 1.0))

    tell(core, rejoined(N0, (0, 0, 10.0)), 80.0)

    assert core.jobs.state[0] == JobState.RUNNING
    assert core.jobs.since_s[0] == 80.0


def test_rejoining_node_that_runs_a_promised_lease_proves_the_old_one_over() -> None:
    core = moved_core()

    tell(core, rejoined(N1, (0, 1, 3700.0)), 380.0)

    assert core.jobs.state[0] == JobState.RUNNING
    assert core.jobs.stopping[0] == -1


def test_rejoining_node_is_told_to_kill_what_is_not_ours() -> None:
    core = running_core(make_spec("a"))

    kills = tell(core, rejoined(N0, (0, 0, 1.0), (0, 9, 1.0), (77, 3, 1.0), (-1, 4, 1.0)), 80.0)

    assert [(kill.job, kill.lease) for kill in kills if isinstance(kill, KillLease)] == [(0, 9), (77, 3), (-1, 4)]


def test_a_lease_that_the_rejoining_node_does_not_run_has_ended_unheard() -> None:
    core = running_core(make_spec("a"))
    tell(core, told(CheckpointSaved, 0, 0, 500.0), 50.0)

    tell(core, rejoined(N0), 80.0)

    assert core.jobs.state[0] == JobState.WAITING
    assert core.jobs.steps_done[0] == 500.0


def test_a_grant_that_was_lost_in_a_crash_is_given_again() -> None:
    """Commands are not replayed: a grant that was decided but never sent must not occupy its GPU forever."""
    core = make_core(make_spec("a"))
    wake(core)
    answer(core, (0, 0, 1.0))
    tell(core, SchedulerRestarted(1), 10.0)

    tell(core, rejoined(N0), 11.0)
    wake(core, 11.0)
    plan = plans(answer(core, (0, 0, 1.0), now_s=11.0))[0]

    assert plan.grant_jobs.tolist() == [0]
    assert plan.grant_leases.tolist() == [1]
