"""Gandiva-Fair: users with tickets share GPUs by stride scheduling of gangs, and trade fast GPUs for slow ones.

The state between calls is in the allocation's memory: the passes of users on each type and of jobs, and what each job
had received.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ProblemInput, ruled
from gavelpy.policies.in_order import places
from gavelpy.policies.memory import as_memory
from gavelpy.policies.refusals import refuse_unused
from gavelpy.solve.solver import Solver

QUANTUM_S = 360.0  # without a scheduler
_DIGITS = 6  # of passes that are compared, so that equal service ties


@dataclass(frozen=True)
class GandivaFair:
    """On type t serve the user u with the least pass  P_ut = Σ GPU-seconds / k_ut;  k_ut: its tickets after trades.

    user       the entity of a job (tickets: its weight), else its owner (the largest weight of the owner's jobs), else
               the job alone (its weight)
    ticket share of u on type t:  its tickets over those of all users, times the GPUs of t
    trade      for each pair of types, the user with the highest speedup v_u(fast) / v_u(slow) buys fast GPUs with slow
               ones from the user with the lowest, at the speedup of the user after the buyer (with two users: of the
               seller), until one has no more; v_u(t): mean over its jobs of the rate on t over the job's best rate
    k_ut       tickets of u, times its GPUs of type t after the trades over those before

    Gandiva-Fair (EuroSys '20), section 4: stride scheduling with gangs and second-price trading, from the paper's
    description; no code of it is public. A user with the least pass gets GPUs for its job with the least pass, then
    counts as served for a round; one whose job does not fit is skipped, and is first in a later round, so gangs do not
    starve. A new user or job begins with the least pass of the others. What a trade guarantees: no user's GPUs are
    worth less to it, Σ_t v_u(t), than its ticket share. Not here: per-node stride, migration between nodes, profiling.

    >>> p = AllocationProblem.of("ab", ["v100", "k80"], [2, 2], [[6.0, 1.0], [1.2, 1.0]])
    >>> traded(ticket_shares(np.ones(2), p.gpu_counts), np.array([[1.0, 1 / 6], [1.0, 1 / 1.2]])).round(4).tolist()
    [[1.8333, 0.0], [0.1667, 2.0]]
    """

    quantum_s: float = 0.0

    name: ClassVar[str] = "gandiva_fair"
    summary: ClassVar[str] = "Share GPUs among users by tickets, in strides; trade fast GPUs for slow ones."
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {ProblemInput.WEIGHT, ProblemInput.ENTITY, ProblemInput.OWNER, ProblemInput.ATTAINED}
    )

    def __post_init__(self) -> None:
        if not 0 <= self.quantum_s < math.inf:
            raise InvalidInput(f"quantum_s must be finite and >= 0, got {self.quantum_s!r}")

    def over_rounds(self, round_s: float, turn_s: float, move_lag_s: float) -> GandivaFair:  # noqa: ARG002 the protocol's
        """This policy with the round as its quantum, unless set."""
        return self if self.quantum_s else replace(self, quantum_s=round_s)

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, the next round, and the passes."""
        refuse_unused(self, problem)
        return _Strides(problem).answer(self.quantum_s or QUANTUM_S)


def ticket_shares(tickets: Floats, gpu_counts: Floats) -> Floats:
    """GPUs of each user by its tickets, (U, T)."""
    total = tickets.sum()
    return np.outer(tickets / (total if total > 0 else 1.0), gpu_counts)


def traded(gpus: Floats, value: Floats) -> Floats:
    """GPUs of each user (U, T) after trades; `value` (U, T) is what a GPU of each type is worth to it."""
    held = gpus.copy()
    fastest = np.argsort(-value.sum(axis=0), kind="stable").tolist()
    for place, fast in enumerate(fastest):
        for slow in reversed(fastest[place + 1 :]):
            _trade(held, value, fast, slow)
    return held


def _trade(held: Floats, value: Floats, fast: int, slow: int) -> None:
    speedup = np.divide(value[:, fast], value[:, slow], out=np.full(len(value), np.inf), where=value[:, slow] > 0)
    speedup[value[:, fast] <= 0] = 0.0
    order = np.argsort(-speedup, kind="stable").tolist()
    i, j = 0, len(order) - 1
    while i < j and speedup[order[i]] > speedup[order[j]] * (1 + 1e-9):
        buyer, seller, price = order[i], order[j], speedup[order[i + 1]]
        if not 0 < price < math.inf or held[buyer, slow] <= 0:
            i += 1
        elif held[seller, fast] <= 0:
            j -= 1
        elif held[seller, fast] * price <= held[buyer, slow]:
            bought, held[seller, fast] = float(held[seller, fast]), 0.0
            held[buyer, fast] += bought
            held[buyer, slow] -= bought * price
            held[seller, slow] += bought * price
        else:
            paid, held[buyer, slow] = float(held[buyer, slow]), 0.0
            held[buyer, fast] += paid / price
            held[seller, fast] -= paid / price
            held[seller, slow] += paid


class _Strides:
    """Users, their tickets by type, and passes after the service since the last call."""

    def __init__(self, problem: AllocationProblem) -> None:
        p = self._problem = problem
        alone = p.member_count[p.member_configuration] == 1
        self._row = np.full(p.job_count, -1)
        self._row[p.member_job[alone][::-1]] = p.member_configuration[alone][::-1]
        runs = (p.fits & p.is_whole)[self._row] if p.job_count else np.zeros((0, len(p.gpu_types)), dtype=np.bool_)
        self._rate: Floats = np.where(runs, p.rate_alone_steps_per_s, 0.0)
        self._rows = np.flatnonzero(self._rate.max(axis=1, initial=0.0) > 0).tolist()
        names = [self._user_of(row) for row in range(p.job_count)]
        self._users = list(dict.fromkeys(names[row] for row in self._rows))
        self._jobs = [[row for row in self._rows if names[row] == user] for user in self._users]
        tickets = np.array([self._tickets(jobs) for jobs in self._jobs])
        value = np.array(
            [(self._rate[jobs] / self._rate[jobs].max(axis=1, keepdims=True)).mean(axis=0) for jobs in self._jobs]
        ).reshape(len(self._users), len(p.gpu_types))
        before = ticket_shares(tickets, p.gpu_counts)
        after = traded(before, value)
        self._speed = value.sum(axis=0)
        self._tickets_at: Floats = tickets.reshape(-1, 1) * np.divide(
            after, before, out=np.zeros_like(after), where=before > 0
        )
        self._restore(json.loads(p.memory or b"{}"))

    def _user_of(self, row: int) -> str:
        p = self._problem
        if p.entity[row] >= 0:
            return f"entity:{p.entities[p.entity[row]].id}"
        return f"owner:{p.owners[p.owner[row]]}" if p.owner[row] >= 0 else f"job:{p.job_ids[row]}"

    def _tickets(self, jobs: list[int]) -> float:
        p, entity = self._problem, int(self._problem.entity[jobs[0]])
        return p.entities[entity].weight if entity >= 0 else float(p.weight[jobs].max())

    def _restore(self, kept: dict[str, Any]) -> None:  # Any: as `memory` writes it
        """Passes of users (U, T) and jobs (J,): those of the last call, with what jobs have received since."""
        p, T = self._problem, len(self._problem.gpu_types)
        passes: dict[str, list[float]] = kept.get("users", {})
        jobs: dict[str, list[Any]] = kept.get("jobs", {})  # id -> pass, received, type, planned service, user
        known = [passes.get(user) for user in self._users]
        least = np.array([one for one in known if one]).min(axis=0) if any(known) else np.zeros(T)
        self._pass: Floats = np.array([one or least for one in known], dtype=np.float64).reshape(-1, T)
        self._job_pass = np.zeros(p.job_count)
        self._type = np.full(p.job_count, -1)
        for u, own in enumerate(self._jobs):
            old = {row: jobs[p.job_ids[row]] for row in own if p.job_ids[row] in jobs}
            for row, (before, received, gpu_type, _, _) in old.items():
                more = max(float(p.attained_gpu_s[row]) - received, 0.0)
                self._job_pass[row] = before + more / p.weight[row]
                self._type[row] = gpu_type
                self._charge(u, int(gpu_type), more)
            new = [row for row in own if row not in old]
            least_job = min((self._job_pass[row] for row in old), default=math.nan)
            self._job_pass[new] = least_job if old else p.attained_gpu_s[new] / p.weight[new]
        present = set(p.job_ids)
        for name, (_, _, gpu_type, planned, user) in jobs.items():
            if name not in present and user in self._users:  # it ended, in the time that was planned for it
                self._charge(self._users.index(user), int(gpu_type), planned)

    def _charge(self, u: int, gpu_type: int, gpu_s: float) -> None:
        if gpu_type >= 0 and self._tickets_at[u, gpu_type] > 0:
            self._pass[u, gpu_type] += gpu_s / self._tickets_at[u, gpu_type]

    def _memory(self, planned_gpu_s: Floats) -> bytes:
        """Passes as they are now, and what is planned for each job until the next call, (J,)."""
        p, user_of = self._problem, {row: u for u, own in enumerate(self._jobs) for row in own}
        columns = np.column_stack([self._job_pass, p.attained_gpu_s, self._type, planned_gpu_s]).tolist()
        jobs = {p.job_ids[row]: [*columns[row], self._users[user_of[row]]] for row in self._rows}
        users = dict(zip(self._users, self._pass.tolist(), strict=True))
        return as_memory({"users": users, "jobs": jobs}, jobs, users) if jobs else b""

    def answer(self, quantum_s: float) -> Allocation:
        """The jobs that are served, the fastest type first, one job at a time."""
        p, free = self._problem, self._problem.capacity[:, 0].copy()
        share, order = np.zeros(p.fits.shape), list[tuple[int, int]]()
        planned = np.zeros(p.job_count)
        waiting = [sorted(own, key=lambda row: (round(float(self._job_pass[row]), _DIGITS), row)) for own in self._jobs]
        for t in np.argsort(-self._speed, kind="stable").tolist():
            passes = np.where(self._tickets_at[:, t] > 0, self._pass[:, t], np.inf)
            while found := self._next(waiting, passes, t, int(free[t])):
                u, row = found
                waiting[u].remove(row)
                free[t] -= p.demand[self._row[row], 0]
                share[self._row[row], t] = 1.0
                order.append((int(self._row[row]), t))
                self._type[row] = t
                planned[row] = p.gpus_asked[row] * quantum_s
                passes[u] += planned[row] / max(self._tickets_at[u, t], 1e-300)
        rest: Ints = np.array([row for own in waiting for row in own], dtype=np.int64)
        named = np.array(order, dtype=np.int64).reshape(-1, 2)
        return replace(
            ruled(p, share, objective=float(len(order))),
            next_round=np.concatenate([named, places(p, rest, share)]).astype(np.int64),
            memory=self._memory(planned),
        )

    def _next(self, waiting: list[list[int]], passes: Floats, t: int, free: int) -> tuple[int, int] | None:
        """The user with the least pass that has a job which fits on this type, and its job with the least pass."""
        for u in sorted(range(len(waiting)), key=lambda u: (round(float(passes[u]), _DIGITS), u)):
            for row in waiting[u]:
                if self._rate[row, t] > 0 and self._problem.demand[self._row[row], 0] <= free:
                    return u, row
        return None
