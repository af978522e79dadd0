"""Measures one case at a time: our policy, cold and warm, and its peers, in turn in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from benchmarks.engines import Cvxpy, Engine, Highs, PeerFailed
from benchmarks.memory import peak_of
from benchmarks.peers import Formulation, disagreement, formulation_of
from benchmarks.problems import Case
from benchmarks.record import Measurement
from benchmarks.timing import Patience, Timed, timed
from benchmarks.warm import WarmHighs
from gavelpy.errors import GavelError
from gavelpy.model.allocation import Allocation
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Policy
from gavelpy.solve.solver import Solver

T = TypeVar("T")
OURS = "ours"
PAIRS_JOBS_MAX = 512  # there are up to n² / 2 of them
CVXPY = ("ecos", "clarabel")
PEERS = (*CVXPY, "highs")
CHANGES = 10  # departures and arrivals, in turn; a warm time is the median over these
PEER_STOPS_AFTER = 5.0  # times the limit, if a peer can stop itself


@dataclass(frozen=True)
class Terms:
    """The peers, and the limits of the measurement."""

    peers: tuple[str, ...]
    limit_s: float
    warm: bool
    memory: bool


class Series:
    """A policy on growing problems of one kind. A contender that exceeded the limit, or is forecast to, is skipped."""

    def __init__(self, terms: Terms, policy: Policy) -> None:
        self._terms = terms
        self._policy = policy
        self._formulation = formulation_of(self._policy)
        self._patience: dict[tuple[str, str], Patience] = {}

    def measurements(self, case: Case) -> Iterator[Measurement]:
        """The measurement of each contender, one after the other."""
        if case.is_packed and case.jobs > PAIRS_JOBS_MAX:
            return
        problem = case.problem()
        answer: Allocation | None = None
        if self._may(case, OURS):
            measured, answer = self._cold(case, problem)
            yield measured
        if self._formulation:
            for peer in self._terms.peers:
                if (self._formulation.is_linear or peer in CVXPY) and self._may(case, peer):
                    yield self._peer(case, peer, self._formulation, problem, answer)
        if self._terms.warm and not case.is_packed and answer:
            yield from self._warm(replace(case, mode="warm"))

    def _cold(self, case: Case, problem: AllocationProblem) -> tuple[Measurement, Allocation | None]:
        fresh = [problem]

        def renew() -> None:
            fresh[0] = replace(problem)  # a problem caches derived values

        try:
            found = timed(lambda: self._policy.allocate(fresh[0]), prepare=renew, budget_s=self._terms.limit_s)
        except GavelError as failure:
            return self._failed(case, OURS, failure), None
        self._took(case, OURS, found.median_s)
        measured = replace(_ours(case, found.answer), median_s=found.median_s, runs=found.runs)
        if self._terms.memory:
            before_mb, peak_mb = peak_of(case)
            measured = replace(measured, memory_before_mb=before_mb, memory_mb=peak_mb)
        return measured, found.answer

    def _peer(
        self, case: Case, peer: str, formulation: Formulation, problem: AllocationProblem, ours: Allocation | None
    ) -> Measurement:
        engines: list[Engine] = []

        def renew() -> None:
            engines.append(_engine(peer, self._terms.limit_s))

        try:
            found = timed(lambda: formulation.solve(problem, engines[-1]), prepare=renew, budget_s=self._terms.limit_s)
        except PeerFailed as failure:
            return self._failed(case, peer, failure)
        self._took(case, peer, found.median_s)
        apart = disagreement(formulation, ours, found.answer) if ours else float("nan")
        note = _note(apart, formulation.tolerance)
        return Measurement(
            case, peer, found.median_s, found.runs, solver_s=engines[-1].solver_s, apart=apart, note=note
        )

    def _warm(self, case: Case) -> Iterator[Measurement]:
        """The median over changes of one job each: ours with a warm solver, HiGHS from its last basis."""
        drawn = case.drawn(spare=CHANGES)
        changes = drawn.changes(case.jobs, CHANGES)
        solver = Solver()
        calls = (partial(self._policy.allocate, drawn.problem(rows), solver) for rows in changes)
        try:
            found = _each(calls, self._terms.limit_s)
        except GavelError as failure:
            yield self._failed(case, OURS, failure)
            return
        worst = max(answer.certificate.gap for answer in found.answer)
        yield replace(_ours(case, found.answer[-1]), median_s=found.median_s, runs=found.runs, gap=worst)
        warm = self._formulation.warm if self._formulation else None
        if warm is None or "highs" not in self._terms.peers or not self._may(replace(case, mode="cold"), "highs"):
            return
        try:
            peer = WarmHighs(drawn.problem(), warm, changes[0], PEER_STOPS_AFTER * self._terms.limit_s)
            theirs = _each((partial(peer.best, rows) for rows in changes[: found.runs + 1]), self._terms.limit_s)
        except PeerFailed as failure:
            yield self._failed(case, "highs", failure)
            return
        apart = float("nan")
        if theirs.runs == found.runs:
            apart = abs(theirs.answer[-1] / found.answer[-1].certificate.objective - 1.0)
        yield Measurement(case, "highs", theirs.median_s, theirs.runs, apart=apart, note=_note(apart, 1e-5))

    def _may(self, case: Case, contender: str) -> bool:
        known = self._patience.setdefault((case.mode, contender), Patience(self._terms.limit_s))
        return not known.is_over(case.jobs)

    def _took(self, case: Case, contender: str, took_s: float) -> None:
        self._patience.setdefault((case.mode, contender), Patience(self._terms.limit_s)).add(case.jobs, took_s)

    def _failed(self, case: Case, contender: str, failure: Exception) -> Measurement:
        """Records a failed contender, which is skipped at larger sizes."""
        self._took(case, contender, float("inf"))
        return Measurement(case, contender, note=str(failure))


def _ours(case: Case, answer: Allocation) -> Measurement:
    c = answer.certificate
    return Measurement(case, OURS, gap=c.gap, violation=c.violation, path=c.path)


def _each(calls: Iterable[Callable[[], T]], budget_s: float) -> Timed[list[T]]:
    """The median of one run each, without the first, which is cold; and all answers."""
    times: list[float] = []
    answers: list[T] = []
    for call in calls:
        began_s = time.perf_counter()
        answers.append(call())
        times.append(time.perf_counter() - began_s)
        if len(times) > 1 and sum(times) > 2 * budget_s:
            break
    return Timed(statistics.median(times[1:]), len(times) - 1, answers)


def _engine(peer: str, limit_s: float) -> Engine:
    stop_s = PEER_STOPS_AFTER * limit_s
    return Cvxpy(peer.upper(), stop_s) if peer in CVXPY else Highs(stop_s)


def _note(apart: float, tolerance: float) -> str:
    return "figures differ" if apart > tolerance else ""
