"""Weak duality in exact rationals: floats are converted without rounding.

For any λ >= 0 (one for each job in the objective), φ >= 0, budgets μ >= 0 and prices p >= 0 with

    Σ_{j in c} (λ_j v_t + φ_j) rate_cjt  ≤  g_c p_t + Σ_{j in c} μ_j      wherever configuration c may run on type t

(v_t is the worth of a rate on type t, 1 for a level), Σ_j λ_j Σ_t v_t r_jt <= Σ_j μ_j + Σ_t W_t p_t - Σ_j φ_j floor_j
for all feasible shares. So any such duals, from any source, prove how good an answer is. Budgets are raised here until
the inequalities hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.objective import MaxMin, MaxSum


@dataclass(frozen=True, eq=False)
class Duals:
    """Any duals, as floats; if the objective is a level, all have the same unknown positive factor."""

    weight: Floats  # λ; if the objective is a sum, the gain is used instead
    floor: Floats  # (J,) φ
    budget: Floats  # lower bound of μ
    price: Floats  # (T,)


@dataclass(frozen=True)
class Proof:
    """Exact figures of an answer."""

    objective: Fraction
    bound: Fraction | None  # None: the duals prove nothing
    violation: Fraction

    @property
    def gap(self) -> float:
        """How far the objective may be below the optimum, relative to itself."""
        if self.bound is None:
            return float("inf")
        if self.bound <= self.objective:
            return 0.0
        return float((self.bound - self.objective) / self.objective) if self.objective else float("inf")


def proof(problem: AllocationProblem, objective: MaxMin | MaxSum, share: Floats, duals: Duals) -> Proof:
    """The bound that `duals` prove for `share`."""
    shares, rates = _fractions(share), _fractions(problem.member_rate_steps_per_s)
    value = _value(problem, objective, _rates(problem, rates, shares))
    bound = _bound(problem, objective, rates, duals)
    return Proof(value, bound, _violation(problem, objective, shares, _rates(problem, rates, shares)))


def _rates(
    problem: AllocationProblem, rates: list[list[Fraction]], shares: list[list[Fraction]]
) -> list[list[Fraction]]:
    """The rate of each job on each type, J lists of T."""
    found = [[Fraction(0)] * len(problem.gpu_types) for _ in range(problem.job_count)]
    for configuration, job, row in _members(problem, rates):
        each = zip(found[job], row, shares[configuration], strict=True)
        found[job] = [before + r * x for before, r, x in each]
    return found


def _value(problem: AllocationProblem, objective: MaxMin | MaxSum, rate: list[list[Fraction]]) -> Fraction:
    if isinstance(objective, MaxSum):
        worth = _worth(problem, objective)
        earned = (sum(w * r for w, r in zip(worth, row, strict=True)) for row in rate)
        return sum((Fraction(g) * e for g, e in zip(objective.gain.tolist(), earned, strict=True)), Fraction(0))
    part = np.flatnonzero(has_part(problem, objective)).tolist()
    scale, base = objective.scale.tolist(), bases(problem, objective).tolist()
    return min(Fraction(scale[j]) * (sum(rate[j]) - Fraction(base[j])) for j in part)


def _bound(
    problem: AllocationProblem, objective: MaxMin | MaxSum, rates: list[list[Fraction]], duals: Duals
) -> Fraction | None:
    weight, unit = _weights(problem, objective, duals)
    if not unit:
        return None
    floor = [Fraction(f) for f in np.maximum(duals.floor, 0.0).tolist()]
    price = [Fraction(p) for p in np.maximum(duals.price, 0.0).tolist()]
    budget = [Fraction(b) for b in np.maximum(duals.budget, 0.0).tolist()]
    if problem.runs_alone:
        budget = [Fraction(0)] * problem.job_count
    of_type = _worth(problem, objective)
    worth: dict[int, list[Fraction]] = {}
    members: dict[int, list[int]] = {}
    for configuration, job, row in _members(problem, rates):
        by_type = worth.setdefault(configuration, [Fraction(0)] * len(price))
        each = zip(by_type, row, of_type, strict=True)
        worth[configuration] = [before + (weight[job] * w + floor[job]) * r for before, r, w in each]
        members.setdefault(configuration, []).append(job)
    here, demand = admissible(problem), problem.demand[:, 0].tolist()
    for configuration, jobs in members.items():
        gpus = Fraction(demand[configuration], 1000)
        over = (worth[configuration][t] - gpus * price[t] for t in np.flatnonzero(here[configuration]).tolist())
        missing = max(over, default=Fraction(0)) - sum(budget[job] for job in jobs)
        if missing > 0:
            for job in jobs:
                budget[job] += missing / len(jobs)
    capacity = zip(price, problem.capacity[:, 0].tolist(), strict=True)
    total = sum(budget, Fraction(0)) + sum((p * Fraction(w, 1000) for p, w in capacity), Fraction(0))
    total -= _product(floor, floors(problem, objective))
    if isinstance(objective, MaxMin):
        total -= _product(weight, bases(problem, objective))
    return total / unit


def _weights(problem: AllocationProblem, objective: MaxMin | MaxSum, duals: Duals) -> tuple[list[Fraction], Fraction]:
    """λ, and the factor that turns a bound on Σ λ r into one on the objective."""
    if isinstance(objective, MaxSum):
        return [Fraction(g) for g in objective.gain.tolist()], Fraction(1)
    weights = np.where(has_part(problem, objective), np.maximum(duals.weight, 0.0), 0.0).tolist()
    weight = [Fraction(w) for w in weights]
    scaled = zip(weight, objective.scale.tolist(), strict=True)
    return weight, sum((w / Fraction(s) for w, s in scaled if w), Fraction(0))


def _violation(
    problem: AllocationProblem,
    objective: MaxMin | MaxSum,
    shares: list[list[Fraction]],
    rate: list[list[Fraction]],
) -> Fraction:
    """Largest violation of a sign, a time budget, a capacity or a floor (both relative), or of what can run; >= 0.

    Floors: relative to the floor, or to a millionth of the job's best rate.
    """
    found = [Fraction(0)]
    here = admissible(problem)
    used = [Fraction(0)] * len(problem.gpu_types)
    time = [Fraction(0)] * problem.job_count
    demand = problem.demand[:, 0].tolist()
    for configuration, row in enumerate(shares):
        found += [-x for x in row] + [row[t] for t in np.flatnonzero(~here[configuration]).tolist()]
        used = [u + Fraction(demand[configuration], 1000) * x for u, x in zip(used, row, strict=True)]
    for configuration, job in zip(problem.member_configuration.tolist(), problem.member_job.tolist(), strict=True):
        time[job] += sum(shares[configuration])
    found += [t - 1 for t in time]
    for u, thousandths in zip(used, problem.capacity[:, 0].tolist(), strict=True):
        gpus = Fraction(thousandths, 1000)
        found.append((u - gpus) / (gpus or 1))
    best = problem.rate_alone_steps_per_s.max(axis=1, initial=0.0)
    least = zip(floors(problem, objective).tolist(), best.tolist(), rate, strict=True)
    found += [(Fraction(f) - sum(r)) / Fraction(max(f, 1e-6 * b)) for f, b, r in least if f > 0]
    return max(found)


def has_part(problem: AllocationProblem, objective: MaxMin) -> Bools:
    """Jobs over which the minimum is taken, (J,)."""
    return problem.can_run & (objective.scale > 0)


def floors(problem: AllocationProblem, objective: MaxMin | MaxSum) -> Floats:
    """Rate floors, (J,)."""
    asked = objective.rate_floor_steps_per_s
    return asked if len(asked) else np.zeros(problem.job_count)


def bases(problem: AllocationProblem, objective: MaxMin) -> Floats:
    """Rates from which levels are counted, (J,)."""
    return objective.base_steps_per_s if len(objective.base_steps_per_s) else np.zeros(problem.job_count)


def admissible(problem: AllocationProblem) -> Bools:
    """Where a configuration may run, (C, T): it fits, and every member can run by itself somewhere."""
    nobody_left_out = np.ones(problem.configuration_count, dtype=np.bool_)
    np.logical_and.at(nobody_left_out, problem.member_configuration, problem.can_run[problem.member_job])
    return problem.fits & nobody_left_out[:, None]


def _worth(problem: AllocationProblem, objective: MaxMin | MaxSum) -> list[Fraction]:
    given = getattr(objective, "gpu_type_worth", np.zeros(0)).tolist()
    return [Fraction(w) for w in given or [1.0] * len(problem.gpu_types)]


def _members(problem: AllocationProblem, rates: list[list[Fraction]]) -> Iterable[tuple[int, int, list[Fraction]]]:
    return zip(problem.member_configuration.tolist(), problem.member_job.tolist(), rates, strict=True)


def _product(first: list[Fraction], second: Floats) -> Fraction:
    return sum((a * Fraction(b) for a, b in zip(first, second.tolist(), strict=True) if a), Fraction(0))


def _fractions(figures: Floats) -> list[list[Fraction]]:
    return [[Fraction(x) for x in row] for row in figures.tolist()]
