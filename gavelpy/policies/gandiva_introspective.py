"""Gandiva's introspective mode: co-location by trial and undo from measured progress, migration, growing and shrinking.

The state between calls is in the allocation's memory: the trials that run, their verdicts, and what was idle.
"""

from __future__ import annotations

import heapq
import json
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import AGAIN_MIN_S, Allocation
from gavelpy.model.arrays import Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ProblemInput, ruled
from gavelpy.policies.gandiva import pair_gains, paired
from gavelpy.policies.isolated import equal_parts, lone_configurations
from gavelpy.policies.memory import as_memory
from gavelpy.policies.refusals import refuse_unused
from gavelpy.policies.room import FreeResources
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class GandivaIntrospective:
    """Pack while jobs need more GPUs than there are, and keep a pair if  Σ_j measured r_j / r_j(alone) >= 1.

    Gandiva (OSDI '18), sections 3 and 4.2, from its description; no code of it is public.

    time slices   jobs need more GPUs than there are: each group, a job alone or a pair, has an equal part of the GPUs
    packing       then pairs are tried, as many as are needed, those first that are expected to gain most. Both jobs
                  run co-located for `trial_s` to settle, and for another `trial_s` their steps are counted. A pair that
                  does less than taking turns, relative to r_j(alone) on this type, is undone and not tried again
    migration     enough GPUs for all: each job runs all the time on the fastest type that is left, in order of
                  arrival, so it moves to a faster type which becomes free
    grow-shrink   then GPUs that were idle in the last answer, too, go to jobs with several sizes, one step at a time to
                  the most rate gained per GPU; for a new job they shrink at once to what they requested

    Ours: the order of trials (the paper has that of GPU utilisation, which a problem does not state) and the two
    answers before growth (the paper: idle for long). Migration between nodes for locality is the mechanism's
    (`consolidate_s`, `defragment`). `gandiva` is the original Gavel's approximation: random pairs, without trials.

    >>> p = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]]).with_pairs([(0, 1)], [[[3.0], [3.0]]])
    >>> tried = GandivaIntrospective().allocate(p)
    >>> tried.share[:, 0].tolist(), tried.again_s
    ([0.0, 0.0, 1.0], 60.0)
    """

    trial_s: float = 60.0

    name: ClassVar[str] = "gandiva_introspective"
    summary: ClassVar[str] = "Take turns; co-locate by trial and undo; grow and shrink jobs of several sizes (Gandiva)."
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {
            ProblemInput.PAIRS, ProblemInput.SIZES, ProblemInput.RESOURCES, ProblemInput.STEPS_REMAINING,
            ProblemInput.ATTAINED, ProblemInput.GPU_TYPE_HELD,
        }
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not AGAIN_MIN_S <= self.trial_s < math.inf:
            raise InvalidInput(f"trial_s must be finite and at least {AGAIN_MIN_S:g}, got {self.trial_s!r}")

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Whole GPUs for all, or equal parts for all groups."""
        refuse_unused(self, problem)
        kept = json.loads(problem.memory or b"{}")
        trials = _Trials(problem, kept, self.trial_s)
        room = FreeResources(problem)
        placed = _placed(room)
        if all(gpu_type >= 0 for gpu_type in placed.values()):
            share, idle = np.zeros(problem.fits.shape), room.free
            before: Ints = np.array(kept.get("idle", np.zeros_like(idle)), dtype=np.int64)
            ready = np.minimum(idle, before) if before.shape == idle.shape else np.zeros_like(idle)
            rows = _grown(problem, room, placed, ready)
            share[list(rows.values()), [placed[job] for job in rows]] = 1.0
            trials.run(np.zeros(0, dtype=np.int64))
            waits, memory = problem.has_sizes and bool((ready < idle).any()), trials.memory(idle)
        else:
            groups = lone_configurations(problem)
            if problem.gpus_occupied[groups].sum() > problem.gpu_counts.sum():
                groups = paired(problem, groups, trials.order(), float(problem.gpu_counts.sum()))
            share = equal_parts(problem, groups)
            trials.run(groups)
            waits, memory = trials.are_open, trials.memory()
        answer = ruled(problem, share, objective=float((problem.gpus_occupied @ share).sum()))
        return replace(answer, again_s=self.trial_s if waits else math.inf, memory=memory)


def _placed(room: FreeResources) -> dict[int, int]:
    """The type of each job that can run, in order of arrival, -1 where none has room; `room` is what is left."""
    placed: dict[int, int] = {}
    for job in room.runnable:
        placed[job] = room.fastest(job)
        if placed[job] >= 0:
            room.start(job, placed[job])
    return placed


def _grown(problem: AllocationProblem, room: FreeResources, placed: dict[int, int], ready: Ints) -> dict[int, int]:
    """The configuration of each job on its type after growth within `ready` (T, R)."""
    rows = {job: room.row(job) for job in placed}
    if not problem.has_sizes or not ready[:, 0].any():
        return rows
    ready = ready.copy()
    lone = problem.member_count[problem.member_configuration] == 1
    larger: dict[int, list[int]] = {job: [] for job in placed}
    for member in np.flatnonzero(lone).tolist():
        larger.get(int(problem.member_job[member]), []).append(member)
    heap = [step for job, gpu_type in placed.items() if (step := _step(problem, job, gpu_type, rows[job], larger[job]))]
    heapq.heapify(heap)
    while heap:
        _, job, row = heapq.heappop(heap)
        gpu_type, more = placed[job], problem.demand[row] - problem.demand[rows[job]]
        if (more <= ready[gpu_type]).all():
            ready[gpu_type] -= more
            rows[job] = row
        else:
            larger[job] = [member for member in larger[job] if problem.member_configuration[member] != row]
        if step := _step(problem, job, gpu_type, rows[job], larger[job]):
            heapq.heappush(heap, step)
    return rows


def _step(
    problem: AllocationProblem, job: int, gpu_type: int, row: int, members: list[int]
) -> tuple[float, int, int] | None:
    """The step to more GPUs that gains most rate per GPU, relative to the rate now, as (-gain, job, configuration)."""
    rate = {int(problem.member_configuration[m]): float(problem.member_rate_steps_per_s[m, gpu_type]) for m in members}
    now, gpus = rate.get(row, 0.0), int(problem.demand[row, 0])
    steps = [
        (-(rate[other] / now - 1.0) / (int(problem.demand[other, 0]) - gpus), job, other)
        for other in rate
        if now > 0 and rate[other] > now and problem.demand[other, 0] > gpus
    ]
    return min(steps, default=None)


class _Trials:
    """Pairs by the serial ids of their jobs: those on trial, with where their counts began, and verdicts."""

    def __init__(self, problem: AllocationProblem, kept: dict[str, Any], trial_s: float) -> None:  # Any: JSON
        self._problem, self._trial_s = problem, trial_s
        job = {name: row for row, name in enumerate(problem.job_ids)}
        pairs = np.flatnonzero(problem.member_count == 2)
        first = np.searchsorted(problem.member_configuration, pairs)
        members = zip(problem.member_job[first].tolist(), problem.member_job[first + 1].tolist(), strict=True)
        self._row: dict[tuple[int, int], int] = dict(zip(members, pairs.tolist(), strict=True))
        self._verdict: dict[tuple[int, int], bool] = {
            (job[a], job[b]): is_kept for a, b, is_kept in kept.get("verdicts", []) if a in job and b in job
        }
        self._open: dict[tuple[int, int], list[Any]] = {}  # is settled, steps remaining and GPU time of both
        for a, b, *count in kept.get("trials", []):
            if a in job and b in job and (job[a], job[b]) in self._row:
                self._judge((job[a], job[b]), count)

    @property
    def are_open(self) -> bool:
        """Whether pairs are on trial."""
        return bool(self._open)

    def order(self) -> Ints:
        """Rows of pairs in the order in which they form: kept ones, those on trial, then the most promising."""
        rows, gains = pair_gains(self._problem)
        gain = dict(zip(rows.tolist(), gains.tolist(), strict=True))
        kept = [pair for pair, is_kept in self._verdict.items() if is_kept and pair in self._row]
        known = [self._row[pair] for pair in (*kept, *self._open)]
        new = [row for pair, row in self._row.items() if row in gain and pair not in self._verdict]
        promising = sorted(new, key=lambda row: (-gain[row], row))
        return np.array(list(dict.fromkeys([*known, *promising])), dtype=np.int64)

    def run(self, groups: Ints) -> None:
        """The pairs among these groups run until the next answer; trials of others end without a verdict."""
        running = set(groups.tolist())
        self._open = {
            pair: self._open.get(pair) or self._count(pair, is_settled=False)
            for pair, row in self._row.items()
            if row in running and pair not in self._verdict
        }

    def memory(self, idle: Ints | None = None) -> bytes:
        """All of it, and what was idle, (T, R)."""
        ids = self._problem.job_ids
        verdicts = {pair: [ids[pair[0]], ids[pair[1]], is_kept] for pair, is_kept in self._verdict.items()}
        trials = {pair: [ids[pair[0]], ids[pair[1]], *count] for pair, count in self._open.items()}
        idle_part = {} if idle is None or not idle.any() else {"idle": idle.tolist()}
        if not (verdicts or trials or idle_part):
            return b""
        return _Listed(verdicts, trials, idle_part).text

    def _count(self, pair: tuple[int, int], *, is_settled: bool) -> list[Any]:
        p, rows = self._problem, list(pair)
        return [is_settled, p.steps_remaining[rows].tolist(), p.attained_gpu_s[rows].tolist()]

    def _judge(self, pair: tuple[int, int], count: list[Any]) -> None:
        """Continues a trial, or ends it with a verdict, if both jobs ran for `trial_s` since the count began."""
        p, rows = self._problem, list(pair)
        is_settled, steps_before, attained_before = count
        ran_s = (p.attained_gpu_s[rows] - attained_before) / p.gpus_asked[rows]
        held = set(p.gpu_type_held[rows].tolist())
        if ran_s.min() < self._trial_s or len(held) != 1 or -1 in held:
            self._open[pair] = count
        elif not is_settled:
            self._open[pair] = self._count(pair, is_settled=True)
        else:
            alone = p.rate_as_requested_steps_per_s[rows, held.pop()]
            measured = (np.array(steps_before) - p.steps_remaining[rows]) / ran_s
            relative = np.divide(measured, alone, out=np.zeros(2), where=alone > 0)
            self._verdict[pair] = bool(relative.sum() >= 1.0 and relative.min() > 0)


@dataclass(frozen=True)
class _Listed:
    """The memory as JSON of a limited size."""

    verdicts: dict[tuple[int, int], list[Any]]
    trials: dict[tuple[int, int], list[Any]]
    others: dict[str, Any]

    @property
    def text(self) -> bytes:
        """Without the oldest verdicts and trials if they are too many."""
        as_tables = {
            "verdicts": {str(k): each for k, each in enumerate(self.verdicts.values())},
            "trials": {str(k): each for k, each in enumerate(self.trials.values())},
        }
        found = json.loads(as_memory(as_tables | self.others, as_tables["verdicts"], as_tables["trials"]))
        return json.dumps(
            found | {name: list(found[name].values()) for name in as_tables}, separators=(",", ":")
        ).encode()
