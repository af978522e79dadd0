"""Pollux as in Sia's simulator: numbers of GPUs are chosen, and GPUs are taken, without regard to their types.

The rules are those of the authors' simulator (siasosp23/artifacts, sia-simulator). A node counts as virtual nodes of 4
GPUs. A virtual node has GPUs of at most one of the jobs that are on several (pollux_unaware.py, _repair). A job that
got GPUs of several types keeps those of the type of which it has most, of the faster type if there are as many of two;
the others are idle in that round (cluster_unaware.py, fix_allocations_by_dropping). There, a genetic search finds
numbers of GPUs and virtual nodes together. Here, the best numbers come first; then each job that does not stay takes
virtual nodes at random, those with the most free GPUs first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Ints
from gavelpy.model.explanation import Goal
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ProblemInput
from gavelpy.policies.goodput_choices import GoodputChoices, PastOfJobs
from gavelpy.policies.pollux import Pollux, fair_rate
from gavelpy.solve.solver import Solver
from gavelpy.solve.whole_choices import WholeChoice, best_whole_choices

VIRTUAL_GPUS = 4  # of a virtual node: the fewest GPUs of a node (cluster_unaware.py, get_node_infos)
RESTART_S = 30.0  # that it weighs for a start of any application (pollux_unaware.py, delay)
FASTEST_FIRST = ("a100", "rtx2080ti", "t4")  # prio_order


@dataclass(eq=False)
class PolluxUnaware:
    """Pollux with one choice for each number of GPUs of a job, whatever their types. Keeps state between calls."""

    pollux: Pollux = field(default_factory=Pollux)
    seed: int = 0

    name: ClassVar[str] = "pollux_unaware"
    summary: ClassVar[str] = "Pollux that chooses and takes GPUs without regard to their types (Sia's simulator)."
    optimises: ClassVar[Goal] = Pollux.optimises
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    relative_to_cluster: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = Pollux.uses

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._nodes: dict[str, Ints] = {}  # GPUs of each virtual node by job, as of the last answer

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the next round."""
        past = PastOfJobs(problem)
        view = replace(problem.blind_to_type(), restart_s=np.full(problem.job_count, RESTART_S))
        numbers, best = self._numbers(view, past)
        of_node = np.repeat(np.arange(len(problem.gpu_types)), problem.gpu_counts.astype(np.int64) // VIRTUAL_GPUS)
        taken = self._taken(problem, past, numbers, len(of_node))
        places, self._nodes = [], {}
        for job, nodes in taken.items():
            nodes = kept_of_one_type(nodes, of_node, problem.gpu_types)
            gpu_type = int(of_node[np.argmax(nodes)])
            row, gpus = _largest(problem, job, gpu_type, int(nodes.sum()))
            if row >= 0:
                places.append((row, gpu_type))
                self._nodes[problem.job_ids[job]] = _fewest(nodes, gpus)
        named = np.array(places, dtype=np.int64).reshape(-1, 2)
        share = np.zeros(problem.fits.shape)
        share[named[:, 0], named[:, 1]] = 1.0
        found = Allocation.of_known(problem, share, np.full(len(problem.gpu_types), np.nan), best.certificate(0.0))
        return replace(found, next_round=named, memory=past.memory())

    def _numbers(self, view: AllocationProblem, past: PastOfJobs) -> tuple[dict[int, int], WholeChoice]:
        """Number of GPUs by job, of the highest fitness where all GPUs are alike."""
        choices = GoodputChoices(view, past)
        speedup = choices.factor(past) * choices.rate / fair_rate(view)[choices.job]
        pairs, first = np.unique(np.column_stack([choices.job, choices.gpus]), axis=0, return_inverse=True)
        highest = np.zeros(len(pairs))
        np.maximum.at(highest, first.ravel(), speedup)  # the factor is 1 on the type that it holds
        capacity = np.array([view.gpu_counts.sum()])
        best = best_whole_choices(pairs[:, 0].astype(np.int64), self.pollux.value(highest), pairs[:, 1:], capacity)
        return {int(pairs[k, 0]): int(pairs[k, 1]) for k in best.chosen.tolist()}, best

    def _taken(
        self, problem: AllocationProblem, past: PastOfJobs, numbers: dict[int, int], count: int
    ) -> dict[int, Ints]:
        """GPUs of each virtual node by job: jobs that keep their number stay, others take free ones at random."""
        free, shared = np.full(count, VIRTUAL_GPUS), np.zeros(count, dtype=np.bool_)
        before = {job: self._nodes.get(problem.job_ids[job]) for job in numbers}
        stays = {
            job: nodes
            for job, nodes in before.items()
            if nodes is not None and nodes.sum() == numbers[job] == past.gpus[job]
        }
        for nodes in stays.values():
            free -= nodes
            shared |= (nodes > 0) & (np.count_nonzero(nodes) > 1)
        found = dict(stays)
        for job in sorted(numbers.keys() - stays.keys(), key=lambda job: (-numbers[job], job)):
            found[job] = drawn(numbers[job], free, shared, self._rng)
        return found


def drawn(gpus: int, free: Ints, shared: Bools, rng: np.random.Generator) -> Ints:
    """GPUs of each virtual node for a job, at most `gpus`, taken from `free`; `shared` marks nodes of spread jobs."""
    nodes = np.zeros(len(free), dtype=np.int64)
    order = rng.permutation(len(free))
    alone = [node for node in order.tolist() if free[node] >= gpus]
    if alone:
        nodes[alone[0]] = gpus
    else:
        for node in sorted(order.tolist(), key=lambda node: -free[node]):
            if not shared[node]:
                nodes[node] = min(free[node], gpus - int(nodes.sum()))
        shared |= (nodes > 0) & (np.count_nonzero(nodes) > 1)
    free -= nodes
    return nodes


def kept_of_one_type(nodes: Ints, of_node: Ints, gpu_types: tuple[str, ...]) -> Ints:
    """The GPUs of the type of which the job has most; the faster one of two."""
    held = np.bincount(of_node, weights=nodes, minlength=len(gpu_types))
    speed = [-FASTEST_FIRST.index(name) if name in FASTEST_FIRST else -len(FASTEST_FIRST) for name in gpu_types]
    most = max(range(len(gpu_types)), key=lambda k: (held[k], speed[k]))
    return np.where(of_node == most, nodes, 0)


def _largest(problem: AllocationProblem, job: int, gpu_type: int, gpus: int) -> tuple[int, int]:
    """The configuration of the job with the most GPUs up to this number, and how many they are; -1 if none."""
    members = np.flatnonzero((problem.member_job == job) & (problem.member_rate_steps_per_s[:, gpu_type] > 0))
    rows = [row for row in problem.member_configuration[members].tolist() if problem.gpus_occupied[row] <= gpus]
    row = max(rows, key=lambda row: problem.gpus_occupied[row], default=-1)
    return row, int(problem.gpus_occupied[row]) if rows else 0


def _fewest(nodes: Ints, gpus: int) -> Ints:
    """So many of these GPUs, from the virtual nodes with the most of them."""
    kept, left = np.zeros_like(nodes), gpus
    for node in np.argsort(-nodes, kind="stable").tolist():
        kept[node] = min(int(nodes[node]), left)
        left -= int(kept[node])
    return kept
