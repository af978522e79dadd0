"""Dorm: the number of GPUs of each job for the highest utilisation, with bounds of unfairness and of adjusted jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.explanation import Goal
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, ProblemInput
from gavelpy.policies.places import PlacesAlone
from gavelpy.solve.solver import Solver
from gavelpy.solve.whole_choices import WholeChoice, best_of_each

ADJUSTMENT = 1e-5  # of a resource: of equal utilisations, the one that adjusts the fewest jobs
_ROUNDING = 1e-9
_SEARCH_NODES = 100  # of the program that finds how many jobs can be served


@dataclass(frozen=True)
class Dorm:
    """Maximise  Σ_k Σ_j n_j d_jk / W_k,  such that  Σ_j |s_j - ŝ_j| <= 2 θ1 m  and at most ⌈θ2 R⌉ jobs are adjusted.

    n_j     number of GPUs of job j, one of its sizes (the paper's containers, n_min..n_max), all of one type
    d_jk    what it needs of resource k for each GPU; W_k all of resource k in the cluster; m resources
    s_j     its dominant share  max_k n_j d_jk / W_k
    ŝ_j     its dominant share by weighted dominant resource fairness, at most that of its largest size
    θ1      `unfairness`: part of the largest fairness loss that is allowed
    θ2      `adjusted`: part of the R running jobs whose GPU type or number of GPUs may change

    Dorm (Sun et al., SMARTCOMP '17, arXiv 1704.06738), section IV, with θ1 = 0.1 and θ2 = 0.2, one of its three
    settings. The sum is the paper's resource utilisation, at most m. It is an integer program, solved by HiGHS with a
    bound (the certificate); of equal utilisations, that with the fewest adjusted jobs. A resize is a checkpoint, a stop
    and a start on other GPUs.

    All running jobs continue. Jobs that wait are served in the order of arrival, as many as capacity and θ2 allow. If
    no answer keeps the bound of unfairness, it is raised to the least loss that is possible: the paper changes nothing
    then, and free GPUs would stay free. Rates play no role but that a job must run on the type. The policy names each
    round, so GPUs that it leaves stay free. Raises InvalidInput if a parameter is not in [0, 1].

    >>> from gavelpy.model.problem import Size
    >>> p = AllocationProblem.of("ab", ["v100"], [4], [[1.0], [1.0]], gpu_type_held=[0, -1], gpus_held=[4, 0])
    >>> p = p.with_sizes({job: [Size(2, efficiency=0.9), Size(4, efficiency=0.8)] for job in "ab"})
    >>> Dorm().allocate(p).by_size()["gpus"].tolist()
    [2.0, 2.0]
    """

    unfairness: float = 0.1
    adjusted: float = 0.2

    name: ClassVar[str] = "dorm"
    summary: ClassVar[str] = "Choose numbers of GPUs for the highest utilisation, within bounds of unfairness (Dorm)."
    optimises: ClassVar[Goal] = Goal("the utilisation of all resources")
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = False
    relative_to_cluster: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {ProblemInput.WEIGHT, ProblemInput.GPU_TYPE_HELD, ProblemInput.GPUS_HELD, *COUNTED}
    )

    def __post_init__(self) -> None:
        for name in ("unfairness", "adjusted"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise InvalidInput(f"{name} must be in [0, 1], got {value!r}")

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, the next round."""
        sizes = _Sizes(problem)
        served, kept = self._served(sizes)
        best = self._best(sizes, served, kept)
        chosen = best.chosen[np.lexsort((sizes.job[best.chosen], -sizes.gpus[best.chosen]))]
        share = np.zeros(problem.fits.shape)
        share[sizes.row[chosen], sizes.gpu_type[chosen]] = 1.0
        over = (problem.used(share) - problem.row_capacity) / np.maximum(problem.row_capacity, 1.0)
        path = "branch and bound" if len(served) == len(sizes.in_order) else "rule"  # order decides which jobs wait
        certificate = best.certificate(max(0.0, float(over.max(initial=0.0))), path)
        found = Allocation.of_known(problem, share, np.full(len(problem.gpu_types), np.nan), certificate)
        places = np.column_stack([sizes.row[chosen], sizes.gpu_type[chosen]]).reshape(-1, 2)
        return replace(found, next_round=places.astype(np.int64))

    def _served(self, sizes: _Sizes) -> tuple[Ints, Ints]:
        """The jobs to serve, and places for them: the longest part of the queue that capacity and θ2 allow."""
        served, found = 0, np.zeros(0, dtype=np.int64)
        if (held := sizes.held_places()) is not None:
            served, found = len(held), held
        low, high = served, max(served, sizes.most_served())
        trial = high
        while low < high:  # a part of a queue that can be served can be served
            answer = self._solved(sizes, sizes.in_order[:trial], np.zeros(len(sizes.job)), nodes_max=_SEARCH_NODES)
            if answer is None:
                high = trial - 1
            else:
                low, found = trial, answer
            trial = (low + high + 1) // 2
        return sizes.in_order[:low], found

    def _best(self, sizes: _Sizes, served: Ints, kept: Ints) -> WholeChoice:
        """The places of these jobs with the highest utilisation; `kept` if none is found."""
        loss = sizes.loss(served)
        value = sizes.utilisation - ADJUSTMENT * sizes.is_adjusted
        limit = 2.0 * self.unfairness * sizes.resource_count
        best = self._program(sizes, served, value, (loss, limit))
        if best is None:
            least = self._solved(sizes, served, -loss)
            kept = kept if least is None else least
            best = self._program(sizes, served, value, (loss, float(loss[kept].sum()) + _ROUNDING))
        if best is None:
            highest = np.full(int(sizes.job.max(initial=0)) + 1, -np.inf)
            np.maximum.at(highest, sizes.job, value)
            return WholeChoice(kept, float(value[kept].sum()), float(highest[served].sum()))
        return best

    def _solved(self, sizes: _Sizes, served: Ints, value: Floats, **nodes: int) -> Ints | None:
        found = self._program(sizes, served, value, None, **nodes)
        return None if found is None else found.chosen

    def _program(
        self, sizes: _Sizes, served: Ints, value: Floats, loss: tuple[Floats, float] | None, **nodes: int
    ) -> WholeChoice | None:
        """One place for each of these jobs, of the highest value, within capacity, θ2 and the limit of the loss."""
        of = np.flatnonzero(np.isin(sizes.job, served))
        loss_of, loss_limit = loss or (np.zeros(len(sizes.job)), 0.0)
        rows = np.column_stack([sizes.demand, sizes.is_adjusted, loss_of])[of]
        limits = np.append(sizes.capacity, [math.ceil(self.adjusted * sizes.running), loss_limit])
        found = best_of_each(sizes.job[of], value[of], rows, limits, **nodes)
        return None if found is None else replace(found, chosen=of[found.chosen])


class _Sizes:
    """The places (configuration and GPU type) where each job may run next, K of them, and the jobs in order."""

    def __init__(self, problem: AllocationProblem) -> None:
        self.row, self.job, self.gpu_type, _ = PlacesAlone.of(problem)
        self.gpus: Floats = problem.gpus_occupied[self.row]
        self.resource_count = R = len(problem.resources)
        K, T = len(self.row), len(problem.gpu_types)
        self.capacity: Floats = problem.row_capacity  # (R T,)
        whole = self.capacity.reshape(R, T).sum(axis=1)
        part = problem.occupied[self.row] / np.where(whole > 0, whole, 1.0)  # (K, R) of the cluster
        self.utilisation: Floats = part.sum(axis=1)
        self.dominant: Floats = part.max(axis=1, initial=0.0)
        amounts = np.zeros((K, R, T))
        amounts[np.arange(K), :, self.gpu_type] = problem.occupied[self.row]
        self.demand: Floats = amounts.reshape(K, R * T)
        held, gpus = problem.gpu_type_held, np.where(problem.gpus_held > 0, problem.gpus_held, problem.gpus_asked)
        can, runs_now = np.zeros(problem.job_count, dtype=np.bool_), held >= 0
        can[self.job] = True
        self.running = int((can & runs_now).sum())
        self.in_order: Ints = np.concatenate([np.flatnonzero(can & runs_now), np.flatnonzero(can & ~runs_now)])
        self._is_held = (held[self.job] == self.gpu_type) & (gpus[self.job] == self.gpus)
        self.is_adjusted: Floats = (runs_now[self.job] & ~self._is_held).astype(np.float64)
        self._part, self._weight = part, problem.weight

    def held_places(self) -> Ints | None:
        """The places that the running jobs hold; None if one cannot stay, or they exceed the capacity."""
        places = np.flatnonzero(self._is_held)
        if len(places) != self.running or (self.demand[places].sum(axis=0) > self.capacity + _ROUNDING).any():
            return None
        return places

    def most_served(self) -> int:
        """How many jobs in order fit at most, each with the least that it needs of each resource."""
        R, T = self.resource_count, len(self.capacity) // self.resource_count
        least = np.full((int(self.job.max(initial=-1)) + 1, R), np.inf)
        np.minimum.at(least, self.job, self.demand.reshape(-1, R, T).sum(axis=2))
        total = np.cumsum(least[self.in_order], axis=0)
        return int((total <= self.capacity.reshape(R, T).sum(axis=1) + _ROUNDING).all(axis=1).sum())

    def loss(self, served: Ints) -> Floats:
        """|s - ŝ| of each place, (K,): ŝ as if only these jobs were there."""
        smallest = np.lexsort((self.gpus, self.job))
        first = smallest[np.unique(self.job[smallest], return_index=True)[1]]
        most = np.zeros(int(self.job.max(initial=-1)) + 1)
        np.maximum.at(most, self.job, self.dominant)
        of = first[np.isin(self.job[first], served)]
        jobs = self.job[of]
        ideal = np.zeros(len(most))
        ideal[jobs] = fair_dominant_shares(self._part[of], self._weight[jobs], most[jobs])
        found: Floats = np.abs(self.dominant - ideal[self.job])
        return found


def fair_dominant_shares(part: Floats, weight: Floats, most: Floats) -> Floats:
    """Dominant shares by weighted dominant resource fairness, (J,), each at most `most`.

    `part` (J, R) is what jobs need of each resource as parts of the cluster, in any amount. Shares rise in proportion
    to weights until a resource is used up, which stops all jobs that need it. DRF (Ghodsi et al., NSDI '11), section 4.

    >>> fair_dominant_shares(np.array([[1 / 9, 4 / 18], [3 / 9, 1 / 18]]), np.ones(2), np.ones(2)).round(3).tolist()
    [0.667, 0.667]
    """
    share = np.zeros(len(part))
    dominant = part.max(axis=1, initial=0.0)
    unit = part / np.where(dominant > 0, dominant, 1.0)[:, None]
    left, rises = np.ones(part.shape[1]), (most > 0) & (dominant > 0)
    while rises.any():
        speed = weight[rises] @ unit[rises]
        room = np.divide(left, speed, out=np.full(len(left), np.inf), where=speed > 0)
        height = np.where(rises, (most - share) / weight, np.inf)
        step = max(0.0, min(float(room.min(initial=np.inf)), float(height.min())))
        share[rises] += weight[rises] * step
        left = left - speed * step
        full = room <= step * (1 + _ROUNDING)
        rises &= (height > step * (1 + _ROUNDING)) & ~(unit[:, full] > 0).any(axis=1)
    return share
