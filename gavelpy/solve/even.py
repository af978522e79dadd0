"""Shares that need no solver: what is answered where every algorithm has failed.

The GPUs of each type are divided evenly among the jobs that can run, each alone. Any prices prove a bound, so the
answer has an honest gap, large as it may be.
"""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.solve.certificate import Duals
from gavelpy.solve.program import Program

PATH = "even split"


def even_shares(program: Program) -> Floats:
    """Shares (C, T): a job's first configuration by itself has W_t / (n g) of each type where it runs."""
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
    """Duals that prove a bound on any level: a GPU costs the same whatever its type."""
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
