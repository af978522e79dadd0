"""Proof that rate floors cannot be kept: a Farkas ray, checked by our own arithmetic.

For weights φ_j >= 0 on the floors, budgets μ_j >= 0 and prices p_t >= 0 that satisfy the inequality of certificate.py
(with λ = 0), no shares make Σ φ_j r_j more than Σ μ_j + Σ p_t W_t. So floors f with

    Σ φ_j f_j  >  Σ μ_j + Σ p_t W_t

contradict themselves. A solver supplies φ and p; signs are clipped and budgets raised here until the inequality holds,
for every configuration and type. A contradiction counts only above MARGIN: shares that a certificate accepts may miss a
floor, a budget and a capacity by 1e-9 each.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import LEAST_PROMISE, Duals, raised_budgets
from gavelpy.solve.program import best_rate_steps_per_s

MARGIN = 1e-8  # relative to both sides of the contradiction; ten times what certificates allow


class FloorsRefused(SolverFailed):
    """A rung has a ray that may prove the floors infeasible."""

    def __init__(self, problem: AllocationProblem, status: str, ray: Duals) -> None:
        super().__init__(status, jobs=problem.job_count, gpu_types=len(problem.gpu_types))
        self.ray = ray


def contradiction(problem: AllocationProblem, floor_steps_per_s: Floats, ray: Duals) -> float:
    """By how much floors, (J,), exceed what any shares give, relative to both; proved where it is above MARGIN.

    0 or less where the ray proves nothing.
    """
    if not all(np.isfinite(figures).all() for figures in (ray.floor, ray.budget, ray.price)):
        return 0.0
    ray = replace(ray, floor=np.maximum(ray.floor, 0.0), budget=np.maximum(ray.budget, 0.0))
    price, best = np.maximum(ray.price, 0.0), best_rate_steps_per_s(problem)
    worth = np.broadcast_to(ray.floor[:, None], (problem.job_count, len(price)))
    budget = raised_budgets(problem, _admissible(problem, best), worth, price, ray.budget)
    available = float(budget.sum() + price @ problem.gpu_counts)
    promised = float(ray.floor @ floor_steps_per_s)
    unit = available + float(ray.floor @ np.maximum(floor_steps_per_s, LEAST_PROMISE * best))
    return (promised - available) / unit if unit > 0 else 0.0


def _admissible(problem: AllocationProblem, best: Floats) -> Bools:
    """Configurations on types, (C, T), that may have a share: they fit, and every member can run by itself."""
    if problem.runs_alone:
        return problem.fits
    cannot = np.bincount(
        problem.member_configuration, weights=best[problem.member_job] <= 0, minlength=problem.configuration_count
    )
    admissible: Bools = problem.fits & (cannot == 0)[:, None]
    return admissible
