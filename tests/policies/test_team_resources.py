"""CPU cores and memory in the limits of teams, against one plain linear program with a variable for each reserve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from gavelpy.mechanism.teams import Team, entities_of, limits_of
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.model.team_limits import TeamLimits
from gavelpy.policies.base import equal_share_rate, policy_named
from gavelpy.policies.team_rows import allocate_within
from gavelpy.traces.problem_json import parse_limited_problem
from gavelpy.traces.problem_resources import added
from gavelpy.traces.problem_writer import problem_text

TYPES = ("v100", "k80")
COLUMNS = ("v100", "k80", "k80:cpus", "v100:cpus", "v100:memory_gib")  # as `limits_of` orders them


def case(seed: int) -> tuple[AllocationProblem, TeamLimits]:
    """Jobs with CPU cores and memory, of a random tree of teams with limits on GPUs, cores and memory."""
    rng = np.random.default_rng(seed)
    E, J = int(rng.integers(1, 5)), int(rng.integers(1, 12))
    parent = [int(rng.integers(-1, k)) if k else -1 for k in range(E)]
    tree = [Team(f"t{k}", parent=f"t{parent[k]}" if parent[k] >= 0 else "") for k in range(E)]
    per_gpu, gpus = rng.choice([0.0, 1.0, 2.5, 4.0], (J, 2)), rng.choice([1, 1, 2, 4], J)
    rates = rng.uniform(1, 9, (J, 2)) * (rng.random((J, 2)) < 0.8)
    counts, entities = rng.integers(1, 9, 2), entities_of((), tuple(tree))[0]
    problem = AllocationProblem.of(
        [f"j{k}" for k in range(J)], TYPES, counts, rates, gpus=gpus, entity=rng.integers(-1, E, J), entities=entities
    )
    problem = added(problem, ("cpus", "memory_gib"), counts[:, None] * np.array([3.0, 4.0]), per_gpu * gpus[:, None])
    largest = np.array([8, 8, 24, 24, 32])
    guaranteed = np.floor(largest * rng.choice([0, 0, 0.2, 0.4], (E, 5)))
    for k in reversed(range(E)):
        below = guaranteed[[c for c in range(E) if parent[c] == k]].sum(axis=0)
        guaranteed[k] = np.where(guaranteed[k] > 0, np.maximum(guaranteed[k], below), 0.0)
    plain = TeamLimits(tuple(f"t{k}" for k in range(E)), np.array(parent), guaranteed, guaranteed, np.zeros(0, int))
    need = plain.reserves(np.zeros((E, 5)))[1]
    quota = np.where(rng.random((E, 5)) < 0.5, need + rng.integers(0, 6, (E, 5)), np.inf)
    teams = tuple(
        replace(
            one,
            quota={name: int(q) for name, q in zip(COLUMNS, quota[k], strict=True) if np.isfinite(q)},
            guaranteed={name: int(g) for name, g in zip(COLUMNS, guaranteed[k], strict=True) if g},
        )
        for k, one in enumerate(tree)
    )
    return problem, replace(limits_of((), teams, TYPES), team=problem.entity).needing(problem).usable_by(problem)


def columns_of(problem: AllocationProblem, limits: TeamLimits) -> list[tuple[int, Floats, float]]:
    """GPU type of each column, what each job needs of it, and what the problem has."""
    found = [(t, problem.occupied[:, 0], float(problem.gpu_counts[t])) for t in range(2)]
    for kind, name in limits.resources:
        r = problem.resources.index(name)
        found.append((kind, problem.occupied[:, r], problem.capacity[kind, r] / 1000))
    return found


def fits(problem: AllocationProblem, limits: TeamLimits, share: Floats) -> bool:
    """Whether shares keep to all limits, with what is guaranteed left free; team by team, column by column."""
    for k, (t, needed, capacity) in enumerate(columns_of(problem, limits)):
        own = [float((share[:, t] * needed)[limits.team == i].sum()) for i in range(len(limits.names))]
        reserve: dict[int, float] = {}

        def need(i: int) -> float:
            below = [c for c in range(len(limits.names)) if limits.parent[c] == i]
            return (own[i] if i >= 0 else float((share[:, t] * needed)[limits.team < 0].sum())) + sum(  # noqa: B023
                max(float(limits.guaranteed[c, k]), need(c))  # noqa: B023
                for c in below
            )

        reserve = {i: need(i) for i in range(-1, len(limits.names))}
        if reserve[-1] > capacity + 1e-6:
            return False
        if any(reserve[i] > limits.quota[i, k] + 1e-6 for i in range(len(limits.names))):
            return False
    return True


def best_level(problem: AllocationProblem, limits: TeamLimits, scale: Floats) -> float:
    """The largest level that all jobs which can run reach."""
    J, E = problem.job_count, len(limits.names)
    columns = columns_of(problem, limits)
    share, reserve = np.arange(J * 2).reshape(J, 2), J * 2 + np.arange(E * len(columns)).reshape(E, -1)
    level = J * 2 + reserve.size
    rows: list[Floats] = []
    bounds: list[float] = []

    def at_most(bound: float, *terms: tuple[int, float]) -> None:
        if np.isfinite(bound):
            row = np.zeros(level + 1)
            for place, factor in terms:
                row[place] += factor
            rows.append(row)
            bounds.append(bound)

    rate = problem.member_rate_steps_per_s
    for j in range(J):
        at_most(1.0, *((share[j, t], 1.0) for t in range(2)))
        if rate[j].any():
            at_most(0.0, (level, 1.0), *((share[j, t], -scale[j] * rate[j, t]) for t in range(2)))
    for r in range(1, 3):  # the resources themselves
        for t in range(2):
            at_most(problem.capacity[t, r] / 1000, *((share[j, t], problem.occupied[j, r]) for j in range(J)))
    for k, (t, needed, capacity) in enumerate(columns):
        for i in (*range(E), -1):
            need = [(int(share[j, t]), float(needed[j])) for j in range(J) if limits.team[j] == i]
            need += [(int(reserve[c, k]), 1.0) for c in range(E) if limits.parent[c] == i]
            at_most(capacity if i < 0 else float(limits.quota[i, k]), *need)
            if i >= 0:
                at_most(0.0, *need, (int(reserve[i, k]), -1.0))
                at_most(-float(limits.guaranteed[i, k]), (int(reserve[i, k]), -1.0))
    cost = np.zeros(level + 1)
    cost[level] = -1.0
    found = linprog(cost, A_ub=np.array(rows), b_ub=bounds, bounds=(0, None))
    assert found.status == 0, found.message
    return float(found.x[level])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_max_min_reaches_the_level_of_the_whole_program(seed: int) -> None:
    problem, limits = case(seed)
    rate = problem.member_rate_steps_per_s
    scale = problem.gpus_asked / (problem.weight * np.where(rate.any(axis=1), equal_share_rate(problem), 1.0))

    answer = allocate_within(policy_named("max_min_fairness"), problem, limits)

    fitted = limits.fitted(np.array([capacity for _, _, capacity in columns_of(problem, limits)]))
    assert fits(problem, fitted, answer.share)
    level = (scale * (answer.share * rate).sum(axis=1))[rate.any(axis=1)].min(initial=np.inf)
    assert not np.isfinite(level) or level >= best_level(problem, fitted, scale) * (1 - 1e-6) - 1e-9
    assert answer.certificate.violation < 1e-6


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_problem_files_have_the_limits(seed: int) -> None:
    problem, limits = case(seed)
    problem = replace(problem, entity=np.maximum(problem.entity, 0))
    limits = replace(limits, team=problem.entity)

    again, found = parse_limited_problem(problem_text(problem, limits))

    assert again.job_ids == problem.job_ids
    if found is not None and len(found.resources) == len(limits.resources):
        assert np.array_equal(found.quota, limits.quota)
        assert np.allclose(found.per_gpu, limits.per_gpu)
