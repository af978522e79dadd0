"""Further data of golden cases for some policies: prices, deadlines, ages, and shares of pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from tests.policies.golden import GoldenCase


def detailed_problem(case: GoldenCase) -> AllocationProblem:
    """The case's problem with prices, deadlines and ages."""
    jobs = case.content["jobs"]
    return replace(
        case.problem(),
        price_usd_per_gpu_h=np.array([case.content["instance_costs"][t] for t in case.gpu_types]),
        deadline_s=np.array([j["slo_remaining_s"] or np.inf for j in jobs]),
        age_s=np.array([j["time_since_start_s"] for j in jobs]),
    )


def configuration_shares(case: GoldenCase, policy: str) -> Floats:
    """The original's shares, (C, T): jobs alone, then pairs in the order of the file."""
    rows = case.result(policy)["allocation"]
    keys = [str(job["id"]) for job in case.content["jobs"]]
    keys += [",".join(map(str, pair["jobs"])) for pair in case.content["pair_throughputs"]]
    return np.array([[rows[key][t] for t in case.gpu_types] for key in keys])


def sum_per_dollar(problem: AllocationProblem, share: Floats) -> float:
    """sum_tput_per_cost: Σ_ij T_ij X_ij / c_j, one membership after another."""
    total = 0.0
    for member, configuration in enumerate(problem.member_configuration):
        total += float(
            (problem.member_rate_steps_per_s[member] * share[configuration]) @ (1 / problem.price_usd_per_gpu_h)
        )
    return total
