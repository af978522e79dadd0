"""A study of placement: tasks that need fractions of GPUs arrive one by one, and none leaves.

Fragmentation gradient descent (FGD) places a task where the expected fragmentation rises least. With p_m the share of
tasks of kind m in the workload, the fragmentation of a node n is

    F_n = sum over m of  p_m F_n(m)
    F_n(m) = all free GPU time of n            if m cannot run on n, or needs no GPU
             free time of the GPUs of n that have less free than m needs of one    otherwise

Source: Weng et al., "Beware of Fragmentation" (ATC '23), sections 3 and 4. Kinds differ in CPU cores, GPUs and models;
memory limits where a task fits, but is not part of F. Nodes are in random order, and of equals the first is taken. The
gradient is rounded, so near-equals count as equal: see `rounded_score`. All this is as in the authors' program.

A placement changes one node, so only that node's gradients are computed again: for a kind of task, those of the nodes
that changed since the last task of the kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.fractional import GPU_MILLI, FractionalNodes, FractionalTasks

POPULAR = 0.95  # kinds of tasks that count in F make up this share of the workload, as in the source
_FULL = 2**40  # more than a GPU has


class StudyStrategy(StrEnum):
    """How a task's node and GPUs are chosen among those that have room."""

    RANDOM = "random"
    FIRST_FIT = "first_fit"
    BEST_FIT = "best_fit"  # the least CPU and GPU time left, each as a share of the largest node's
    FGD = "fgd"


@dataclass(frozen=True, eq=False)
class PlacementStudy:
    """The course of a study, after each task in order of arrival."""

    arrived_milli: Ints  # (K,) GPU time that all tasks so far need
    allocated_milli: Ints  # (K,) of those that were placed
    node: Ints  # (K,) row of the task's node, -1 = it did not fit
    capacity_milli: int

    @property
    def allocated(self) -> float:
        """Share of the GPUs that is allocated in the end."""
        return float(self.allocated_milli[-1]) / self.capacity_milli

    def allocated_at(self, load: float) -> float:
        """Share that is allocated when tasks for this share of the GPUs have arrived."""
        last = int(np.searchsorted(self.arrived_milli, load * self.capacity_milli, side="right")) - 1
        return float(self.allocated_milli[last]) / self.capacity_milli if last >= 0 else 0.0


def inflated(tasks: FractionalTasks, capacity_milli: int, load: float, rng: np.random.Generator) -> FractionalTasks:
    """The tasks in random order, then draws among them with replacement, up to `load` times the GPUs.

    If the tasks alone are more than that, random ones of them. Source: as in FGD's experiments.
    """
    if not 0 < load <= 100:
        raise InvalidInput(f"load must be in (0, 100], got {load!r}")
    need = tasks.total_milli
    if not need.sum():
        raise InvalidInput("tasks must need GPUs, got none that does")
    order = rng.permutation(len(tasks))
    extra = np.zeros(0, dtype=np.int64)
    missing = load * capacity_milli - need.sum()
    while missing > need[extra].sum():
        draws = int(1.1 * missing * len(tasks) / need.sum()) + 16
        extra = np.concatenate([extra, rng.integers(len(tasks), size=draws)])
    rows = np.concatenate([order, extra])
    fits = np.cumsum(need[rows]) <= load * capacity_milli
    return tasks.among(rows[: len(rows) if fits.all() else int(fits.argmin())])


def study(
    nodes: FractionalNodes,
    workload: FractionalTasks,
    arrivals: FractionalTasks,
    strategy: StudyStrategy,
    rng: np.random.Generator,
) -> PlacementStudy:
    """Places `arrivals` one by one; a task that does not fit is dropped. `workload` gives the kinds for FGD."""
    order = rng.permutation(len(nodes.node_ids))
    room = StudyRoom(nodes.among(order), arrivals, TaskKinds.of(workload), strategy, rng)
    found = np.array([room.place(task) for task in range(len(arrivals))], dtype=np.int64)
    need = arrivals.total_milli
    where = np.where(found >= 0, order[found], -1)
    return PlacementStudy(np.cumsum(need), np.cumsum(np.where(found >= 0, need, 0)), where, nodes.capacity_milli)


