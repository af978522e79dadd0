"""Tiresias: queues by the GPU time that jobs received, with demotion and promotion; inside a queue by start or Gittins.

The state between calls is in the allocation's memory: in which order jobs started, their service when they were last
promoted, and the services of jobs that ended. A scheduler that restarts between two answers decides the same.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, Guarantee, ProblemInput
from gavelpy.policies.in_order import run_in_order, service_left_gpu_s
from gavelpy.policies.memory import as_memory
from gavelpy.solve.solver import Solver

Order = Literal["start", "gittins"]
PAST_MAX = 500  # services of jobs that ended, the newest; they are journaled with each answer


@dataclass(frozen=True)
class Tiresias:
    """Queue by queue; job j is in queue  k_j = #{i: Q_i <= a_j}.  Inside one:  order of start, or highest  G_k(a_j).

    a_j       GPU-seconds that job j received since it was last promoted
    Q_i       `thresholds`, GPU-seconds, ascending; a job is demoted when its service reaches the next one
    G_k(a)    P(S - a <= D_k | S > a) / E[min(S - a, D_k) | S > a],  the Gittins index over the services S of past jobs
    D_k       Q_k+1 - Q_k,  the service that queue k gives; infinite in the last queue

    Tiresias (NSDI '19), sections 3.2 and 3.3: discretised 2D-LAS (`order=start`: needs no knowledge of jobs; those that
    never ran come last, in order of arrival) and discretised 2D-Gittins (`order=gittins`: needs the distribution of
    past services: `services`, else those of the last 500 jobs that ended under the policy, as their steps state them;
    without any, the order is that of start). `promote` is the paper's PROMOTEKNOB: a job that waited for `promote`
    times the time that it ran since its last promotion returns to the first queue with a service of 0; 0 = never. The
    default thresholds are those of the published simulator, as is that jobs are not promoted. Where its code differs,
    this is the paper: the code sums services, not what remains of them, in the denominator of G, and orders a queue by
    arrival and demotion. A job that does not fit is skipped. Demotion and preemption are at the end of a round. Not
    here: the placement by skew of tensors. With priority classes memory is not kept, and queues are by arrival.

    >>> p = AllocationProblem.of("abc", ["v100"], [1], np.ones((3, 1)), attained_gpu_s=[4000.0, 3000.0, 0.0])
    >>> Tiresias().allocate(p).share[:, 0].tolist()
    [0.0, 1.0, 0.0]
    """

    order: Order = "start"
    thresholds: str | float = "3250/7200"
    promote: float = 0.0
    services: str | float = ""
    _limits: Floats = field(init=False, repr=False, compare=False)
    _known: Floats = field(init=False, repr=False, compare=False)

    name: ClassVar[str] = "tiresias"
    summary: ClassVar[str] = "Run jobs queue by queue, by the GPU time that they received; demote and promote them."
    fills_leftover: ClassVar[bool] = False
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.STRATEGY_PROOF})

    def __post_init__(self) -> None:
        if self.order not in get_args(Order):
            raise InvalidInput(f"order must be 'start' or 'gittins', got {self.order!r}")
        if not 0 <= self.promote < math.inf:
            raise InvalidInput(f"promote must be finite and >= 0, got {self.promote!r}")
        object.__setattr__(self, "_limits", _listed("thresholds", self.thresholds))
        object.__setattr__(self, "_known", _listed("services", self.services) if self.services != "" else np.zeros(0))

    @property
    def uses(self) -> frozenset[ProblemInput]:
        """Ages only with promotion."""
        waiting = {ProblemInput.AGE} if self.promote else set()
        return frozenset({ProblemInput.ATTAINED, *COUNTED} | waiting)

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the next round."""
        state = _State(problem, learns=self.order == "gittins" and not len(self._known))
        if self.promote:
            state.promote(problem, self.promote)
        service = np.maximum(problem.attained_gpu_s - state.promoted_at, 0.0)
        queue = np.searchsorted(self._limits, service, side="right")
        index = np.zeros(problem.job_count)
        if self.order == "gittins":
            index = self._gittins(service, queue, self._known if len(self._known) else np.sort(state.past))
        order = np.lexsort((np.arange(problem.job_count), state.start, -index, queue))
        return run_in_order(problem, order, memory=state.memory(problem, promotes=self.promote > 0))

    def _gittins(self, service: Floats, queue: Ints, past: Floats) -> Floats:
        """G of each job, (J,); 0 where no past job had more service."""
        ends = np.append(self._limits, np.inf)
        quantum = np.diff(ends, prepend=0.0)[queue]
        return np.array([gittins_index(past, a, d) for a, d in zip(service.tolist(), quantum.tolist(), strict=True)])


