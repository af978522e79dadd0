"""The answer of a rung, the limits of its certificate, and the even split that is returned if no rung succeeds.

The even split divides the GPUs of each type evenly among the jobs that can run, each alone. Any prices prove a bound,
so its gap is correct, however large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Floats
from gavelpy.solve.certificate import Duals
from gavelpy.solve.program import Program

GAP_MAX = 1e-8
GAP_MAX_CONCAVE = 1e-6
VIOLATION_MAX = 1e-9
EVEN_SPLIT = "even split"  # path of its certificate


@dataclass(frozen=True, eq=False)
class Answer:
    """Shares with their certificate."""

    share: Floats  # (C, T)
    prices: Floats  # (T,) objective gained by one more GPU of each type
    certificate: Certificate
    unproved: int = 0  # jobs whose own gap is above the limit, if gaps are computed by job


def best_of(answers: Sequence[Answer], fallen: Mapping[str, str], gap_max: float) -> Answer:
    """The answer with the least gap, and a warning with the reason why each rung (name -> reason) was rejected."""
    best = min(answers, key=lambda answer: answer.certificate.gap)
    c = best.certificate
    reasons = "; ".join(f"{rung}: {reason}" for rung, reason in fallen.items())
    jobs = f", for {best.unproved} jobs" if best.unproved else ""
    warning = f"feasible, but proved to a gap of {c.gap:.1e} only, not to {gap_max:.0e}{jobs} ({reasons})"
    return replace(best, certificate=replace(c, warning=warning))


def even_shares(program: Program) -> Floats:
    """Shares (C, T): the first configuration of each of n jobs alone has W_t / (n g) of each type on which it runs."""
    problem, share = program.problem, np.zeros(program.problem.fits.shape)
    lone = problem.member_count[problem.member_configuration] == 1
    members = np.flatnonzero(lone & program.admissible[problem.member_configuration].any(axis=1))
    jobs, first = np.unique(problem.member_job[members], return_index=True)
    rows = problem.member_configuration[members[first]]
    part = problem.gpu_counts / max(1, len(jobs)) / problem.gpus_occupied[rows, None]
    part = np.where(program.admissible[rows], part, 0.0)
    share[rows] = part / np.maximum(part.sum(axis=1, keepdims=True), 1.0)
    return share


def even_duals(program: Program) -> Duals:
    """Duals that prove a bound on any level: GPUs of all types have the same price."""
    problem = program.problem
    gpus = problem.gpu_counts
    price = np.full(len(gpus), 1.0 / max(float(gpus.sum()), 1.0))
    cost = problem.gpus_occupied[problem.member_configuration] / problem.member_count[problem.member_configuration]
    cost = cost[:, None] * price
    rate = np.where(program.admissible[problem.member_configuration], problem.member_rate_steps_per_s, 0.0)
    least = np.divide(cost, rate, out=np.full(rate.shape, np.inf), where=rate > 0).min(axis=1, initial=np.inf)
    worth = np.full(problem.job_count, np.inf)
    np.minimum.at(worth, problem.member_job, least)
    none = np.zeros(problem.job_count)
    return Duals(level=np.where(np.isfinite(worth), worth, 0.0), floor=none, budget=none, price=price)
