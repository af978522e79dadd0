"""Turns: rounds by name in which a job that starts keeps its GPUs until it has trained as long as its start took.

Shares of time are delivered in slices. If a slice is shorter than a start, a job that gets its share in slices starts
again and again, and never trains. Then a policy can name the rounds (`Allocation.next_round`): jobs within their turn
first, and the places of its shares after them.
"""

from __future__ import annotations

import json

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.memory import as_memory
from gavelpy.policies.places import PlacesAlone

UNKNOWN_START_S = 300.0  # what a start may take that was never measured, as for the protection of leases
KEPT_MAX_S = 3600.0  # a job that has not trained this long after it got its GPUs is not kept


class StartTurns:
    """What each job holds, and its steps and age when it got that: from the memory of the last call.

    `kept` (J,) are the jobs within their turn: they hold GPUs and have trained on them for less than `start_s`, (J,).
    """

    def __init__(self, problem: AllocationProblem, start_s: Floats) -> None:
        self._problem = problem
        last: dict[str, list[float]] = json.loads(problem.memory or b"{}")  # id -> [type, GPUs, steps left, age]
        held, steps, age_s = problem.gpu_type_held, problem.steps_remaining, problem.age_s
        self.gpus: Floats = np.where(problem.gpus_held > 0, problem.gpus_held, problem.gpus_asked)
        before = np.array([last.get(job, [-1, 0, 0, 0]) for job in problem.job_ids], dtype=np.float64).reshape(-1, 4)
        is_same = (held >= 0) & (before[:, 0] == held) & (before[:, 1] == self.gpus)
        self._steps = np.where(is_same, np.maximum(before[:, 2], steps), steps)  # steps that were lost do not count
        self._age_s = np.where(is_same, before[:, 3], age_s)
        self.places = PlacesAlone.of(problem)
        self.stays: Bools = self._stay()
        rate = np.zeros(problem.job_count)
        rate[self.places.job[self.stays]] = self.places.rate[self.stays]
        done = self._steps - steps
        worked_s = np.divide(done, rate, out=np.zeros(len(rate)), where=rate > 0)
        starts = (done <= 0) & (age_s - self._age_s < KEPT_MAX_S)
        self.kept: Bools = (rate > 0) & (starts | ((done > 0) & (worked_s < start_s)))

    def _stay(self) -> Bools:
        """Whether each place is what its job holds, (K,)."""
        p, places = self._problem, self.places
        gpus = p.gpus_occupied[places.row]
        is_held = (p.gpu_type_held[places.job] == places.gpu_type) & (np.abs(gpus - self.gpus[places.job]) < 1e-6)
        return np.asarray(is_held)

    def memory(self) -> bytes:
        """The memory for the next call: of jobs that hold GPUs."""
        ids, held = self._problem.job_ids, self._problem.gpu_type_held
        columns = np.column_stack([held, self.gpus, self._steps, self._age_s])
        kept = {ids[row]: columns[row].tolist() for row in np.flatnonzero(held >= 0).tolist()}
        return as_memory(kept, kept) if kept else b""

    def next_round(self, share: Floats, urgency: Floats, worth: Floats) -> Ints:
        """Places in the order in which they get GPUs, (N, 2): configuration and GPU type.

        Jobs within their turn; then jobs of an urgency above 0, the highest first, wherever they can run; then places
        with a share, those that jobs hold first, then by share; then all others by `worth` (J,) times rate. So no GPU
        stays free that a job could use.
        """
        places, p = self.places, self._problem
        pair_row, pair_type = np.nonzero((share > 0) & (p.member_count > 1)[:, None])
        row = np.concatenate([places.row, pair_row])
        gpu_type = np.concatenate([places.gpu_type, pair_type])
        first = np.searchsorted(p.member_configuration, pair_row)
        job = np.concatenate([places.job, p.member_job[first]])
        is_pair = np.arange(len(row)) >= len(places.row)
        x = share[row, gpu_type]
        stays = np.concatenate([self.stays, np.zeros(len(pair_row), dtype=np.bool_)])
        gain = worth[job] * np.concatenate([places.rate, p.member_rate_steps_per_s[first, pair_type]])
        is_urgent = (urgency[job] > 0) & ~is_pair
        group = np.select([self.kept[job] & stays, is_urgent, x > 0], [0, 1, 2], 3)
        most_urgent = np.where(group == 1, urgency[job], 0.0)
        order = np.lexsort((gpu_type, row, -gain, -x, ~stays, -most_urgent, group))
        return np.column_stack([row, gpu_type])[order].astype(np.int64)
