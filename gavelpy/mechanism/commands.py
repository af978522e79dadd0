"""Commands: the core's only output, which shells carry out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gavelpy.mechanism.gpu_memory import GpuMemory
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.job import NodeId
from gavelpy.model.problem import AllocationProblem
from gavelpy.model.team_limits import TeamLimits


@dataclass(frozen=True, eq=False)
class Tier:
    """The jobs of one priority class in a request. They divide what the classes above them leave, in whole GPUs."""

    rows: Ints  # of the class's jobs in the problem
    held: Ints  # (T,) GPUs of the problem's capacity under leases of the class
    preempts: tuple[int, ...] = ()  # lower tiers whose leases the class may take back


@dataclass(frozen=True, eq=False)
class ClusterPart:
    """The jobs and nodes of one part of the cluster in a request: see `windows`."""

    rows: Ints  # of the part's jobs in the problem
    capacity: Ints  # (T, R) of the problem's, in thousandths
    tiers: tuple[Tier, ...] = ()  # of its jobs, whose rows count within the part
    is_reserved: bool = False  # for users, so that nothing is guaranteed to teams there


@dataclass(frozen=True, eq=False)
class SizesOfJobs:
    """Sizes of jobs in a request, other than those that they requested."""

    rows: Ints  # (S,) of the jobs in the problem
    gpus: Ints  # (S,)
    rate_steps_per_s: Floats  # (S, T)

    def among(self, rows: Ints, job_count: int, free: Ints) -> SizesOfJobs | None:
        """The sizes of these rows of the problem, renumbered, within free GPUs (T,); None without any."""
        new = np.full(job_count, -1)
        new[rows] = np.arange(len(rows))
        stays = new[self.rows] >= 0
        if not stays.any():
            return None
        gpus = self.gpus[stays]
        rate = np.where(gpus[:, None] <= free, self.rate_steps_per_s[stays], 0.0)
        return SizesOfJobs(new[self.rows[stays]], gpus, rate)


@dataclass(frozen=True, eq=False)
class SolveAllocation:
    """Run the policy; reply with AllocationSolved or AllocationFailed of the same epoch."""

    epoch: int
    problem: AllocationProblem
    jobs: Ints  # (J,) serial of each row of the problem
    packing: bool = False  # the answer may have shares of pairs
    job_types: tuple[str, ...] = ()  # J, if packing: co-location slowdowns are known by job type
    memory: GpuMemory | None = None  # that limits the pairs; None = nothing does
    tiers: tuple[Tier, ...] = ()  # priority classes, the highest first; empty = one class
    fills_leftover: bool = True  # jobs also use GPUs of which they have no share
    parts: tuple[ClusterPart, ...] = ()  # that are allocated independently, without `tiers`; empty = one part
    sizes: SizesOfJobs | None = None  # None = each job has the size that it requested
    limits: TeamLimits | None = None  # of the teams of its jobs


class RequestedSize(NamedTuple):
    """What a job with several sizes requested, and its owner's rates there by GPU type (empty = none)."""

    gpus: int
    rates_steps_per_s: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class EstimateThroughput:
    """Estimate rates of jobs that were submitted without any; reply with ThroughputEstimated.

    A job with several sizes has an entry for each size without rates. The reply names the sizes if there is such a job.
    """

    jobs: Ints  # (K,)
    job_types: tuple[str, ...]
    gpus: Ints  # (K,)
    gpu_types: tuple[str, ...]
    several: tuple[RequestedSize | None, ...] = ()  # (K,) of jobs with several sizes; empty = of none


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """The difference between two rounds, or grants of free GPUs within a round.

    A granted lease starts when older leases of its job and on its GPUs have ended. Each lease ends at `until_s` unless
    a later plan extends it. Each of two co-located jobs has a lease on the same GPUs: a plan grants both, or grants one
    and extends the other.
    """

    round: int
    incarnation: int  # (incarnation, lease) is the fencing token
    until_s: float
    extend_jobs: Ints
    extend_leases: Ints
    revoke_jobs: Ints
    revoke_leases: Ints
    grant_jobs: Ints  # (K,)
    grant_leases: Ints  # (K,)
    grant_gpu_offsets: Ints  # (K + 1,)
    grant_gpus: Ints


@dataclass(frozen=True, eq=False)
class KillLease:
    """Stop a lease at once; its later progress does not count."""

    job: int
    lease: int


@dataclass(frozen=True, eq=False)
class QueryAgent:
    """Request the list of leases that a node runs; reply with AgentRejoined."""

    node_id: NodeId


@dataclass(frozen=True, eq=False)
class Report:
    """A message for the operator, for shells to log."""

    topic: str
    text: str


Command = SolveAllocation | EstimateThroughput | RoundPlan | KillLease | QueryAgent | Report
