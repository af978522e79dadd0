"""Hierarchical fairness: entities share the cluster by weight, and each divides its share among its members."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.explanation import Goal
from gavelpy.model.problem import AllocationProblem, EntityPolicy
from gavelpy.policies.base import COUNTED, Guarantee, ProblemInput, equal_share_rate
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import ProgressiveFilling
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class Hierarchical:
    """Raise all  r_j(x)  at speeds  s_j r_j(x_equal) / g_j  until none can rise.   Gavel (OSDI '20), section 4.3.

    s_j        job j's part of the weights. A top-level entity has its weight; its members divide its part by policy:
                 fairness   in proportion to their weights, among the members with unsaturated jobs
                 fifo       all goes to the member with the earliest unsaturated job
    r_j(x)     steps/s of job j under shares x
    x_equal    the job alone, its time split over the GPU types in proportion to their GPUs
    g_j        GPUs requested

    Members are jobs and, to any depth, entities. A job without an entity is at the top with its own weight, so without
    entities this policy equals `max_min_fairness_water_filling`. A job is saturated when it can rise only if another
    falls: it keeps its rate, and its part passes to the rest of its entity. The original's MILP may stop all jobs too
    early (with 1,024 jobs it lost 13 % of the throughput); here shadow prices identify the saturated jobs and prove the
    result. The certificate's objective is the level at which the first job is saturated.

    >>> from gavelpy.model.problem import Entity
    >>> teams = [Entity("vision", weight=3), Entity("speech")]
    >>> p = AllocationProblem.of("abc", ["v100"], [1], [[4.0], [4.0], [4.0]], entity=[0, 1, 1], entities=teams)
    >>> Hierarchical().allocate(p).share.round(6).tolist()
    [[0.75], [0.125], [0.125]]
    """

    name: ClassVar[str] = "hierarchical"
    summary: ClassVar[str] = (
        "Share the cluster among entities by weight, and within each fairly or in order of arrival."
    )
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {ProblemInput.WEIGHT, ProblemInput.ENTITY, ProblemInput.PAIRS, *COUNTED}
    )
    optimises: ClassVar[Goal] = Goal("the lowest water level")
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.PARETO_EFFICIENT})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares in which no job can gain except at the cost of a job that the hierarchy protects."""
        tree = _Tree(problem)
        unit = equal_share_rate(problem) / problem.gpus_asked
        return solve(problem, ProgressiveFilling(partial(_speeds, tree, unit), tree.alike), solver)


def _speeds(tree: _Tree, unit: Floats, saturated: Bools) -> Floats:
    return tree.parts(~saturated) * unit


class _Tree:
    """Entities above jobs."""

    def __init__(self, problem: AllocationProblem) -> None:
        self._weight, self._entity = problem.weight, problem.entity
        self._parent = problem.entity_parent
        self._entity_weight = np.array([entity.weight for entity in problem.entities])
        self._is_fifo = np.array([entity.policy == EntityPolicy.FIFO for entity in problem.entities], dtype=np.bool_)
        depth, above = np.zeros(len(self._parent), dtype=np.int64), self._parent
        while (above >= 0).any():
            depth += above >= 0
            above = np.where(above >= 0, self._parent[above], -1)
        self._layers = [np.flatnonzero(depth == d) for d in range(depth.max(initial=-1) + 1)]  # from the top

    @property
    def alike(self) -> Ints:
        """A class number of each job, (J,), equal for jobs that differ in their rates only."""
        in_order = np.append(self._is_fifo, False)[self._entity]
        rows = np.column_stack((self._entity, self._weight, np.where(in_order, np.arange(len(in_order)), -1)))
        return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)

    def parts(self, rising: Bools) -> Floats:
        """Part of the weights of each unsaturated job, (J,); zero for saturated ones."""
        J, E = len(rising), len(self._parent)
        jobs = np.flatnonzero(rising)
        entity = self._entity[jobs]
        inside = entity >= 0
        first, weights = np.full(E, J), np.zeros(E)  # earliest rising job within an entity; weights of its members
        np.minimum.at(first, entity[inside], jobs[inside])
        np.add.at(weights, entity[inside], self._weight[jobs[inside]])
        for layer in reversed(self._layers[1:]):
            np.minimum.at(first, self._parent[layer], first[layer])
            live = layer[first[layer] < J]
            np.add.at(weights, self._parent[live], self._entity_weight[live])
        part = np.where(first < J, self._entity_weight, 0.0) if E else np.zeros(0)
        for layer in self._layers[1:]:
            live = layer[first[layer] < J]
            part[live] = self._of_members(part, first, weights, self._parent[live], first[live], part[live])
        parts = np.zeros(J)
        parts[jobs] = self._weight[jobs]
        lower = jobs[inside]
        parts[lower] = self._of_members(part, first, weights, entity[inside], lower, self._weight[lower])
        return parts

    def _of_members(
        self, part: Floats, first: Ints, weights: Floats, entity: Ints, first_of_member: Ints, weight: Floats
    ) -> Floats:
        """Parts of members of these entities, given the earliest job and the weight of each."""
        return part[entity] * np.where(
            self._is_fifo[entity], first_of_member == first[entity], weight / weights[entity]
        )