@dataclass(frozen=True, eq=False)
class TaskKinds:
    """Popular kinds of tasks; columns are (M,)."""

    share: Floats  # p_m, sums to 1
    cpu_milli: Ints
    gpus: Ints
    gpu_milli: Ints
    may_use: Bools  # (M, models)

    @classmethod
    def of(cls, tasks: FractionalTasks) -> TaskKinds:
        """The most frequent kinds, down to a total of POPULAR."""
        table = np.column_stack([tasks.cpu_milli, tasks.gpus, tasks.gpu_milli, tasks.may_use])
        kinds, counts = np.unique(table, axis=0, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        enough = int(np.searchsorted(np.cumsum(counts[order]), POPULAR * len(tasks))) + 1
        rows = order[:enough]
        share = counts[rows] / counts[rows].sum()
        return cls(share, kinds[rows, 0], kinds[rows, 1], kinds[rows, 2], kinds[rows, 3:].astype(np.bool_))


def fragmentation(left: Ints, cpu_left: Ints, model: Ints, kinds: TaskKinds) -> Floats:
    """F_n of nodes with this free GPU time (n, G), CPU time (n,) and model (n,), in thousandths of a GPU, (n,)."""
    has_room = left[:, None, :] >= np.maximum(kinds.gpu_milli, 1)[:, None]  # (n, M, G)
    can_run = (has_room.sum(axis=2) >= kinds.gpus) & (cpu_left[:, None] >= kinds.cpu_milli)
    can_run &= kinds.may_use.T[model] & (kinds.gpus > 0)
    usable = (has_room * left[:, None, :]).sum(axis=2)
    return np.asarray(left.sum(axis=1) - np.where(can_run, usable, 0) @ kinds.share)


def rounded_score(gradient: Floats) -> Floats:
    """The score of nodes on which F rises by this, in thousandths of a GPU: a whole number in 0..100, more is better.

    Without rounding, FGD allocates 94.7 % instead of 95.5 % in the published setting: gradients then differ by little
    between nodes with the same use, and tasks spread over them.
    """
    return np.asarray(np.floor(100 / (1 + np.exp(gradient / GPU_MILLI))))


class StudyRoom:
    """What is left of the nodes, and where the next task goes."""

    def __init__(
        self,
        nodes: FractionalNodes,
        tasks: FractionalTasks,
        kinds: TaskKinds,
        strategy: StudyStrategy,
        rng: np.random.Generator,
    ) -> None:
        self._tasks, self._kinds, self._strategy, self._rng = tasks, kinds, strategy, rng
        self._model = nodes.model
        widest = max(int(nodes.gpus.max()), 1)
        self.left: Ints = np.where(np.arange(widest) < nodes.gpus[:, None], GPU_MILLI, 0)  # (N, G)
        self.cpu, self.memory = nodes.cpu_milli.copy(), nodes.memory_mib.copy()
        self._largest = max(int(nodes.cpu_milli.max()), 1), widest * GPU_MILLI
        table = np.column_stack([tasks.cpu_milli, tasks.gpus, tasks.gpu_milli, tasks.may_use])
        _, kind_of = np.unique(table, axis=0, return_inverse=True)
        self._kind_of = kind_of.reshape(-1)
        count = int(self._kind_of.max()) + 1 if len(tasks) else 0
        self._changed = np.zeros(len(self.left), dtype=np.int64)  # at which step each node last changed
        self._computed = np.full((count, len(self.left)), -1)  # at which step each gradient was computed
        self._gradient = np.zeros((count, len(self.left)))
        self._gpu = np.zeros((count, len(self.left)), dtype=np.int64)  # that gives the gradient, of a shared one
        self._fragments = fragmentation(self.left, self.cpu, self._model, kinds)

    def place(self, task: int) -> int:
        """Places a task and returns its node; -1 = it fits nowhere."""
        tasks = self._tasks
        gpus, milli = int(tasks.gpus[task]), int(tasks.gpu_milli[task])
        fits = (self.cpu >= tasks.cpu_milli[task]) & (self.memory >= tasks.memory_mib[task])
        if gpus:
            fits &= tasks.may_use[task][self._model] & (np.count_nonzero(self.left >= milli, axis=1) >= gpus)
        feasible = fits.nonzero()[0]
        if not len(feasible):
            return -1
        node = self._chosen(task, feasible)
        if gpus:
            self.left[node, self._gpus_on(task, node)] -= milli
        self.cpu[node] -= tasks.cpu_milli[task]
        self.memory[node] -= tasks.memory_mib[task]
        self._changed[node] = task
        if self._strategy is StudyStrategy.FGD:
            here = slice(node, node + 1)
            self._fragments[here] = fragmentation(self.left[here], self.cpu[here], self._model[here], self._kinds)
        return node

    def _chosen(self, task: int, feasible: Ints) -> int:
        match self._strategy:
            case StudyStrategy.RANDOM:
                return int(self._rng.choice(feasible))
            case StudyStrategy.FIRST_FIT:
                return int(feasible[0])
            case StudyStrategy.BEST_FIT:
                cpu, gpu = self._largest
                rest = self.cpu[feasible] / cpu + self.left[feasible].sum(axis=1) / gpu
                return int(feasible[rest.argmin()])
            case StudyStrategy.FGD:
                self._refresh(task, feasible)
                score = rounded_score(self._gradient[self._kind_of[task], feasible])
                return int(feasible[score.argmax()])

    def _gpus_on(self, task: int, node: int) -> Ints:
        """The GPUs of a node that a task gets: where others share them, one that the strategy chooses; else idle."""
        gpus, milli = int(self._tasks.gpus[task]), int(self._tasks.gpu_milli[task])
        left = self.left[node]
        fitting = (left >= milli).nonzero()[0]
        if milli == GPU_MILLI or self._strategy is StudyStrategy.FIRST_FIT:
            return np.asarray(fitting[:gpus])
        if self._strategy is StudyStrategy.RANDOM:
            return self._rng.choice(fitting, size=1)
        if self._strategy is StudyStrategy.BEST_FIT:
            return np.asarray(fitting[left[fitting].argmin(keepdims=True)])
        return self._gpu[self._kind_of[task], node : node + 1]

    def _refresh(self, task: int, feasible: Ints) -> None:
        """Computes the gradients of the task's kind on nodes that changed since they were computed."""
        kind = self._kind_of[task]
        rows = feasible[self._changed[feasible] >= self._computed[kind, feasible]]
        if not len(rows):
            return
        self._computed[kind, rows] = task
        tasks, milli = self._tasks, int(self._tasks.gpu_milli[task])
        cpu, left = self.cpu[rows] - tasks.cpu_milli[task], self.left[rows]
        if 0 < milli < GPU_MILLI:
            wide = left.shape[1]
            after = left[:, None, :] - milli * np.eye(wide, dtype=np.int64)  # (n, G, G): on each of its GPUs
            each = (np.repeat(cpu, wide), np.repeat(self._model[rows], wide))
            fragments = fragmentation(after.reshape(-1, wide), *each, self._kinds).reshape(-1, wide)
            fragments = np.where(left >= milli, fragments, _FULL)
            self._gpu[kind, rows] = fragments.argmin(axis=1)
            self._gradient[kind, rows] = fragments.min(axis=1) - self._fragments[rows]
            return
        idle = left == GPU_MILLI
        is_taken = idle & (np.cumsum(idle, axis=1) <= tasks.gpus[task])
        after = np.where(is_taken, 0, left)
        fragments = fragmentation(after, cpu, self._model[rows], self._kinds)
        self._gradient[kind, rows] = fragments - self._fragments[rows]
