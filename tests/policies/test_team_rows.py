"""Allocations within quotas and with guaranteed GPUs, against one linear program with a variable for each reserve."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.teams import Team, entities_of, limits_of
from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.model.team_limits import TeamLimits
from gavelpy.model.team_problem import TeamProblem
from gavelpy.policies.base import equal_share_rate, policy_named, registered
from gavelpy.policies.hierarchical import Hierarchical
from gavelpy.policies.team_rows import allocate_within

TYPES = ("v100", "k80")


def case(seed: int) -> tuple[AllocationProblem, TeamLimits]:
    """Jobs of a random tree of teams; what is guaranteed may be more than there is."""
    rng = np.random.default_rng(seed)
    E, J = int(rng.integers(1, 6)), int(rng.integers(1, 14))
    parent = [int(rng.integers(-1, k)) if k else -1 for k in range(E)]
    guaranteed = rng.choice([0, 0, 1, 2, 4], (E, 2)).astype(float)
    for k in reversed(range(E)):  # what teams have guaranteed below them is a part of their own
        below = guaranteed[[c for c in range(E) if parent[c] == k]].sum(axis=0)
        guaranteed[k] = np.where((guaranteed[k] > 0) | (rng.random(2) < 0.5), np.maximum(guaranteed[k], below), 0.0)
    teams = [Team(f"t{k}", 1.0 + k, parent=f"t{parent[k]}" if parent[k] >= 0 else "") for k in range(E)]
    entities, _ = entities_of((), tuple(teams))
    team, gpus = rng.integers(-1, E, J), rng.choice([1, 1, 2, 4], J)
    rates = rng.uniform(1, 9, (J, 2)) * (rng.random((J, 2)) < 0.8)
    problem = AllocationProblem.of(
        [f"j{k}" for k in range(J)], TYPES, rng.integers(1, 9, 2), rates, gpus=gpus, entity=team, entities=entities
    )
    limits = limits_of((), tuple(teams), TYPES)
    need = TeamLimits(limits.names, limits.parent, limits.quota, guaranteed, team).reserves(np.zeros((E, 2)))[1]
    quota = np.where(rng.random((E, 2)) < 0.5, need + rng.choice([0, 1, 2, 4], (E, 2)), np.inf)
    whole = TeamLimits(limits.names, limits.parent, quota, guaranteed, team)
    return problem, whole.usable(problem.gpus_asked, rates > 0)


def best_level(problem: AllocationProblem, limits: TeamLimits, scale: Floats, counts: Bools) -> float:
    """The largest level that all jobs that count (J,) reach, with a variable for the reserve of each team."""
    limits = limits.fitted(problem.gpu_counts)
    J, E, T = problem.job_count, len(limits.names), 2
    share = np.arange(J * T).reshape(J, T)
    reserve = J * T + np.arange(E * T).reshape(E, T)
    level = J * T + E * T
    rows: list[Floats] = []
    bounds: list[float] = []

    def at_most(bound: float, *terms: tuple[int, float]) -> None:
        if np.isfinite(bound):
            row = np.zeros(level + 1)
            for place, factor in terms:
                row[place] += factor
            rows.append(row)
            bounds.append(bound)

    for j in range(J):
        at_most(1.0, *((share[j, t], 1.0) for t in range(T)))
        if counts[j]:
            rate = problem.member_rate_steps_per_s[j]
            at_most(0.0, (level, 1.0), *((share[j, t], -scale[j] * rate[t]) for t in range(T)))
    for t in range(T):
        for i in (*range(E), -1):
            need = [(int(share[j, t]), float(problem.gpus_asked[j])) for j in range(J) if limits.team[j] == i]
            need += [(int(reserve[c, t]), 1.0) for c in range(E) if limits.parent[c] == i]
            at_most(float(problem.gpu_counts[t] if i < 0 else limits.quota[i, t]), *need)
            if i >= 0:
                at_most(0.0, *need, (int(reserve[i, t]), -1.0))
                at_most(-float(limits.guaranteed[i, t]), (int(reserve[i, t]), -1.0))
    cost = np.zeros(level + 1)
    cost[level] = -1.0
    found = linprog(cost, A_ub=np.array(rows), b_ub=bounds, bounds=(0, None))
    assert found.status == 0, found.message
    return float(found.x[level])


@given(seed=st.integers(0, 10_000))
def test_max_min_reaches_the_level_of_the_whole_program(seed: int) -> None:
    problem, limits = case(seed)
    policy = policy_named("max_min_fairness")

    answer = allocate_within(policy, problem, limits)

    within = limits.fitted(problem.gpu_counts)
    assert not TeamProblem(within, problem).exceeded(answer.share)
    own = within.of_teams(problem.gpus_asked[:, None] * answer.share, within.team)
    assert (within.with_below(own) <= within.quota + 1e-6).all()
    if (counts := answer.problem.can_run).any():
        scale = problem.gpus_asked / (problem.weight * equal_share_rate(problem))
        expected = best_level(problem, limits, scale, counts)
        assert answer.certificate.objective == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_a_team_has_no_more_than_its_quota_and_its_price_is_known() -> None:
    problem = AllocationProblem.of(
        "abcd", ["v100"], [4], [[2.0]] * 4, entity=[0, 0, 0, 1], entities=entities_of((), TWO)[0]
    )

    answer = allocate_within(policy_named("max_min_fairness"), problem, limits_with(problem, TWO))
    by_team = allocate_within(Hierarchical(), problem, limits_with(problem, TWO))

    assert answer.share.ravel() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 1.0])
    assert by_team.share.ravel() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 1.0])
    assert answer.problem.resources == ("gpu", "GPU of the quota of a")
    assert (answer.other_prices[0, 0], answer.shadow_prices[0]) == pytest.approx((1 / 3, 0.0))


def test_gpus_guaranteed_to_a_team_are_kept_from_others_while_its_jobs_can_use_them() -> None:
    teams = (Team("a"), Team("b", guaranteed={"v100": 3}))
    problem = AllocationProblem.of(
        "abcde",
        ["v100"],
        [4],
        [[2.0]] * 5,
        entity=[0, 0, 0, 1, 1],
        entities=entities_of((), teams)[0],
        weight=[9, 9, 9, 1, 1],
    )

    answer = allocate_within(policy_named("max_min_fairness"), problem, limits_with(problem, teams))

    assert answer.share.ravel() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 1.0, 1.0])
    assert answer.problem.resources == ("gpu", "GPU not guaranteed to b")


def test_a_team_at_its_quota_does_not_block_the_queue_of_others() -> None:
    problem = AllocationProblem.of(
        "abcd", ["v100"], [4], [[2.0]] * 4, entity=[0, 0, 0, 1], entities=entities_of((), TWO)[0]
    )

    answer = allocate_within(policy_named("fifo"), problem, limits_with(problem, TWO))

    assert answer.share.ravel().tolist() == [1.0, 1.0, 0.0, 1.0]


def test_nothing_is_kept_for_a_gang_that_needs_more_than_is_guaranteed() -> None:
    teams = (Team("a"), Team("b", guaranteed={"v100": 3}))
    problem = AllocationProblem.of(
        "ab", ["v100"], [4], [[2.0]] * 2, gpus=[4, 4], entity=[0, 1], entities=entities_of((), teams)[0]
    )

    assert not limits_with(problem, teams).guaranteed.any()


WITHOUT_RESOURCES = {
    "allox", "conservative_backfilling", "easy_backfilling", "elasticflow", "gandiva", "gandiva_fair", "shockwave",
    "strategy_proof", "themis",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(registered()))
def test_every_policy_keeps_to_the_limits_or_refuses_them(name: str) -> None:
    policy = registered()[name]()
    problem, limits = case(0)
    if name in WITHOUT_RESOURCES:
        with pytest.raises(InvalidInput, match=f"policy '{name}' does not use other resources, so it cannot keep to"):
            allocate_within(policy, problem, limits)
        return
    for seed in range(8):
        problem, limits = case(seed)
        answer = allocate_within(policy, problem, limits)
        held = problem.gpus_asked[:, None] * answer.share
        assert held_is_within(limits.fitted(problem.gpu_counts), held, problem)


def held_is_within(limits: TeamLimits, held: Floats, problem: AllocationProblem) -> bool:
    """Whether all needs are within quotas and GPUs, by recursion."""

    def need(team: int, t: int) -> float:
        below = (c for c in range(len(limits.names)) if limits.parent[c] == team)
        own = float(held[limits.team == team, t].sum())
        return own + sum(max(need(c, t), float(limits.guaranteed[c, t])) for c in below)

    teams = range(-1, len(limits.names))
    most = [problem.gpu_counts if team < 0 else limits.quota[team] for team in teams]
    return all(need(team, t) <= most[team + 1][t] + 1e-6 for team in teams for t in range(len(TYPES)))


TWO = (Team("a", quota={"v100": 2}), Team("b"))


def limits_with(problem: AllocationProblem, teams: tuple[Team, ...]) -> TeamLimits:
    """The limits of these teams, and of the problem's jobs."""
    found = limits_of((), teams, problem.gpu_types)
    whole = TeamLimits(found.names, found.parent, found.quota, found.guaranteed, problem.entity)
    return whole.usable(problem.gpus_asked, problem.member_rate_steps_per_s > 0)


def test_a_team_borrows_what_others_have_and_do_not_use() -> None:
    teams = (Team("a", guaranteed={"v100": 3}), Team("b", guaranteed={"v100": 1}), Team("c"), Team("d", parent="a"))
    limits = limits_of((), teams, ("v100",))
    own = np.array([[0.0], [2.0], [4.0], [1.0], [0.0]])  # d is below a; the last row: jobs of no team

    borrowed, lent = limits.loans(own, np.array([8.0]))

    assert lent.ravel().tolist() == [1.0, 0.0, 0.0, 0.0]  # 3 + 2 + 4 GPUs are more than 8
    assert borrowed.ravel().tolist() == [0.0, 0.0, 1.0, 0.0]
    assert not limits.loans(own, np.array([9.0]))[1].any()
