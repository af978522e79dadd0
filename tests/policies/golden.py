"""Reads a golden case as a problem, and evaluates shares by the formulas of the case's own README."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem, BlindView

VIEWS = {"true": None, "ones": BlindView.ONES, "v100": BlindView.FIRST}


@dataclass(frozen=True)
class GoldenCase:
    """One file: its problem under a view of rates, and the results of the original and of an independent solver."""

    content: dict[str, Any]

    @property
    def gpu_types(self) -> list[str]:
        return list(self.content["worker_types"])

    def result(self, policy: str) -> dict[str, Any]:
        found: dict[str, Any] = self.content["results"][policy]
        return found

    def problem(self, view: str = "true") -> AllocationProblem:
        jobs, types = self.content["jobs"], self.gpu_types
        row = {job["id"]: i for i, job in enumerate(jobs)}
        alone = AllocationProblem.of(
            [str(job["id"]) for job in jobs],
            types,
            [self.content["cluster_spec"][t] for t in types],
            [[job["throughputs"][t] for t in types] for job in jobs],
            gpus=[job["scale_factor"] for job in jobs],
            weight=[job["priority_weight"] for job in jobs],
            steps_remaining=[job["num_steps_remaining"] for job in jobs],
        )
        pairs = self.content["pair_throughputs"]
        members = [(row[pair["jobs"][0]], row[pair["jobs"][1]]) for pair in pairs]
        rates = [[[pair["throughputs"][t][k] for t in types] for k in (0, 1)] for pair in pairs]
        problem = alone.with_pairs(members, rates) if pairs else alone
        blind = VIEWS[view]
        return problem.blind_to_type(blind) if blind else problem

    def shares(self, policy: str) -> Floats:
        """The original's shares, (J, T); single jobs only."""
        rows = self.result(policy)["allocation"]
        return np.array([[rows[str(job["id"])][t] for t in self.gpu_types] for job in self.content["jobs"]])


def read_case(reference_directory: Path, name: str) -> GoldenCase:
    [path] = (reference_directory / "golden").glob(f"case_{name}_*.json")
    return GoldenCase(json.loads(path.read_text(encoding="utf-8")))


def least_level(allocation: Allocation) -> float:
    """min_norm_eff_tput: the least  s_i thr_i / (w_i prop_i)."""
    p, rates = allocation.problem, _rates(allocation)
    proportional = p.rate_alone_steps_per_s @ p.gpu_counts / p.gpu_counts.sum()
    return float((p.gpus_asked * rates / (p.weight * proportional)).min())


def makespan_s(allocation: Allocation) -> float:
    """makespan_s: the largest  steps_i / thr_i."""
    return float((allocation.problem.steps_remaining / _rates(allocation)).max())


def excess(allocation: Allocation) -> float:
    """The largest violation of a constraint: a negative share, a job's time, a type's GPUs."""
    p = allocation.problem
    over_time = allocation.job_share.sum(axis=1) - 1
    over_capacity = p.gpus_occupied @ allocation.share - p.gpu_counts
    return float(max(over_time.max(), over_capacity.max(), -allocation.share.min()))


def _rates(allocation: Allocation) -> Floats:
    """thr_i, one membership after another."""
    p = allocation.problem
    rates = np.zeros(p.job_count)
    for member, job in enumerate(p.member_job):
        rates[job] += p.member_rate_steps_per_s[member] @ allocation.share[p.member_configuration[member]]
    return rates
