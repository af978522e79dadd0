"""What shells must do. Orders in the imperative; the core's only output."""

from __future__ import annotations

from dataclasses import dataclass

from gavelpy.model.arrays import Ints
from gavelpy.model.ids import NodeId
from gavelpy.model.problem import AllocationProblem


@dataclass(frozen=True, eq=False)
class SolveAllocation:
    """Ask the policy; answer with AllocationSolved or AllocationFailed of the same epoch."""

    epoch: int
    problem: AllocationProblem
    jobs: Ints  # (J,) serial of each row of the problem
    packing: bool = False  # the answer may have shares of pairs
    job_types: tuple[str, ...] = ()  # J, if packing: what tells which pairs gain


@dataclass(frozen=True, eq=False)
class EstimateThroughput:
    """Ask for rates of jobs that came without any; answer with ThroughputEstimated."""

    jobs: Ints  # (K,)
    job_types: tuple[str, ...]
    gpus: Ints  # (K,)
    gpu_types: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """The difference between two rounds (or, within a round, what fills free GPUs).

    A grant whose GPUs, or whose job, are still under a lease that is being revoked starts when that lease has ended.
    Every lease in force ends at `until_s` unless a later plan extends it. Two jobs of a pair have a lease each on the
    same GPUs: both are granted here, or one is and the other goes on.
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
    """Stop a lease at once; nothing it does counts."""

    job: int
    lease: int


@dataclass(frozen=True, eq=False)
class QueryAgent:
    """Ask a node what it runs; answer with AgentRejoined."""

    node_id: NodeId


@dataclass(frozen=True, eq=False)
class Report:
    """Something a person should hear of. The core does not log; shells do."""

    topic: str
    text: str


Command = SolveAllocation | EstimateThroughput | RoundPlan | KillLease | QueryAgent | Report
