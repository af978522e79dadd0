"""Co-located jobs: separate leases on the same GPUs, one queue with single jobs, time that counts once for the pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.commands import Command, KillLease
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AgentRejoined,
    AllocationSolved,
    JobCancelled,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeUnreachable,
    Outcome,
)
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.original_gavel import PriorityRule, QueueRule
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.mechanism.view import account
from gavelpy.model.job import NodeId
from tests.conftest import costly
from tests.mechanism.builders import end, make_core, make_mechanism, make_spec, plans, questions, start, tell, wake

ROUND_S = 360.0
Share = tuple[int, float]  # a job and its share alone on the first type
PairShare = tuple[int, int, float]  # two jobs and their share co-located there


def pack(core: SchedulerCore, alone: list[Share], together: list[PairShare], kind: int = 0) -> list[Command]:
    """AllocationSolved for the pending request, all on one type."""
    event = AllocationSolved(
        core.question.open_epoch,
        np.array([job for job, _ in alone], dtype=np.int64),
        np.full(len(alone), kind),
        np.array([share for _, share in alone], dtype=np.float64),
        pair_jobs=np.array([pair[:2] for pair in together], dtype=np.int64).reshape(-1, 2),
        pair_gpu_type=np.full(len(together), kind),
        pair_share=np.array([pair[2] for pair in together], dtype=np.float64),
    )
    return tell(core, event)


def make_packed(jobs: int = 2, gpus: int = 1, servers: Any = (("v100", 1),), **settings: Any) -> SchedulerCore:
    """A core that has requested shares for jobs 0, 1, ... and waits for the answer."""
    specs = [make_spec(f"j{n}", gpus=gpus) for n in range(jobs)]
    core = make_core(*specs, servers=servers, packing=True, **settings)
    wake(core, 0.0)
    return core


def sharing_core(gpus: int = 1, **settings: Any) -> SchedulerCore:
    """Jobs 0 and 1 have run on the same GPUs since time 0."""
    core = make_packed(gpus=gpus, servers=(("v100", gpus),), **settings)
    pack(core, [], [(0, 1, 1.0)])
    start(core, 0, 1)
    return core


def killed(commands: list[Command]) -> list[tuple[int, int]]:
    """Jobs and leases of KillLease commands."""
    return [(command.job, command.lease) for command in commands if isinstance(command, KillLease)]


def played(core: SchedulerCore, rounds: int) -> None:
    """Starts and ends leases as the core commands, round after round."""
    for n in range(rounds):
        for job in np.flatnonzero(core.jobs.stopping[: core.jobs.count] >= 0).tolist():
            end(core, job, int(core.jobs.stopping[job]), Outcome.STOPPED)
        for job in np.flatnonzero(core.jobs.state[: core.jobs.count] == JobState.GRANTED).tolist():
            start(core, job)
        wake(core, ROUND_S * (n + 1))


def test_the_policy_is_asked_about_pairs_only_where_packing_is_on() -> None:
    cores = [make_core(make_spec("a", job_type="ant"), packing=on) for on in (True, False)]

    asked = [questions(wake(core, 0.0))[0] for core in cores]

    assert [(question.packing, question.job_types) for question in asked] == [(True, ("ant",)), (False, ())]


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_pair_has_two_leases_on_the_same_gpus(gpus: int) -> None:
    core = make_packed(gpus=gpus, servers=(("v100", gpus),))

    plan = plans(pack(core, [], [(1, 0, 1.0)]))[0]

    assert plan.grant_leases.tolist() == [0, 1]
    assert plan.grant_gpus.tolist() == 2 * list(range(gpus))
    assert core.jobs.partner[:2].tolist() == [1, 0]


def test_a_pair_that_stays_together_keeps_its_leases() -> None:
    core = sharing_core()

    plan = plans(wake(core, ROUND_S))[0]

    assert plan.extend_leases.tolist() == [0, 1]
    assert not len(plan.grant_jobs)
    assert not len(plan.revoke_jobs)


def test_of_a_pair_that_parts_one_stays_and_another_comes_to_it() -> None:
    core = make_packed(3)
    pack(core, [], [(0, 1, 0.5), (1, 2, 0.5)])
    start(core, 0, 1)

    plan = plans(wake(core, ROUND_S))[0]

    assert plan.extend_jobs.tolist() == [1]
    assert plan.revoke_jobs.tolist() == [0]
    assert (plan.grant_jobs.tolist(), plan.grant_gpus.tolist()) == ([2], [0])


def test_of_partners_that_both_run_on_alone_the_second_moves() -> None:
    core = make_packed(2, servers=(("v100", 2),))
    pack(core, [], [(0, 1, 1.0)])
    start(core, 0, 1)
    core.question.renew()
    wake(core, ROUND_S)

    plan = plans(pack(core, [(0, 1.0), (1, 1.0)], []))[0]

    assert plan.extend_jobs.tolist() == [0]
    assert plan.revoke_jobs.tolist() == plan.grant_jobs.tolist() == [1]
    assert plan.grant_gpus.tolist() == [1]


def test_jobs_that_come_together_do_so_on_the_gpus_of_the_first() -> None:
    core = make_packed(2, servers=(("v100", 2),))
    pack(core, [(0, 1.0), (1, 1.0)], [])
    start(core, 0, 1)
    core.question.renew()
    wake(core, ROUND_S)

    plan = plans(pack(core, [], [(0, 1, 1.0)]))[0]

    assert plan.extend_jobs.tolist() == [0]
    assert plan.revoke_jobs.tolist() == plan.grant_jobs.tolist() == [1]
    assert plan.grant_gpus.tolist() == [0]


def test_a_job_that_runs_is_joined_by_another_on_its_gpus() -> None:
    core = make_packed(2)
    pack(core, [(0, 1.0)], [])
    start(core, 0)
    core.question.renew()
    wake(core, ROUND_S)
    plan = plans(pack(core, [], [(0, 1, 1.0)]))[0]

    assert plan.extend_leases.tolist() == [0]
    assert (plan.grant_jobs.tolist(), plan.grant_gpus.tolist()) == ([1], [0])


@pytest.mark.parametrize("outcome", list(Outcome))
def test_when_one_is_gone_the_other_goes_on_alone_until_the_round_ends(outcome: Outcome) -> None:
    core = sharing_core(fill_within_round=False)

    end(core, 0, 0, outcome, steps=10.0, now_s=100.0)

    assert core.jobs.state[1] == JobState.RUNNING
    assert core.jobs.lease[1] == 1
    assert (core.pool.job.tolist(), core.pool.beside.tolist()) == ([1], [-1])
    assert core.round_end_s == ROUND_S


def test_a_cancelled_job_leaves_its_partner_running() -> None:
    core = sharing_core()

    commands = tell(core, JobCancelled(1), 50.0)

    assert killed(commands) == [(1, 1)]
    assert core.jobs.state[0] == JobState.RUNNING
    assert core.jobs.partner[0] == -1


def test_a_lost_server_ends_both_leases() -> None:
    core = sharing_core()

    commands = tell(core, NodeLost(NodeId("n0")), 50.0)

    assert killed(commands) == [(0, 0), (1, 1)]
    assert core.jobs.state[:2].tolist() == [JobState.WAITING] * 2


def test_a_draining_server_gives_up_both_leases_with_the_round() -> None:
    core = sharing_core()
    tell(core, NodeDraining(NodeId("n0")), 50.0)

    plan = plans(wake(core, ROUND_S))[0]

    assert plan.revoke_leases.tolist() == [0, 1]


def test_a_silent_server_keeps_both_leases_until_somebody_knows() -> None:
    core = sharing_core()
    tell(core, NodeUnreachable(NodeId("n0")), 50.0)

    wake(core, ROUND_S)

    assert core.jobs.stopping[:2].tolist() == [0, 1]
    assert {reason.kind for reason in reasons(core).values()} == {ReasonKind.LEASE_UNCLEAR}


def test_a_server_that_comes_back_with_one_of_a_pair_goes_on_with_it_alone() -> None:
    core = sharing_core()
    tell(core, NodeUnreachable(NodeId("n0")), 50.0)

    commands = tell(core, AgentRejoined(NodeId("n0"), np.array([1]), np.array([1]), np.array([400.0])), 60.0)

    assert killed(commands) == [(0, 0)]
    assert core.jobs.state[:2].tolist() == [JobState.WAITING, JobState.RUNNING]
    assert (core.pool.job.tolist(), core.pool.beside.tolist()) == ([1], [-1])


def test_a_server_that_comes_back_with_fewer_gpus_stops_both() -> None:
    core = sharing_core(gpus=2)

    commands = tell(core, NodeJoined(NodeId("n0"), "v100", 1), 50.0)

    assert killed(commands) == [(0, 0), (1, 1)]
    assert (core.pool.job == -1).all()


def test_a_pair_runs_where_both_checkpoints_are() -> None:
    """Neither node sees the shared directory: a job that has run on one stays there."""
    core = make_core(make_spec("a"), make_spec("b"), servers=(), packing=True, fill_leftover=False)
    tell(core, NodeJoined(NodeId("n0"), "v100", 1, sees_checkpoints=False))
    tell(core, NodeJoined(NodeId("n1"), "v100", 1, sees_checkpoints=False))
    wake(core, 0.0)
    pack(core, [(0, 1.0)], [])
    start(core, 0)
    end(core, 0, 0, Outcome.STOPPED, steps=100.0, now_s=100.0)
    core.question.renew()
    wake(core, ROUND_S)

    pack(core, [], [(0, 1, 1.0)])

    assert core.jobs.gpu_first[:2].tolist() == [0, 0]


def test_time_together_is_the_pairs_and_time_after_it_the_jobs_own() -> None:
    core = sharing_core(lag_half_life_s=1e12)
    end(core, 0, 0, Outcome.FINISHED, steps=1e6, now_s=100.0)

    found = account(core, 1, 160.0)

    assert core.jobs.claims.received_s.tolist() == [100.0]
    assert found.received_s.tolist() == pytest.approx([160.0])
    assert core.jobs.attained_gpu_s[:2].tolist() == [100.0, 100.0]


def test_while_the_partner_has_not_begun_half_of_the_time_is_the_pairs() -> None:
    core = make_packed(lag_half_life_s=1e12)
    pack(core, [], [(0, 1, 1.0)])
    start(core, 0)
    start(core, 1, now_s=100.0)

    wake(core, ROUND_S)

    assert core.jobs.claims.received_s.tolist() == pytest.approx([50.0 + 260.0])


def test_a_pair_without_a_share_is_remembered_while_it_has_a_claim() -> None:
    core = sharing_core()
    core.question.renew()
    wake(core, ROUND_S)
    pack(core, [(0, 0.5), (1, 0.5)], [])

    assert core.jobs.claims.target.tolist() == [0.0]
    assert core.jobs.claims.received_s[0] > 0


def test_a_restored_core_knows_its_pairs() -> None:
    core = sharing_core(gpus=2)

    again = restore(decode_state(encode_state(snapshot(core))))

    assert encode_state(snapshot(again)) == encode_state(snapshot(core))
    assert again.jobs.partner[:2].tolist() == [1, 0]
    assert plans(wake(again, ROUND_S))[0].extend_jobs.tolist() == [0, 1]


# Invalid shares and settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "kinds", "shares", "complaint"),
    [
        ([[0, 0]], [0], [0.5], "two jobs that ask for equally many GPUs"),
        ([[0, 2]], [0], [0.5], "two jobs that ask for equally many GPUs"),
        ([[0, 9]], [0], [0.5], r"pair_jobs must be in \[0, 3\)"),
        ([[0, 1]], [3], [0.5], r"pair_gpu_type must be in \[0, 1\)"),
        ([[0, 1]], [0], [1.5], r"pair_share must be in \[0, 1\]"),
        ([[0, 1]], [0, 0], [0.5], "of one length"),
        ([[0, 1], [1, 0]], [0, 0], [0.5, 0.5], "once a type"),
        ([[0, 1, 2]], [0], [0.5], r"shape \(P, 2\)"),
    ],
)
def test_shares_of_no_pair_are_refused(
    members: list[list[int]], kinds: list[int], shares: list[float], complaint: str
) -> None:
    core = make_core(make_spec("a"), make_spec("b"), make_spec("g", gpus=2), servers=(("v100", 2),), packing=True)
    wake(core, 0.0)
    none = np.zeros(0, dtype=np.int64)
    event = AllocationSolved(
        1, none, none, np.zeros(0), 0.0, 0.0, "", np.array(members), np.array(kinds), np.array(shares)
    )

    with pytest.raises(InvalidInput, match=complaint):
        core.handle(event, 0.0)


@pytest.mark.parametrize("wrong", [{"queue": QueueRule.BY_TYPE}, {"whole_steps": True}])
def test_settings_that_no_pair_can_live_with_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="where packing is on"):
        make_mechanism(packing=True, **wrong)


# In the long run -------------------------------------------------------------------------------------------------


@costly(12)  # each plays hundreds of rounds
@given(
    weights=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    rule=st.sampled_from(PriorityRule),
    gpus=st.integers(1, 2),
)
def test_received_time_comes_to_the_shares(weights: list[int], rule: PriorityRule, gpus: int) -> None:
    """The shares come from a rota of four ways to use the GPUs, so that they can be met exactly."""
    rota: list[list[tuple[int, ...]]] = [[(0, 1), (2, 3)], [(0, 2), (1,)], [(3,), (1, 2)], [(0,), (2, 3)]]
    ways = list(zip(weights, rota, strict=True))
    units = sorted({unit for way in rota for unit in way})
    share = {unit: sum(weight for weight, way in ways if unit in way) / sum(weights) for unit in units}
    core = make_packed(
        4, gpus, (("v100", 2 * gpus),), priority=rule, lag_half_life_s=1e9, fill_leftover=False, fill_within_round=False
    )
    pack(
        core,
        [(unit[0], part) for unit, part in share.items() if len(unit) == 1],
        [(unit[0], unit[1], part) for unit, part in share.items() if len(unit) == 2],
    )

    played(core, 20 * sum(weights))

    wanted = np.array([sum(part for unit, part in share.items() if job in unit) for job in range(4)])
    received_s = core.jobs.total("received_s")[:4, 0]
    assert received_s / core.now_s == pytest.approx(wanted, abs=0.06)
    pairs = core.jobs.claims
    assert pairs.received_s / core.now_s == pytest.approx(pairs.target, abs=0.06)
