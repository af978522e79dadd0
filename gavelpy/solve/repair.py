"""From a solver's shares, right to its tolerance, to shares that keep every constraint to rounding."""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Bools, Floats
from gavelpy.solve.certificate import rate_steps_per_s, time_of_jobs
from gavelpy.solve.program import Program

NOISE = 1e-13  # shares below are zero: a hundred thousandth of a second in a year
DUST = 1e-10  # of a job's rate; what adds less is rounding, and would look like a target share to the mechanism
_DEFICIT = 5e-10  # relative; jobs further below their least rate get the time they lack
_ROUNDING = 4 * np.finfo(np.float64).eps


def repaired(
    program: Program,
    share: Floats,
    least_steps_per_s: Floats,
    base_steps_per_s: Floats | None = None,
    *,
    dust: float = DUST,
) -> Floats:
    """Shares (C, T) without negative entries, lifted to the least rates (J,), scaled into time budgets and capacities.

    A job far quicker than the others needs so little time for its rate that a solver's absolute tolerance hides it:
    it gets that time here, and all pay for it in the scaling, by no more than the tolerance. What counts is the rate
    above the base (J,), zero if not given: a level between rates that are nearly equal needs more of their digits.
    Shares that add less than the part `dust` to all rates concerned are left out.
    """
    clean: Floats = np.where((share > NOISE) & program.admissible, share, 0.0)
    clean *= _matters(program, clean, dust)
    if base_steps_per_s is None:
        _lift(program, clean, least_steps_per_s, _DEFICIT * least_steps_per_s)
    else:
        allowed = _DEFICIT * np.abs(least_steps_per_s - base_steps_per_s)
        _lift(program, clean, least_steps_per_s * (1 + _ROUNDING), allowed)
    return _scaled_back(program, clean)


def _matters(program: Program, share: Floats, dust: float) -> Bools:
    """Whether a share adds to the rate of some member of its configuration, (C, T)."""
    p = program.problem
    rates = rate_steps_per_s(p, share)
    if p.runs_alone:
        alone: Bools = p.member_rate_steps_per_s * share > dust * rates[:, None]
        return alone
    matters: Bools = np.zeros(share.shape, dtype=np.bool_)
    runs = np.flatnonzero(np.einsum("ct->c", share)[p.member_configuration])  # of many pairs, few do
    at = p.member_configuration[runs]
    adds = p.member_rate_steps_per_s[runs] * share[at] > dust * rates[p.member_job[runs], None]
    np.logical_or.at(matters, at, adds)
    return matters


def _lift(program: Program, share: Floats, least_steps_per_s: Floats, allowed_steps_per_s: Floats) -> None:
    """Adds to `share` the time on its best type that each job lacks to reach its least rate, if more than allowed."""
    problem = program.problem
    lacking_steps_per_s = least_steps_per_s - rate_steps_per_s(problem, share)
    short = (lacking_steps_per_s > allowed_steps_per_s) & (program.best_rate_steps_per_s > 0)
    if not short.any():
        return
    members = np.flatnonzero(short[problem.member_job] & (problem.member_count[problem.member_configuration] == 1))
    possible = program.admissible[problem.member_configuration[members]]
    rates = np.where(possible, problem.member_rate_steps_per_s[members], 0.0)
    gpu_types, best = rates.argmax(axis=1), rates.max(axis=1)
    jobs = problem.member_job[members]
    order = np.lexsort((-best, jobs))  # the best configuration of each job first
    _, first = np.unique(jobs[order], return_index=True)
    chosen = order[first]
    lacking = np.minimum(lacking_steps_per_s[jobs[chosen]] / best[chosen], 1.0)
    share[problem.member_configuration[members[chosen]], gpu_types[chosen]] += lacking


def _scaled_back(program: Program, share: Floats) -> Floats:
    problem = program.problem
    over = np.maximum(time_of_jobs(problem, share), 1.0)
    if problem.runs_alone:
        share = share / over[:, None]
    else:
        worst: Floats = np.ones(problem.configuration_count)
        np.maximum.at(worst, problem.member_configuration, over[problem.member_job])
        share = share / worst[:, None]
    used, gpus = problem.gpus_occupied @ share, problem.gpu_counts
    return share * np.where(used > gpus, gpus / np.where(used > 0, used, 1.0), 1.0)
