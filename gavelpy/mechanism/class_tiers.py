"""Divides one request among priority classes: the part of each class, and what it leaves to the classes below.

A class's part has whole GPUs only: those that are left, without GPUs under leases of lower classes that it may not take
back. Then its jobs use their shares, and, if leftover GPUs go to any job, the rest of their time on the fastest types
with GPUs left. A fraction of a GPU that remains is not divided further; in a round it goes to any job as leftover.
While jobs of a class still wait for GPUs that are kept from it, the lower classes there get no more than they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from gavelpy.mechanism import named_round
from gavelpy.mechanism.commands import ClusterPart, SolveAllocation
from gavelpy.mechanism.events import NO_FLOATS, NO_INTS, AllocationSolved
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import THOUSANDTHS, AllocationProblem
from gavelpy.model.problem_parts import OF_JOBS

NEGLIGIBLE = 1e-6  # share of time, and GPUs


class TiersLeft:
    """The GPUs left for the tiers of a request, which are taken in order."""

    def __init__(self, question: SolveAllocation) -> None:
        self._question, self._tiers = question, question.tiers
        self.gpus: Ints = question.problem.capacity[:, 0] // THOUSANDTHS  # (T,) whole GPUs left
        self._others: Ints = question.problem.capacity[:, 1:]  # (T, R - 1) of other resources left
        self._waits: Bools = np.zeros((len(self._tiers), len(self.gpus)), dtype=np.bool_)  # (tiers, T)

    def part(self, k: int) -> SolveAllocation | None:
        """The request of a tier alone, with its jobs that can run; None without any."""
        question, tier = self._question, self._tiers[k]
        problem, free = question.problem, self._free(k)
        runs = problem.gpus_asked[tier.rows, None] <= free
        rate = np.where(runs, problem.member_rate_steps_per_s[tier.rows], 0.0)
        is_able: Bools = np.asarray((rate > 0).any(axis=1))
        several = None if question.sizes is None else question.sizes.among(tier.rows, problem.job_count, free)
        if several is not None:
            is_able[several.rows[(several.rate_steps_per_s > 0).any(axis=1)]] = True
        if (~is_able).any():
            self._waits[k] = (problem.member_rate_steps_per_s[tier.rows[~is_able]] > 0).any(axis=0)
        rows = tier.rows[is_able]
        if not len(rows):
            return None
        return of_jobs(question, rows, rate[is_able], np.column_stack([free * THOUSANDTHS, self._others]))

    def answered(self, k: int, part: SolveAllocation, answer: AllocationSolved) -> None:
        """Subtracts what a tier uses."""
        self._question = less_used(self._question, part, answer)
        limits = self._question.limits
        used, waits = _used(part, answer, 0 * self.gpus if limits is None else limits.reserved)
        self._waits[k] |= waits
        self.gpus = np.floor(self.gpus - used + NEGLIGIBLE).astype(np.int64).clip(min=0)
        if self._others.shape[1]:
            self._others = np.maximum(self._others - _used_of_others(part, answer), 0)

    def _free(self, k: int) -> Ints:
        """Whole GPUs of each type for a tier, (T,)."""
        lower = (other for at, other in enumerate(self._tiers) if at > k and at not in self._tiers[k].preempts)
        free: Ints = np.maximum(self.gpus - sum((other.held for other in lower), np.zeros_like(self.gpus)), 0)
        limits = self._question.limits
        guaranteed = 0 if limits is None else limits.reserved.astype(np.int64)
        for at, higher in enumerate(self._tiers[:k]):
            if k not in higher.preempts:
                free = np.where(self._waits[at], np.minimum(free, self._tiers[k].held + guaranteed), free)
        return free


def part_of(question: SolveAllocation, part: ClusterPart) -> SolveAllocation:
    """The request of a part of the cluster alone."""
    rate = question.problem.member_rate_steps_per_s[part.rows]
    found = replace(of_jobs(question, part.rows, rate, part.capacity), tiers=part.tiers)
    if found.limits is None or not part.is_reserved:
        return found
    return replace(found, limits=replace(found.limits, guaranteed=np.zeros_like(found.limits.guaranteed)))


def less_used(question: SolveAllocation, part: SolveAllocation, answer: AllocationSolved) -> SolveAllocation:
    """A request with what the answer to a part of it leaves of the limits of teams."""
    if question.limits is None or part.limits is None:
        return question
    gpus = np.zeros((len(part.jobs), len(part.problem.gpu_types)))
    row = np.searchsorted(part.jobs, answer.jobs)
    size = answer.sizes if len(answer.sizes) else part.problem.gpus_asked[row]
    np.add.at(gpus, (row, answer.gpu_type), answer.share * size)
    pairs = np.searchsorted(part.jobs, answer.pair_jobs.reshape(-1, 2))
    team = part.limits.team[pairs]
    of_pair = answer.pair_share * part.problem.gpus_asked[pairs[:, 0]]
    halves, whole = np.where(team[:, 0] == team[:, 1], 0.5, 1.0) * of_pair, gpus.copy()
    for member in pairs.T:
        np.add.at(gpus, (member, answer.pair_gpu_type), halves)
        np.add.at(whole, (member, answer.pair_gpu_type), of_pair)  # each needs its own of other resources
    amounts = np.column_stack([gpus, part.limits.with_resources(whole)[:, gpus.shape[1] :]])
    return replace(question, limits=question.limits.less(part.limits.of_teams(amounts, part.limits.team)))


def of_jobs(question: SolveAllocation, rows: Ints, rate: Floats, capacity: Ints) -> SolveAllocation:
    """The request of some of its jobs, with these rates (K, T) and capacity (T, R)."""
    job_types = tuple(question.job_types[row] for row in rows.tolist()) if question.job_types else ()
    problem = _of_rows(question.problem, rows, rate, capacity)
    memory = None if question.memory is None else question.memory.of(rows)
    free = capacity[:, 0] // THOUSANDTHS
    several = None if question.sizes is None else question.sizes.among(rows, question.problem.job_count, free)
    limits = None if question.limits is None else question.limits.of(rows)
    own = replace(
        question,
        limits=limits,
        problem=problem,
        jobs=question.jobs[rows],
        job_types=job_types,
        memory=memory,
        sizes=several,
    )
    return replace(own, tiers=(), parts=())


def _of_rows(problem: AllocationProblem, rows: Ints, rate: Floats, capacity: Ints) -> AllocationProblem:
    """The problem of some of its jobs, with these rates (K, T) and capacity (T, R)."""
    order = np.arange(len(rows))
    return replace(
        problem,
        job_ids=tuple(problem.job_ids[row] for row in rows.tolist()),
        capacity=capacity,
        demand=problem.demand[rows],
        member_configuration=order,
        member_job=order,
        member_rate_steps_per_s=rate,
        memory=b"",
        **{name: getattr(problem, name)[rows] for name in OF_JOBS},
    )


def _used_of_others(part: SolveAllocation, answer: AllocationSolved) -> Ints:
    """What the jobs of a tier use of other resources than GPUs by their shares, (T, R - 1), in thousandths."""
    demand = part.problem.demand[:, 1:]
    row_of = {serial: row for row, serial in enumerate(part.jobs.tolist())}
    rows = [row_of[serial] for serial in (*answer.jobs.tolist(), *answer.pair_jobs.ravel().tolist())]
    types = np.concatenate([answer.gpu_type, np.repeat(answer.pair_gpu_type, 2)])
    share = np.concatenate([answer.share, np.repeat(answer.pair_share, 2)])
    if len(answer.sizes):  # in proportion to GPUs
        alone = rows[: len(answer.jobs)]
        share[: len(alone)] *= answer.sizes / part.problem.gpus_asked[alone]
    used = np.zeros((len(part.problem.gpu_types), demand.shape[1]))
    np.add.at(used, types, demand[rows] * share[:, None])
    return np.ceil(used - NEGLIGIBLE).astype(np.int64)


def _used(part: SolveAllocation, answer: AllocationSolved, kept: Floats | Ints) -> tuple[Floats, Bools]:
    """GPUs of each type that the jobs of a tier use, (T,), and the types for which some still wait, (T,).

    `kept` (T,): GPUs without a share that they leave to others.
    """
    problem, rate = part.problem, part.problem.member_rate_steps_per_s
    row_of = {serial: row for row, serial in enumerate(part.jobs.tolist())}
    rows = np.array([row_of[serial] for serial in answer.jobs.tolist()], dtype=np.int64)
    pairs = np.array([row_of[s] for s in answer.pair_jobs.ravel().tolist()], dtype=np.int64).reshape(-1, 2)
    used, busy = np.zeros(rate.shape[1]), np.zeros(len(rate))
    gpus = answer.sizes if len(answer.sizes) else problem.gpus_asked[rows]
    np.add.at(used, answer.gpu_type, answer.share * gpus)
    np.add.at(busy, rows, answer.share)
    np.add.at(used, answer.pair_gpu_type, answer.pair_share * problem.gpus_asked[pairs[:, 0]])
    np.add.at(busy, pairs.ravel(), np.repeat(answer.pair_share, 2))
    waits = np.zeros(rate.shape[1], dtype=np.bool_)
    idle = np.flatnonzero(busy < 1 - NEGLIGIBLE)
    if not part.fills_leftover:  # jobs without a share do not wait for GPUs
        return used, np.asarray((rate[idle[busy[idle] > 0]] > 0).any(axis=0))
    room = np.maximum(problem.gpu_counts - used - kept, 0.0)
    for position, row in enumerate(idle.tolist()):
        rest = (1 - busy[row]) * problem.gpus_asked[row]
        for gpu_type in np.argsort(-rate[row], kind="stable").tolist():
            more = min(rest, room[gpu_type]) if rate[row, gpu_type] > 0 else 0.0
            if more > NEGLIGIBLE:
                used[gpu_type], room[gpu_type], rest = used[gpu_type] + more, room[gpu_type] - more, rest - more
        if rest > NEGLIGIBLE:
            waits |= rate[row] > 0
        if (room < NEGLIGIBLE).all():
            return used, waits | (rate[idle[position + 1 :]] > 0).any(axis=0)
    return used, waits


def joined_answers(epoch: int, answers: Sequence[AllocationSolved]) -> AllocationSolved:
    """One answer with the shares of all tiers, the objective of the first, the largest gap, and all warnings."""
    if not answers:
        none = np.zeros(0)
        return AllocationSolved(epoch, NO_INTS, NO_INTS, none, 0.0, 0.0, "")
    first = answers[0]
    return replace(
        first,
        jobs=np.concatenate([one.jobs for one in answers]),
        gpu_type=np.concatenate([one.gpu_type for one in answers]),
        share=np.concatenate([one.share for one in answers]),
        gap=max(one.gap for one in answers),
        pair_jobs=np.concatenate([one.pair_jobs.reshape(-1, 2) for one in answers]),
        pair_gpu_type=np.concatenate([one.pair_gpu_type for one in answers]),
        pair_share=np.concatenate([one.pair_share for one in answers]),
        warning="; ".join(dict.fromkeys(one.warning for one in answers if one.warning)),
        marginal_value=reduce(lambda high, low: np.where(high == 0, low, high), [a.marginal_value for a in answers]),
        again_s=min(one.again_s for one in answers),
        memory=b"",
        refused_jobs=np.concatenate([one.refused_jobs for one in answers]),
        refused_why=tuple(why for one in answers for why in one.refused_why),
        sizes=_joined_sizes(answers),
        next_round=named_round.joined(answers),
        **_joined_values(answers),
    )


def _joined_values(answers: Sequence[AllocationSolved]) -> dict[str, Any]:  # Any: names, and values
    """The values of resources other than GPUs, each at each type of the first answer in which it is not 0."""
    found: dict[str, Floats] = {}
    for one in answers:
        for name, value in zip(one.resources, one.resource_value, strict=True):
            found[name] = np.where(found[name] == 0, value, found[name]) if name in found else value
    return {"resources": tuple(found), "resource_value": np.array(list(found.values())) if found else NO_FLOATS}


def _joined_sizes(answers: Sequence[AllocationSolved]) -> Ints:
    """The sizes of all answers; 0 where an answer has none, as its jobs have one size."""
    if not any(len(one.sizes) for one in answers):
        return NO_INTS
    return np.concatenate([one.sizes if len(one.sizes) else np.zeros_like(one.jobs) for one in answers])
