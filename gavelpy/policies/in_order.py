"""Rounds of queueing policies: jobs in an order take whole GPUs, and the round is named in that order.

A queueing policy is an order of jobs. Its answer names every job that may run, with all its places, the best first, so
the scheduler follows the order on the nodes as they are, and GPUs that become free within the round go to the next job
of the order. Shares are 0 and 1: what the named round gives if the nodes of a type were one.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ruled
from gavelpy.policies.queue import jobs_running, whole_shares


def run_in_order(
    problem: AllocationProblem, order: Ints, *, again_s: float = math.inf, memory: bytes = b""
) -> Allocation:
    """The jobs in `order` (rows) run, each alone on the fastest GPUs that are left; one that does not fit is skipped.

    The certificate's objective is the number of running jobs.
    """
    share = whole_shares(problem, order, blocks=False, packing_threshold=math.inf)
    answer = ruled(problem, share, objective=jobs_running(problem, share))
    return replace(answer, next_round=places(problem, order, share), again_s=again_s, memory=memory)


def places(problem: AllocationProblem, order: Ints, share: Floats) -> Ints:
    """The configurations alone of the jobs in `order`, with their types, (N, 2): job by job, the best place first.

    That is the one with a `share`, then the fastest; ties: the type that the job holds, then type order.
    """
    rank = np.full(problem.job_count, -1)
    rank[order] = np.arange(len(order))
    lone = problem.member_count[problem.member_configuration] == 1
    members = np.flatnonzero(lone & (rank[problem.member_job] >= 0))
    configuration, job = problem.member_configuration[members], problem.member_job[members]
    rate = problem.member_rate_steps_per_s[members]
    k, gpu_type = np.nonzero((rate > 0) & problem.is_whole[configuration])
    row, job = configuration[k], job[k]
    elsewhere = problem.gpu_type_held[job] != gpu_type
    by_place = np.lexsort((gpu_type, row, elsewhere, -rate[k, gpu_type], share[row, gpu_type] == 0, rank[job]))
    return np.column_stack([row, gpu_type])[by_place]


def service_left_gpu_s(problem: AllocationProblem) -> Floats:
    """GPU-seconds that each job needs on its fastest type, on the GPUs requested, (J,); infinite if it cannot run."""
    rate = np.where(problem.gpu_counts > 0, problem.rate_as_requested_steps_per_s, 0.0).max(axis=1, initial=0.0)
    return np.where(rate > 0, problem.gpus_asked * problem.steps_remaining / np.where(rate > 0, rate, 1.0), np.inf)
