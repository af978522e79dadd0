"""POP: any policy with an objective, on k random parts of the jobs, each with a k-th of every GPU type."""

from __future__ import annotations

import copy
import heapq
import json
import math
from dataclasses import dataclass, field, replace
from functools import cache
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.model.problem_parts import part_of
from gavelpy.policies.base import (
    Policy,
    ProblemInput,
    needs_of,
    planned_over_rounds,
    policy_from,
    ruled,
    uses_of,
    varies_with_time,
)
from gavelpy.policies.memory import as_memory
from gavelpy.policies.policy_file import is_in_file
from gavelpy.policies.pseudo_random import luck, whole_seed
from gavelpy.policies.refusals import refuse_unused
from gavelpy.solve.solver import Solver

UNEVEN = 0.25  # of a part's GPUs, beyond which all jobs are dealt again


@dataclass(frozen=True)
class Pop:
    """Deal the jobs to k parts at random; x of the jobs of part p is the policy's answer with W_t / k GPUs of type t.

    POP (Narayanan et al., SOSP '21), section 3: a granular problem, with many jobs that each use a small part of the
    cluster, is split at random into problems of the same form, and their allocations are joined. Shares are feasible
    for the whole problem. How far they are from its optimum is not proved, so the certificate's path is "rule" and its
    objective is the mean of the optima of the parts. Not here: the paper's splitting of large clients.

    policy    name and parameters of the wrapped policy, with + in place of : (`max_sum_throughput+normalised=1`)
    jobs_min  each part has at least so many jobs; with fewer there are fewer parts, and with one the answer is exact

    Ours: a new job goes to the part with the fewest requested GPUs, in an order by `seed`, rates and GPUs, and stays
    there (the memory has the part of each job); if parts become uneven, all jobs are dealt again. Jobs in
    different parts are not co-located. The wrapped policy must optimise, without a memory or rounds of its own: parts
    of GPUs mean nothing to a policy that gives whole ones.

    >>> p = AllocationProblem.of("abcd", ["v100"], [2], np.ones((4, 1)))
    >>> Pop(k=2, jobs_min=1).allocate(p).share[:, 0].tolist()
    [0.5, 0.5, 0.5, 0.5]
    """

    policy: str = "max_min_fairness"
    k: float = 4
    seed: int = 0
    jobs_min: float = 16
    _wrapped: Policy = field(init=False, repr=False, compare=False)

    name: ClassVar[str] = "pop"
    summary: ClassVar[str] = "Split jobs and GPUs at random into parts, and apply another policy to each (POP)."
    fills_leftover: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("k", "jobs_min"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 1 and value == int(value)):
                raise InvalidInput(f"{name} must be a whole number >= 1, got {value!r}")
        object.__setattr__(self, "seed", whole_seed(self.seed))
        object.__setattr__(self, "_wrapped", _wrapped(self.policy))

    @property
    def uses(self) -> frozenset[ProblemInput] | None:
        """Those of the wrapped policy."""
        return uses_of(self._wrapped)

    @property
    def needs(self) -> frozenset[ProblemInput]:
        """Those of the wrapped policy."""
        return needs_of(self._wrapped)

    @property
    def time_varying(self) -> bool:
        """Whether the answers of the wrapped policy vary with time."""
        return varies_with_time(self._wrapped)

    def over_rounds(self, round_s: float, turn_s: float, move_lag_s: float) -> Pop:
        """This policy, with the wrapped one planned over rounds."""
        planned = copy.copy(self)
        object.__setattr__(planned, "_wrapped", planned_over_rounds(self._wrapped, round_s, turn_s, move_lag_s))
        return planned

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """The joined shares of the parts, and the part of each job in memory."""
        refuse_unused(self, problem)
        jobs = np.flatnonzero(problem.can_run)
        k = int(min(self.k, len(jobs) // self.jobs_min))
        if k < 2:
            return self._wrapped.allocate(problem, solver)
        dealt = _dealt(problem, jobs, k, self.seed)
        share, floors = np.zeros(problem.fits.shape), np.zeros(problem.job_count)
        objectives, warnings = list[float](), dict[str, None]()
        for p in range(k):
            mine = jobs[dealt == p]
            part = part_of(problem, mine, problem.capacity * (p + 1) // k - problem.capacity * p // k)
            answer = self._wrapped.allocate(part.problem, solver)
            share[part.rows] = answer.share
            floors[mine] = answer.rate_floor_steps_per_s if len(answer.rate_floor_steps_per_s) else 0.0
            objectives.append(answer.certificate.objective)
            warnings |= dict.fromkeys([answer.certificate.warning] if answer.certificate.warning else [])
        return _joined(
            problem, share, floors, float(np.mean(objectives)), "; ".join(warnings), _memory(problem, jobs, dealt)
        )


def _joined(
    problem: AllocationProblem, share: Floats, floors: Floats, objective: float, warning: str, memory: bytes
) -> Allocation:
    answer = ruled(problem, share, objective)
    promised = floors if floors.any() else np.zeros(0)
    certificate = replace(answer.certificate, warning=warning)
    return replace(answer, certificate=certificate, rate_floor_steps_per_s=promised, memory=memory)


def _memory(problem: AllocationProblem, jobs: Ints, dealt: Ints) -> bytes:
    parts = {problem.job_ids[job]: part for job, part in zip(jobs.tolist(), dealt.tolist(), strict=True)}
    return as_memory(parts, parts)


def _dealt(problem: AllocationProblem, jobs: Ints, k: int, seed: int) -> Ints:
    """The part of each of these jobs, 0..k-1, (len(jobs),)."""
    known: dict[str, int] = json.loads(problem.memory or b"{}")
    before = np.array([known.get(problem.job_ids[job], -1) for job in jobs.tolist()], dtype=np.int64)
    gpus, rates = problem.gpus_asked[jobs], problem.rate_alone_steps_per_s[jobs]
    order = np.argsort(luck(seed, len(jobs), *rates.T, gpus), kind="stable")
    dealt, load = _to_the_lightest(np.where(before < k, before, -1), order, gpus, k)
    if load.max() - load.min() > gpus.max() + UNEVEN * load.mean():
        dealt, _ = _to_the_lightest(np.full(len(jobs), -1), order, gpus, k)
    return dealt


def _to_the_lightest(part: Ints, order: Ints, gpus: Floats, k: int) -> tuple[Ints, Floats]:
    """The parts, with jobs that had none (-1) in the one with the fewest GPUs requested; and GPUs requested, (k,)."""
    part, old = part.copy(), part >= 0
    load = np.bincount(part[old], weights=gpus[old], minlength=k)
    heap = [(gpus_there, p) for p, gpus_there in enumerate(load.tolist())]
    heapq.heapify(heap)
    asked = gpus.tolist()
    for job in order[~old[order]].tolist():
        gpus_there, p = heap[0]
        part[job] = p
        heapq.heapreplace(heap, (gpus_there + asked[job], p))
    return part, np.bincount(part, weights=gpus, minlength=k).astype(np.float64)


@cache
def _wrapped(text: str) -> Policy:
    """The policy of `name+parameter=value+...`; raises InvalidInput if it cannot be split."""
    name = text.partition("+")[0]
    if name == Pop.name or is_in_file(name) or ":" in name:
        raise InvalidInput(f"policy must be the name of a policy other than pop, and not in a file, got {text!r}")
    policy = policy_from(text.replace("+", ":"))
    one = AllocationProblem.of(
        ["job"], ["type"], [1], [[1.0]], deadline_s=10.0, completion_value=["linear:worth=1:time_s=9"]
    )
    answer = policy.allocate(one)
    if answer.certificate.path == "rule" or answer.next_round is not None or answer.memory or answer.refused:
        raise InvalidInput(
            "policy must optimise shares of time, without a memory or rounds of its own, so that it can be split, "
            f"got {text!r}"
        )
    return policy