def gittins_index(past: Floats, service: float, quantum: float) -> float:
    """P(S - a <= D | S > a) / E[min(S - a, D) | S > a]  with a = `service`, D = `quantum`, S as in `past` (ascending).

    >>> gittins_index(np.array([10.0, 20.0, 100.0]), 0.0, 20.0)
    0.04
    """
    left = past[np.searchsorted(past, service, side="right") :] - service
    if not len(left):
        return 0.0
    return float(np.count_nonzero(left <= quantum) / np.minimum(left, quantum).sum())


class _State:
    """What the policy remembers of jobs, as arrays (J,), and the services of jobs that ended."""

    def __init__(self, problem: AllocationProblem, *, learns: bool) -> None:
        kept: dict[str, Any] = json.loads(problem.memory or b"{}")  # Any: as `memory` writes it
        jobs: dict[str, list[float]] = kept.get("jobs", {})
        none = [math.inf, 0.0, math.nan, 0.0]
        found = np.array([jobs.get(job, none) for job in problem.job_ids]).reshape(-1, 4)
        self.start, self.promoted_at, self._ran_at_age, self._seen = found.T.copy()
        attained = problem.attained_gpu_s
        new = np.flatnonzero(np.isinf(self.start) & (attained > 0))
        begun = int(kept.get("begun", 0))
        self.start[new] = begun + np.arange(len(new))
        self._begun = begun + len(new)
        ran = (attained != self._seen) | np.isnan(self._ran_at_age)
        self._ran_at_age = np.where(ran, problem.age_s, self._ran_at_age)
        before: dict[str, float] = kept.get("service", {})
        present = set(problem.job_ids)
        ended = [service for job, service in before.items() if job not in present]
        self.past = np.array([*kept.get("past", []), *ended][-PAST_MAX:], dtype=np.float64)
        self._learns = learns

    def promote(self, problem: AllocationProblem, knob: float) -> None:
        """Returns jobs that waited too long to the first queue."""
        ran_s = (problem.attained_gpu_s - self.promoted_at) / problem.gpus_asked
        waited_s = problem.age_s - self._ran_at_age
        late = (ran_s > 0) & (waited_s >= knob * ran_s)
        self.promoted_at = np.where(late, problem.attained_gpu_s, self.promoted_at)
        self._ran_at_age = np.where(late, problem.age_s, self._ran_at_age)

    def memory(self, problem: AllocationProblem, *, promotes: bool) -> bytes:
        """The state after this call. Jobs that never ran need none, unless waiting counts."""
        rows = np.flatnonzero(np.isfinite(self.start)).tolist()
        columns = np.column_stack([self.start, self.promoted_at, self._ran_at_age, problem.attained_gpu_s])
        if not promotes:
            columns[:, 1:] = 0.0
        jobs = {problem.job_ids[row]: columns[row].tolist() for row in rows}
        services: dict[str, float] = {}
        kept: dict[str, Any] = {"begun": self._begun, "jobs": jobs}  # Any: JSON
        if self._learns:
            service = problem.attained_gpu_s + service_left_gpu_s(problem)
            services = {problem.job_ids[row]: float(service[row]) for row in rows if math.isfinite(service[row])}
            kept |= {"past": self.past.tolist(), "service": services}
        return as_memory(kept, services, jobs)


def _listed(name: str, text: str | float) -> Floats:
    """Ascending positive numbers from `1/2/3`. Raises InvalidInput."""
    try:
        found = np.array([float(part) for part in str(text).split("/")])
    except ValueError:
        found = np.zeros(1)
    if not (np.isfinite(found).all() and (found > 0).all() and (np.diff(found) >= (name == "thresholds") * 1e-9).all()):
        raise InvalidInput(f"{name} must be ascending GPU-seconds > 0, as 3250/7200, got {text!r}")
    return found
