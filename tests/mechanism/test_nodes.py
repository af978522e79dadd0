"""Nodes that die, become unreachable, return, or return with other GPUs: what happens to leases and gangs."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.commands import Command, KillLease
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AgentRejoined,
    CheckpointSaved,
    JobCancelled,
    JobSubmitted,
    LeaseEnded,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeUnreachable,
    Outcome,
)
from gavelpy.mechanism.lifecycle import JobState, NodeState
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.job import NodeId
from tests.mechanism.builders import (
    answer,
    end,
    make_core,
    make_spec,
    plans,
    running_core,
    start,
    tell,
    wake,
)

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")


def kills(commands: list[Command]) -> list[tuple[int, int]]:
    return [(kill.job, kill.lease) for kill in commands if isinstance(kill, KillLease)]


def rejoined(node: NodeId, *leases: tuple[int, int]) -> AgentRejoined:
    """AgentRejoined with leases as (job, lease)."""
    rows = np.array(leases, dtype=np.int64).reshape(-1, 2)
    return AgentRejoined(node, rows[:, 0], rows[:, 1], np.zeros(len(rows)))


def saved(job: int, lease: int, steps: float) -> CheckpointSaved:
    return CheckpointSaved(np.array([job]), np.array([lease]), np.array([steps]))


def gang_core(servers: int = 2) -> SchedulerCore:
    """Job 0 runs on one GPU of each node under lease 0, with 500 steps saved."""
    core = running_core(make_spec("gang", gpus=servers), servers=[("v100", 1)] * servers)
    tell(core, saved(0, 0, 500.0), 50.0)
    return core


def revoked_core() -> SchedulerCore:
    """Job 0 ran on n0 under lease 0, which is being stopped; job 1 has lease 1 there, not yet started."""
    core = running_core(make_spec("a"))
    tell(core, JobSubmitted(make_spec("b")), 10.0)
    wake(core, 10.0)
    answer(core, (1, 0, 1.0), now_s=10.0)
    wake(core, 360.0)
    assert (core.jobs.stopping[0], core.jobs.lease[1]) == (0, 1)
    return core


# Lost ------------------------------------------------------------------------------------------------------------


def test_a_gang_with_a_dead_server_is_stopping_until_the_others_tell() -> None:
    core = gang_core()

    commands = tell(core, NodeLost(N1), 100.0)

    assert kills(commands) == [(0, 0)]
    assert core.jobs.state[0] == JobState.WAITING
    assert core.jobs.stopping[0] == 0
    assert core.jobs.gpus_stopping(0).tolist() == [0]
    assert core.jobs.steps_done[0] == 500.0


def test_a_gang_is_over_when_its_last_server_is_dead() -> None:
    core = gang_core(3)
    tell(core, NodeLost(N1), 100.0)
    tell(core, NodeLost(N0), 101.0)
    still_stopping = int(core.jobs.stopping[0])

    tell(core, NodeLost(N2), 102.0)

    assert still_stopping == 0
    assert core.jobs.stopping[0] == -1
    assert core.jobs.gpus_stopping(0).tolist() == []


def test_a_gang_that_is_dead_in_part_waits_for_the_end_of_the_rest_before_it_runs_again() -> None:
    core = gang_core()
    tell(core, NodeLost(N1), 100.0)
    tell(core, NodeJoined(N1, "v100", 1), 110.0)
    wake(core, 110.0)
    plan = plans(answer(core, (0, 0, 1.0), now_s=110.0))[0]

    end(core, 0, 0, Outcome.LOST, now_s=111.0)
    start(core, 0, now_s=112.0)

    assert plan.grant_leases.tolist() == [1]
    assert (core.jobs.state[0], core.jobs.stopping[0]) == (JobState.RUNNING, -1)


def test_a_checkpoint_of_the_rest_of_a_gang_still_counts() -> None:
    core = gang_core()
    tell(core, NodeLost(N1), 100.0)

    tell(core, saved(0, 0, 700.0), 101.0)

    assert (core.jobs.steps_saved[0], core.jobs.saved_lease[0]) == (700.0, 0)


def test_lost_node_ends_leases_that_were_being_stopped_there() -> None:
    core = revoked_core()

    commands = tell(core, NodeLost(N0), 361.0)

    assert kills(commands) == [(1, 1)]
    assert core.jobs.stopping[:2].tolist() == [-1, -1]


def test_draining_does_not_bring_a_lost_server_back() -> None:
    core = running_core(make_spec("a"))
    tell(core, NodeLost(N0), 10.0)

    tell(core, NodeDraining(N0), 11.0)

    assert core.pool.node_state == [NodeState.LOST]


# Silent ----------------------------------------------------------------------------------------------------------


def test_leases_on_a_silent_server_stay_in_force_for_their_round() -> None:
    core = running_core(make_spec("a"), servers=[("v100", 1), ("v100", 1)])

    commands = tell(core, NodeUnreachable(N0), 100.0)

    assert kills(commands) == []
    assert core.jobs.state[0] == JobState.RUNNING
    assert core.pool.counts.tolist() == [1]


def test_leases_on_a_silent_server_are_not_extended_and_their_jobs_start_nowhere_else() -> None:
    core = running_core(make_spec("a"), servers=[("v100", 1), ("v100", 1)])
    tell(core, NodeUnreachable(N0), 100.0)
    wake(core, 100.0)
    answer(core, (0, 0, 1.0), now_s=100.0)

    plan = plans(wake(core, 360.0))[0]

    assert plan.extend_leases.tolist() == plan.grant_leases.tolist() == []
    assert plan.revoke_leases.tolist() == [0]
    assert (core.jobs.state[0], core.jobs.stopping[0]) == (JobState.WAITING, 0)
    assert core.jobs.gpus_stopping(0).tolist() == [0]
    reason = reasons(core)[0]
    assert reason.kind == ReasonKind.LEASE_UNCLEAR
    assert reason.text == "n0 is unreachable and may still run lease 0; the job restarts when that is resolved"


def test_a_job_starts_elsewhere_when_its_lease_on_a_silent_server_is_surely_over() -> None:
    core = running_core(make_spec("a"), servers=[("v100", 1), ("v100", 1)])
    tell(core, NodeUnreachable(N0), 100.0)
    wake(core, 100.0)
    answer(core, (0, 0, 1.0), now_s=100.0)
    wake(core, 360.0)

    end(core, 0, 0, Outcome.LOST, now_s=390.0)
    plan = plans(wake(core, 390.0))[0]

    assert (plan.grant_jobs.tolist(), plan.grant_gpus.tolist()) == ([0], [1])


def test_a_silent_server_that_is_heard_again_goes_on() -> None:
    core = running_core(make_spec("a"))
    tell(core, NodeUnreachable(N0), 100.0)

    commands = tell(core, rejoined(N0, (0, 0)), 120.0)

    assert kills(commands) == []
    assert core.jobs.state[0] == JobState.RUNNING
    assert core.pool.counts.tolist() == [1]


def test_a_draining_server_that_was_silent_is_still_draining() -> None:
    core = running_core(make_spec("a"))
    tell(core, NodeDraining(N0), 90.0)
    tell(core, NodeUnreachable(N0), 100.0)

    tell(core, rejoined(N0, (0, 0)), 120.0)

    assert core.pool.node_state == [NodeState.DRAINING]
    assert core.pool.counts.tolist() == [0]


def test_a_silent_server_that_is_declared_dead_is_lost() -> None:
    core = running_core(make_spec("a"), servers=[("v100", 1), ("v100", 1)])
    tell(core, NodeUnreachable(N0), 100.0)

    commands = tell(core, NodeLost(N0), 130.0)

    assert kills(commands) == [(0, 0)]
    assert not core.pool.any_unreachable


# Rejoining -------------------------------------------------------------------------------------------------------


def test_a_stopping_lease_that_the_rejoining_server_no_longer_runs_is_over() -> None:
    core = revoked_core()

    tell(core, rejoined(N0), 361.0)

    assert core.jobs.stopping[0] == -1


def test_a_stopping_lease_that_the_rejoining_server_still_runs_is_stopping() -> None:
    core = revoked_core()

    commands = tell(core, rejoined(N0, (0, 0)), 361.0)

    assert core.jobs.stopping[0] == 0
    assert kills(commands) == [(1, 1)]


def test_a_gang_of_which_a_server_runs_nothing_is_killed_and_stopping_on_the_others() -> None:
    core = gang_core()

    commands = tell(core, rejoined(N0), 100.0)

    assert kills(commands) == [(0, 0)]
    assert core.jobs.gpus_stopping(0).tolist() == [1]
    assert core.jobs.steps_done[0] == 500.0


def test_a_lease_that_is_not_of_the_rejoining_server_is_killed_and_not_adopted() -> None:
    core = running_core(make_spec("a"), servers=[("v100", 1), ("v100", 1)])

    commands = tell(core, rejoined(N1, (0, 0)), 100.0)

    assert kills(commands) == [(0, 0)]
    assert core.jobs.state[0] == JobState.RUNNING


def test_a_cancelled_job_is_killed_under_both_its_leases() -> None:
    core = running_core(make_spec("a", rates={"v100": 10.0, "k80": 5.0}), servers=[("v100", 1), ("k80", 1)])
    tell(core, NodeJoined(N0, "v100", 1), 300.0)
    wake(core, 360.0)
    answer(core, (0, 1, 1.0), now_s=360.0)

    assert kills(tell(core, JobCancelled(0), 361.0)) == [(0, 0), (0, 1)]


# Other GPUs ------------------------------------------------------------------------------------------------------


def test_a_server_that_comes_back_with_fewer_gpus_gives_up_the_leases_on_the_others() -> None:
    core = running_core(make_spec("a"), make_spec("b"), servers=[("v100", 2)])

    commands = tell(core, NodeJoined(N0, "v100", 1), 100.0)

    assert kills(commands) == [(1, 1)]
    assert core.pool.counts.tolist() == [1]
    assert core.jobs.state[:2].tolist() == [JobState.RUNNING, JobState.WAITING]


def test_a_server_that_comes_back_with_more_gpus_has_new_numbers_for_them() -> None:
    core = running_core(make_spec("a"), servers=[("v100", 1), ("k80", 1)])

    tell(core, NodeJoined(N0, "v100", 3), 100.0)

    assert core.pool.counts.tolist() == [3, 1]
    assert core.pool.node_of.tolist() == [0, 1, 0, 0]
    assert core.pool.number.tolist() == [0, 0, 1, 2]
    assert core.jobs.state[0] == JobState.RUNNING


def test_a_gang_is_placed_on_a_server_whose_numbers_are_not_consecutive() -> None:
    core = make_core(make_spec("g", gpus=3), servers=[("v100", 1), ("v100", 2)])
    tell(core, NodeJoined(N0, "v100", 3), 1.0)

    wake(core, 1.0)
    plan = plans(answer(core, (0, 0, 1.0), now_s=1.0))[0]

    assert plan.grant_gpus.tolist() == [0, 3, 4]


def test_a_server_that_comes_back_with_another_type_gives_up_all_its_leases() -> None:
    core = running_core(make_spec("a"), servers=[("v100", 1)])

    commands = tell(core, NodeJoined(N0, "a100", 1), 100.0)

    assert kills(commands) == [(0, 0)]
    assert core.pool.gpu_types == ("v100", "a100")
    assert core.pool.counts.tolist() == [0, 1]


@pytest.mark.parametrize("count", [1, 2])
def test_a_server_that_shrinks_and_grows_has_its_old_numbers_again(count: int) -> None:
    core = make_core(servers=[("v100", 2)])
    tell(core, NodeJoined(N0, "v100", 1), 1.0)

    tell(core, NodeJoined(N0, "v100", count), 2.0)

    assert core.pool.usable.tolist() == [True, count == 2]


# Times -----------------------------------------------------------------------------------------------------------


def test_the_latest_promise_of_a_lease_is_remembered_while_it_is_being_stopped() -> None:
    core = revoked_core()

    assert core.jobs.stopping_until_s[0] == 360.0
    assert core.jobs.until_s[1] == 720.0


def test_a_promise_that_was_longer_than_the_last_one_is_remembered() -> None:
    core = running_core(make_spec("a"), settled_rounds_max=10)
    tell(core, NodeJoined(N1, "v100", 1), 100.0)  # the round, which was to last longer, ends early
    wake(core, 360.0)
    answer(core, (0, 0, 1.0), now_s=360.0)

    assert core.jobs.until_s[0] == 3960.0


def test_a_checkpoint_is_named_by_the_lease_that_wrote_it() -> None:
    core = running_core(make_spec("a"))
    tell(core, saved(0, 0, 500.0), 50.0)
    end(core, 0, 0, Outcome.FAILED, now_s=60.0)
    wake(core, 60.0)
    answer(core, (0, 0, 1.0), now_s=60.0)
    start(core, 0, now_s=61.0)
    lease = int(core.jobs.lease[0])
    tell(core, saved(0, lease, 400.0), 70.0)
    after_less = int(core.jobs.saved_lease[0])

    tell(core, saved(0, lease, 600.0), 80.0)

    assert (after_less, core.jobs.saved_lease[0]) == (0, lease)


def test_steps_that_were_counted_by_time_count_and_name_no_lease() -> None:
    core = running_core(make_spec("a"))
    told = LeaseEnded(np.array([0]), np.array([0]), np.array([700.0]), Outcome.STOPPED, True)

    tell(core, told, 80.0)

    assert (core.jobs.steps_saved[0], core.jobs.saved_lease[0]) == (700.0, -1)


def test_the_place_of_a_node_passes_through_journal_and_snapshot() -> None:
    joined = NodeJoined(NodeId("n0"), "v100", 2, rack="r1", zone="hall-2", region="north")
    core = SchedulerCore()
    core.handle(joined, 0.0)
    core.handle(NodeJoined(NodeId("n1"), "v100", 2), 0.0)

    copy = restore(decode_state(encode_state(snapshot(core))))

    assert vars(decode(encode(joined, 1.0))[1]) == vars(joined)
    assert copy.pool.node_place == core.pool.node_place == [("r1", "hall-2", "north"), ("", "", "")]


def test_a_node_may_come_back_in_another_rack() -> None:
    core = SchedulerCore()
    core.handle(NodeJoined(NodeId("n0"), "v100", 2, rack="r1"), 0.0)

    core.handle(NodeJoined(NodeId("n0"), "v100", 2, rack="r2"), 1.0)

    assert core.pool.node_place == [("r2", "", "")]


@pytest.mark.parametrize("name", ["two words", "x" * 64, "a\nb"])
def test_names_of_racks_are_short_words(name: str) -> None:
    with pytest.raises(InvalidInput, match="rack of 'n0' must be at most 63 printable characters without spaces"):
        SchedulerCore().handle(NodeJoined(NodeId("n0"), "v100", 2, rack=name), 0.0)
