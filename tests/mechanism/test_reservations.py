"""GPUs that are reserved for gangs behind jobs that never saved: where, for how long, and against which jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import ConfigChanged, JobSubmitted, NodeJoined, NodeUnreachable, Outcome
from gavelpy.mechanism.original_gavel import QueueRule
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.requests import NONE_OPEN
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.mechanism.teams import Team
from gavelpy.model.job import JobSpec, NodeId
from tests.mechanism.builders import answer, end, make_core, make_spec, running_core, start, tell, wake

BOTH = {"v100": 10.0, "k80": 9.0}


def plan(core: SchedulerCore, now_s: float) -> None:
    """Wakes the core; the policy gives each job in its request the same share on each type it runs on."""
    wake(core, now_s)
    if core.question.open_epoch != NONE_OPEN:
        asked, types = core.question.asked_jobs.tolist(), range(len(core.pool.gpu_types))
        answer(core, *((job, k, 0.4) for job in asked for k in types if core.jobs.rate[job, k] > 0))
        wake(core, now_s)


def behind_two(*specs: JobSpec, servers: list[tuple[str, int]], **settings: object) -> SchedulerCore:
    """Jobs 0 and 1, which never save, occupy two V100s; `specs` are submitted, and a plan is made at 10 s."""
    core = running_core(make_spec("a"), make_spec("b"), servers=servers, keep_unsaved=True, **settings)
    for spec in specs:
        tell(core, JobSubmitted(spec), 10.0)
    plan(core, 10.0)
    return core


def finish(core: SchedulerCore, job: int, now_s: float) -> None:
    end(core, job, int(core.jobs.lease[job]), Outcome.FINISHED, now_s=now_s)


@pytest.mark.parametrize("queue", list(QueueRule))
def test_a_small_job_that_is_not_preemptible_leaves_the_reserved_type_alone(queue: QueueRule) -> None:
    core = behind_two(make_spec("gang", gpus=2), servers=[("v100", 2), ("k80", 1)], queue=queue)
    tell(core, JobSubmitted(make_spec("c", rates=BOTH)), 20.0)
    tell(core, JobSubmitted(make_spec("d", rates=BOTH)), 20.0)

    finish(core, 0, 20.0)
    plan(core, 20.0)

    assert core.jobs.lease_type[3] == 1
    assert core.jobs.lease[[2, 4]].tolist() == [-1, -1]
    assert reasons(core)[4].kind is ReasonKind.BEHIND_GANG


def test_a_gang_reserves_the_type_on_which_the_fewest_gpus_are_missing_then_the_fastest() -> None:
    """Of three K80s one is free; of the two V100s, the faster type, none is free before a ends."""
    core = make_core(
        make_spec("a"),
        make_spec("b"),
        make_spec("c", rates={"k80": 1.0}),
        make_spec("d", rates={"k80": 1.0}),
        servers=[("v100", 2), ("k80", 3)],
        keep_unsaved=True,
    )
    plan(core, 0.0)
    start(core, 0, 1, 2, 3)
    tell(core, JobSubmitted(make_spec("gang", gpus=2, rates=BOTH)), 10.0)
    tell(core, JobSubmitted(make_spec("e", rates=BOTH)), 10.0)
    plan(core, 10.0)
    assert core.jobs.lease[[4, 5]].tolist() == [-1, -1]

    finish(core, 0, 20.0)
    plan(core, 20.0)

    assert (core.jobs.lease[4], core.jobs.lease_type[5]) == (-1, 1)


def test_a_gang_reserves_no_type_on_which_it_does_not_run() -> None:
    core = behind_two(make_spec("gang", gpus=2), servers=[("v100", 2), ("k80", 3)])
    tell(core, JobSubmitted(make_spec("c")), 20.0)

    finish(core, 0, 20.0)
    plan(core, 20.0)

    assert core.jobs.lease[[2, 3]].tolist() == [-1, -1]
    assert reasons(core)[3].kind is ReasonKind.BEHIND_GANG


def test_a_gang_reserves_no_type_of_which_its_nodes_have_too_few_gpus() -> None:
    gang = make_spec("gang", gpus=3, rates=BOTH, nodes=("n0", "n2"))
    core = behind_two(gang, servers=[("v100", 3), ("k80", 2), ("k80", 2)])
    tell(core, JobSubmitted(make_spec("c")), 20.0)

    plan(core, 20.0)

    assert core.jobs.lease[[2, 3]].tolist() == [-1, -1]
    assert reasons(core)[3].kind is ReasonKind.BEHIND_GANG


def test_a_gang_that_may_still_run_on_an_unreachable_node_reserves_nothing() -> None:
    gang = make_spec("gang", gpus=2, preemptible=True, nodes=("n0", "n1"))
    core = make_core(gang, make_spec("a", nodes=("n1",)), servers=[("v100", 2), ("v100", 2)], keep_unsaved=True)
    plan(core, 0.0)
    start(core, 0, 1)
    tell(core, NodeUnreachable(NodeId("n0")), 10.0)
    plan(core, 360.0)
    assert core.jobs.gpus_stopping(0).tolist() == [0, 1]

    tell(core, JobSubmitted(make_spec("c")), 370.0)
    plan(core, 370.0)

    assert core.jobs.lease[0] == -1
    assert core.jobs.lease[2] >= 0


@pytest.mark.parametrize(
    "teams",
    [
        (Team("of_gang", quota={"v100": 3}), Team("other")),
        (Team("of_gang"), Team("other"), Team("third", guaranteed={"v100": 1})),
    ],
    ids=["beyond its quota", "with GPUs that are guaranteed to others"],
)
def test_a_gang_that_can_never_run_reserves_nothing(teams: tuple[Team, ...]) -> None:
    core = running_core(make_spec("a", entity="other"), servers=[("v100", 4)], keep_unsaved=True, teams=teams)
    tell(core, JobSubmitted(make_spec("gang", gpus=4, entity="of_gang")), 10.0)
    tell(core, JobSubmitted(make_spec("b", entity="other")), 10.0)

    plan(core, 10.0)

    assert (core.jobs.lease[1], core.jobs.lease_type[2]) == (-1, 0)


def test_a_gang_reserves_no_type_that_its_quota_keeps_it_from_but_another_one() -> None:
    teams = (Team("of_gang", quota={"k80": 1}), Team("other"))
    a, b = make_spec("a", entity="other"), make_spec("b", entity="other")
    core = running_core(a, b, servers=[("v100", 2), ("k80", 2)], keep_unsaved=True, teams=teams)
    tell(core, JobSubmitted(make_spec("gang", gpus=2, rates=BOTH, entity="of_gang")), 10.0)
    tell(core, JobSubmitted(make_spec("c", entity="other")), 10.0)
    plan(core, 10.0)

    finish(core, 0, 20.0)
    plan(core, 20.0)
    waits = core.jobs.lease[[2, 3]].tolist()
    finish(core, 1, 30.0)
    plan(core, 30.0)

    assert waits == [-1, -1]
    assert (core.jobs.lease_type[2], core.jobs.lease[3]) == (0, -1)


@pytest.mark.parametrize(("team_of_gang", "starts"), [("lab", True), ("owed", False)])
def test_what_is_guaranteed_to_a_team_is_not_reserved_for_gangs_of_others(team_of_gang: str, *, starts: bool) -> None:
    """Two of four GPUs are free, and one of them is guaranteed to a team of job c; the gang needs three."""
    teams = (Team("lab"), Team("owed", parent="lab", guaranteed={"v100": 1}))
    a, b = make_spec("a", entity="lab"), make_spec("b", entity="lab")
    core = running_core(a, b, servers=[("v100", 4)], keep_unsaved=True, teams=teams)
    tell(core, JobSubmitted(make_spec("gang", gpus=3, entity=team_of_gang)), 10.0)
    tell(core, JobSubmitted(make_spec("c", entity="owed")), 10.0)

    plan(core, 10.0)

    assert (core.jobs.lease[3] >= 0) == starts


def test_the_oldest_gang_reserves_first_and_the_next_another_type() -> None:
    specs = [make_spec("old", gpus=2, rates=BOTH), make_spec("young", gpus=2, rates=BOTH)]
    core = make_core(make_spec("a"), make_spec("b", rates={"k80": 1.0}), servers=[("v100", 2), ("k80", 2)])
    tell(core, ConfigChanged(replace(core.settings, keep_unsaved=True)))
    plan(core, 0.0)
    start(core, 0, 1)
    for spec in (*specs, make_spec("c", rates=BOTH)):
        tell(core, JobSubmitted(spec), 10.0)
    plan(core, 10.0)

    finish(core, 1, 20.0)
    plan(core, 20.0)

    assert core.jobs.lease_type[[2, 3, 4]].tolist() == [1, -1, -1]
    plan(core, 30.0)
    assert core.jobs.lease[[3, 4]].tolist() == [-1, -1]
    finish(core, 0, 40.0)
    plan(core, 40.0)
    assert core.jobs.lease_type[[3, 4]].tolist() == [0, -1]


def test_a_gang_that_the_policy_gives_no_share_loses_its_reservation() -> None:
    core = behind_two(make_spec("gang", gpus=2), make_spec("c"), servers=[("v100", 2)])
    finish(core, 0, 20.0)
    finish(core, 1, 20.0)
    wake(core, 20.0)
    answer(core, (3, 0, 0.5))

    wake(core, 360.0)

    assert core.jobs.lease[2] == -1
    assert core.jobs.lease[3] >= 0


def test_a_gang_keeps_its_reservation_until_the_policy_has_answered() -> None:
    core = behind_two(make_spec("gang", gpus=2), make_spec("c"), servers=[("v100", 2)], fill_leftover=False)
    finish(core, 0, 20.0)
    finish(core, 1, 20.0)
    wake(core, 20.0)

    wake(core, 30.0)  # the policy is late, and the plan is made without its answer

    assert core.jobs.lease[3] == -1
    answer(core, (2, 0, 0.1), (3, 0, 0.9), now_s=31.0)
    assert core.jobs.lease[[2, 3]].tolist() == [2, -1]


def test_a_gang_comes_first_when_all_gpus_that_it_needs_fall_free_at_once() -> None:
    core = behind_two(make_spec("gang", gpus=2), make_spec("c"), make_spec("d"), servers=[("v100", 2)])
    finish(core, 0, 20.0)
    finish(core, 1, 20.0)
    wake(core, 20.0)

    answer(core, (2, 0, 0.1), (3, 0, 0.9), (4, 0, 0.9))

    assert core.jobs.leased.tolist() == [2]


def test_gpus_of_one_directory_are_reserved_for_a_gang_whose_checkpoint_is_there() -> None:
    """Node n1 writes to a directory of its own: the gang cannot use its GPUs."""
    core = make_core(make_spec("a"), servers=[("v100", 2)], keep_unsaved=True)
    plan(core, 0.0)
    start(core, 0)
    tell(core, NodeJoined(NodeId("n1"), "v100", 1, sees_checkpoints=False), 5.0)
    tell(core, JobSubmitted(make_spec("gang", gpus=2)), 10.0)
    for name in "bcd":
        tell(core, JobSubmitted(make_spec(name)), 10.0)

    plan(core, 10.0)

    held = np.flatnonzero(core.pool.job >= 0)
    assert core.pool.node_of[held].tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(4))
def test_a_gang_starts_once_the_jobs_that_ran_before_it_have_ended(seed: int) -> None:
    """Small jobs keep arriving and run for up to 500 s; the gang of four starts within a round after that."""
    rng = np.random.default_rng(seed)
    core = make_core(*(make_spec(f"j{k}") for k in range(8)), servers=[("v100", 4), ("k80", 4)], keep_unsaved=True)
    plan(core, 0.0)
    start(core, *core.jobs.leased.tolist())
    tell(core, JobSubmitted(make_spec("gang", gpus=4)), 1.0)
    gang, ends_s = 8, dict.fromkeys(core.jobs.leased.tolist(), 400.0)

    now_s = 1.0
    while core.jobs.lease[gang] < 0 and now_s < 5000.0:
        now_s += 10.0
        name = f"s{now_s:g}"
        tell(core, JobSubmitted(make_spec(name, rates=BOTH, preemptible=bool(rng.integers(4) == 0))), now_s)
        for job in [job for job in core.jobs.leased.tolist() if ends_s.setdefault(job, now_s + 500.0) <= now_s]:
            finish(core, job, now_s)
        plan(core, now_s)
        granted = [job for job in core.jobs.leased.tolist() if core.jobs.state[job] == 1]
        for job in granted:
            start(core, job)

    assert now_s <= 400.0 + core.settings.round_s + 10.0


def test_a_restored_core_keeps_reservations() -> None:
    core = behind_two(make_spec("gang", gpus=2), make_spec("c"), servers=[("v100", 2)])
    copy = restore(snapshot(core))

    for one in (core, copy):
        finish(one, 0, 20.0)
        plan(one, 20.0)

    assert copy.jobs.lease[[2, 3]].tolist() == core.jobs.lease[[2, 3]].tolist() == [-1, -1]
