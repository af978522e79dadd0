"""Quotas and guaranteed GPUs of teams in requests, plans and reasons."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AllocationSolved, ConfigChanged, JobSubmitted
from gavelpy.mechanism.priority_classes import PriorityClass
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.mechanism.teams import Team, check_teams
from gavelpy.policies.base import policy_named
from tests.mechanism.builders import answer, make_core, make_spec, plans, questions, start, tell, wake

QUOTA = (Team("a", quota={"v100": 2}), Team("b"))
FLOOR = (Team("a", guaranteed={"v100": 2}), Team("b"))


def core_of(*teams_of_jobs: str, teams: tuple[Team, ...], gpus: int = 4, **options: Any) -> SchedulerCore:
    """A core with a job of one GPU for each of these teams."""
    of_job = {name: options.pop(name) for name in ("preemptible", "priority") if name in options}
    specs = [make_spec(f"j{k}", entity=team, **of_job) for k, team in enumerate(teams_of_jobs)]
    return make_core(*specs, servers=[("v100", gpus)], teams=teams, **options)


def share_of_all(core: SchedulerCore, share: float = 1.0) -> list[int]:
    """Answers the open request with the same share for all jobs; the jobs that get leases."""
    granted = plans(answer(core, *((row, 0, share) for row in core.question.asked_jobs.tolist()), now_s=core.now_s))
    return [job for plan in granted for job in plan.grant_jobs.tolist()]


def test_no_more_jobs_of_a_team_run_than_its_quota_allows() -> None:
    core = core_of("a", "a", "a", "b", teams=QUOTA)
    wake(core)

    assert share_of_all(core) == [0, 1, 3]
    assert reasons(core)[2].kind is ReasonKind.TEAM_QUOTA
    assert reasons(core)[2].text == "team a holds 2 of its quota of 2 v100"
    tell(core, JobSubmitted(make_spec("late", entity="a")))
    assert not plans(wake(core, 10.0)), "free GPUs within a round are not for a team that is at its quota"


def test_a_quota_holds_for_the_teams_below_together() -> None:
    teams = (Team("a", quota={"v100": 2}), Team("c", parent="a"), Team("d", parent="a"))
    core = core_of("c", "d", "a", "c", teams=teams)
    wake(core)

    assert share_of_all(core) == [0, 1]
    assert reasons(core)[3].text == "team a holds 2 of its quota of 2 v100"


def test_a_gang_larger_than_a_quota_is_not_in_the_problem() -> None:
    core = make_core(
        make_spec("gang", gpus=3, entity="a"), make_spec("other", entity="a"), servers=[("v100", 4)], teams=QUOTA
    )

    (question,) = questions(wake(core))

    assert question.jobs.tolist() == [1]
    assert reasons(core)[0].text == "needs 3 GPUs; the quota of team a is 2 v100"


def test_guaranteed_gpus_are_lent_and_returned_at_the_end_of_the_round_despite_lease_protection() -> None:
    core = core_of("b", "b", "b", "b", teams=FLOOR, lease_min_s=3600.0)
    wake(core)
    lent = share_of_all(core)
    start(core, *lent)
    tell(core, JobSubmitted(make_spec("back", entity="a")), 100.0)
    tell(core, JobSubmitted(make_spec("again", entity="a")), 100.0)
    within_round = plans(wake(core, 100.0)) + plans(answer(core, *((row, 0, 0.6) for row in range(6)), now_s=100.0))

    (plan,) = plans(wake(core, core.round_end_s))

    assert lent == [0, 1, 2, 3]
    assert not within_round
    assert plan.grant_jobs.tolist() == [4, 5]
    assert len(plan.revoke_jobs) == 2


def test_a_job_that_cannot_be_preempted_borrows_nothing() -> None:
    core = core_of("b", "b", "b", teams=FLOOR, keep_unsaved=True)
    wake(core)

    assert share_of_all(core) == [0, 1]
    assert reasons(core)[2].kind is ReasonKind.TEAM_GUARANTEED
    assert reasons(core)[2].text == "free v100 are guaranteed to team a; only jobs that can be preempted borrow them"


def test_a_job_that_cannot_be_preempted_gets_what_is_guaranteed_to_its_team_next_to_borrowers() -> None:
    """Found by seed 167 of `team_storm`: borrowers had taken more than was left for jobs that may not borrow."""
    own = make_spec("own", entity="a")
    borrowers = [make_spec(f"b{k}", entity="b", preemptible=True) for k in range(3)]
    core = make_core(*borrowers, own, servers=[("v100", 4)], teams=FLOOR, keep_unsaved=True)
    wake(core)

    assert share_of_all(core) == [0, 1, 2, 3]


def test_a_job_that_cannot_be_preempted_gets_what_is_guaranteed_next_to_a_protected_borrower() -> None:
    """Job 0 borrows the GPU of team a, which has no jobs; its share is now on a K80, but its lease is protected."""
    teams = (Team("a", guaranteed={"v100": 1}), Team("b", guaranteed={"v100": 2}), Team("c"))
    specs = (
        make_spec("x", entity="c", preemptible=True, rates={"v100": 10.0, "k80": 5.0}),
        make_spec("y", entity="b"),
        make_spec("z", entity="b"),
    )
    servers = (("v100", 3), ("k80", 1))
    core = make_core(*specs[:2], servers=servers, teams=teams, keep_unsaved=True, lease_min_s=3600.0)
    wake(core)
    start(core, *share_of_all(core))
    tell(core, JobSubmitted(specs[2]), core.round_end_s)
    wake(core)
    answer(core, (0, 1, 1.0), (2, 0, 1.0))
    wake(core, core.round_end_s)

    assert core.jobs.lease_type[[0, 1, 2]].tolist() == [0, 0, 0]


def test_a_gang_that_could_never_run_without_borrowing_has_that_reason() -> None:
    teams = (Team("a", guaranteed={"v100": 3}), Team("c", parent="a", guaranteed={"v100": 2}), Team("b"))
    lent = [make_spec(f"l{k}", entity="b", preemptible=True) for k in range(4)]
    gang = make_spec("gang", gpus=2, entity="b")
    core = make_core(*lent, gang, servers=[("v100", 4)], teams=teams, keep_unsaved=True)
    wake(core)

    assert share_of_all(core) == [0, 1, 2, 3]
    assert reasons(core)[4].kind is ReasonKind.TEAM_GUARANTEED
    assert reasons(core)[4].text == (
        "needs 2 GPUs; all but 1 v100 are guaranteed to team a; only jobs that can be preempted borrow them"
    )


def test_a_job_that_can_be_preempted_borrows_from_a_team_with_nothing_to_run() -> None:
    core = core_of("b", "b", "b", teams=FLOOR, keep_unsaved=True, preemptible=True)
    wake(core)

    assert share_of_all(core) == [0, 1, 2]


def test_gpus_of_jobs_that_are_not_preempted_count_for_the_quota_in_the_next_problem() -> None:
    core = core_of("a", "a", "b", teams=QUOTA, keep_unsaved=True)
    wake(core)
    start(core, *share_of_all(core))
    tell(core, JobSubmitted(make_spec("late", entity="a")), 50.0)
    tell(core, JobSubmitted(make_spec("other", entity="b")), 50.0)

    (question,) = questions(wake(core, 50.0))

    assert question.limits is not None
    assert question.limits.quota.tolist() == [[0.0], [math.inf]]
    assert question.problem.member_rate_steps_per_s.tolist() == [[0.0], [10.0]]


@pytest.mark.parametrize("preempts", [(), ("normal",)])
def test_a_higher_class_leaves_what_is_guaranteed_to_a_team_of_lower_classes(preempts: tuple[str, ...]) -> None:
    classes = (PriorityClass("high", 10, preempts),)
    core = make_core(
        *(make_spec(f"high{k}", entity="b", priority="high") for k in range(4)), make_spec("low", entity="a"),
        servers=[("v100", 4)], teams=FLOOR, priorities=classes,
    )  # fmt: skip
    (question,) = questions(wake(core))

    found = Engine(policy_named("max_min_fairness")).solve(question)
    assert isinstance(found, AllocationSolved)
    (plan,) = plans(tell(core, found))

    assert np.bincount(found.jobs, found.share) == pytest.approx([0.75] * 4 + [1.0])
    assert 4 in plan.grant_jobs
    assert len(plan.grant_jobs) == 4


@pytest.mark.parametrize(
    ("teams", "error"),
    [
        ((Team("a", quota={"v100": -1}),), r"teams.a.quota must be numbers of GPUs in \[0, 1000000\], got v100 = -1"),
        ((Team("a", quota={"": 1}),), "teams.a.quota must be GPUs by GPU type, got the type ''"),
        (
            (Team("a", quota={"v100": 1}, guaranteed={"v100": 2}),),
            "teams.a.quota must be at least the 2 v100 guaranteed to itself, got 1",
        ),
        (
            (Team("a", guaranteed={"v100": 2}), Team("b", parent="a", guaranteed={"v100": 3})),
            "teams.a.guaranteed must be at least the 3 v100 of the teams below it, got 2",
        ),
        (
            (Team("a", quota={"v100": 2}), Team("b", parent="a", guaranteed={"v100": 3})),
            "teams.a.quota must be at least the 3 v100 guaranteed to the teams below it, got 2",
        ),
    ],
)
def test_limits_that_cannot_hold_together_are_refused(teams: tuple[Team, ...], error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        check_teams(teams)


def test_limits_survive_the_journal_and_the_snapshot() -> None:
    teams = (Team("a", quota={"v100": 2}, guaranteed={"v100": 1, "k80": 3}), Team("b"))
    core = make_core(make_spec("a", entity="a"), teams=teams)

    _, event = decode(encode(ConfigChanged(core.settings), 1.0))
    restored = restore(decode_state(encode_state(snapshot(core))))

    assert isinstance(event, ConfigChanged)
    assert event.settings.teams == restored.settings.teams == teams
    assert hash(event.settings.teams) == hash(teams)


def test_teams_without_limits_are_written_as_before() -> None:
    plain, quoted = (encode(ConfigChanged(MechanismSettings(teams=teams)), 1.0) for teams in ((Team("a"),), QUOTA))

    assert (b"quota" in plain, b"quota" in quoted) == (False, True)
    assert (plain[1], quoted[1]) == (11, 12)
