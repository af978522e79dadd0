"""A policy that names the configurations of the next round: a plan takes exactly those that fit, in their order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    NO_INTS,
    AllocationFailed,
    AllocationSolved,
    JobCancelled,
    JobsArchived,
    Outcome,
)
from gavelpy.mechanism.priority_classes import PriorityClass
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.mechanism.teams import Team
from gavelpy.model.allocation import Allocation
from gavelpy.model.cluster import Cluster
from gavelpy.model.problem import AllocationProblem
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.isolated import Isolated
from gavelpy.simulator.simulate import Simulation
from gavelpy.solve.solver import Solver
from tests.mechanism.builders import end, make_core, make_spec, plans, questions, start, tell, wake
from tests.simulator.builders import make_job, make_settings, make_trace

TYPES = ("v100", "k80")
BOTH = {"v100": 10.0, "k80": 5.0}


@dataclass(frozen=True)
class Named:
    """Names these (job, type) for the next round; those that are not in the problem are left out."""

    places: Sequence[tuple[str, str]]
    again_s: float = math.inf
    calls: list[float] = field(default_factory=list)

    name: ClassVar[str] = "named"
    summary: ClassVar[str] = "Names."
    fills_leftover: ClassVar[bool] = True
    uses: ClassVar[frozenset[Any]] = frozenset({"resources", "sizes", "pairs"})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        self.calls.append(float(problem.age_s.max(initial=0.0)))
        members = [tuple(problem.job_ids[j] for j in row) for row in problem.configuration_members()]
        row_of = {"+".join(names): row for row, names in reversed(list(enumerate(members)))}
        sized = {
            f"{names[0]}@{int(g)}": r for r, (names, g) in enumerate(zip(members, problem.gpus_occupied, strict=True))
        }
        row_of |= sized
        rows = [(row_of[job], problem.gpu_types.index(kind)) for job, kind in self.places if job in row_of]
        found = Isolated().allocate(AllocationProblem.of("x", ["y"], [1], [[1.0]]))
        share = np.zeros((problem.configuration_count, len(problem.gpu_types)))
        prices = np.full(len(problem.gpu_types), np.nan)
        named = np.array(rows, dtype=np.int64).reshape(-1, 2)
        return Allocation(problem, share, prices, found.certificate, again_s=self.again_s, next_round=named)


def answered(core: SchedulerCore, policy: Any, now_s: float | None = None, **options: Any) -> AllocationSolved:
    """Wakes the core and answers its request with this policy."""
    (question,) = questions(wake(core, now_s))
    found = Engine(policy, **options).solve(question)
    assert isinstance(found, AllocationSolved)
    return found


def granted(core: SchedulerCore, policy: Any, now_s: float | None = None, **options: Any) -> list[tuple[str, str]]:
    """The jobs that get leases by the policy's answer, and the types of their GPUs, in order of jobs."""
    found = plans(tell(core, answered(core, policy, now_s, **options)))
    jobs = sorted(job for plan in found for job in plan.grant_jobs.tolist())
    return [(core.jobs.specs[job].id, core.pool.gpu_types[core.jobs.lease_type[job]]) for job in jobs]


def two_types(*names: str, v100: int = 1, k80: int = 1, **options: Any) -> SchedulerCore:
    """A core with these jobs, which run on both types."""
    specs = [make_spec(name, rates=BOTH) for name in names]
    return make_core(*specs, servers=[("v100", v100), ("k80", k80)], **options)


def test_exactly_the_named_jobs_run_and_leftover_gpus_stay_free() -> None:
    core = two_types("a", "b", "c", k80=2)

    assert granted(core, Named([("c", "k80"), ("b", "v100")])) == [("b", "v100"), ("c", "k80")]
    assert reasons(core)[0].kind is ReasonKind.NO_SHARE
    assert reasons(core)[0].text == "the policy names other jobs for this round"


def test_of_several_places_of_a_job_the_first_that_fits_counts() -> None:
    core = two_types("a", "b", "c")
    order = [("c", "v100"), ("a", "v100"), ("a", "k80"), ("b", "v100"), ("b", "k80")]

    assert granted(core, Named(order)) == [("a", "k80"), ("c", "v100")]
    assert reasons(core)[1].kind is ReasonKind.BEHIND_OTHERS
    assert reasons(core)[1].text == "the policy names it for this round on v100 or k80, after jobs that have the GPUs"


def test_a_place_where_a_job_cannot_run_is_refused_with_the_reason() -> None:
    jobs = [make_spec("slow", rates={"k80": 5.0}), make_spec("gang", gpus=2), make_spec("two", rates=BOTH)]
    core = make_core(*jobs, servers=[("v100", 1), ("k80", 1)])
    tell(core, answer := answered(core, Named([("slow", "v100"), ("two", "k80"), ("slow", "v100")])))

    assert dict(zip(answer.refused_jobs.tolist(), answer.refused_why, strict=True)) == {
        0: "it is named for the next round on 1 v100, where it cannot run"
    }
    assert (
        reasons(core)[0].text == "the policy refuses it: it is named for the next round on 1 v100, where it cannot run"
    )
    assert core.jobs.leased.tolist() == [2]


def test_the_policy_is_called_again_at_the_end_of_each_round_only() -> None:
    core, policy = two_types("a", "b", "c", round_s=100.0), Named([("a", "v100")])
    granted(core, policy)

    assert core.wakeup_s == 100.0
    assert len(questions(wake(core, 100.0))) == 1


def test_gpus_that_become_free_within_the_round_go_to_the_next_named_job() -> None:
    core = two_types("a", "b", "c", solve_within_round=False)
    granted(core, Named([("b", "v100"), ("a", "k80"), ("c", "v100")]))
    start(core, 0, 1)
    end(core, 1, int(core.jobs.lease[1]), Outcome.FINISHED, steps=1e6, now_s=20.0)
    wake(core, 20.0)

    assert core.jobs.leased.tolist() == [0, 2]


def test_a_lease_that_is_not_named_again_ends_with_the_round_and_a_protected_one_does_not() -> None:
    free, kept = (two_types("a", "b", round_s=100.0, lease_min_s=least_s) for least_s in (0.0, 150.0))
    for core in (free, kept):
        granted(core, Named([("a", "v100")]))
        tell(core, answered(core, Named([("b", "v100")]), 100.0))

    assert (free.jobs.leased.tolist(), kept.jobs.leased.tolist()) == ([1], [0])


def test_quotas_of_teams_hold() -> None:
    specs = [make_spec(f"j{k}", entity="t") for k in range(3)] + [make_spec("other")]
    core = make_core(*specs, servers=[("v100", 4)], teams=(Team("t", quota={"v100": 2}),))
    names = [(spec.id, "v100") for spec in specs]

    assert [job for job, _ in granted(core, Named(names))] == ["j0", "j1", "other"]


def test_a_size_can_be_named() -> None:
    elastic = make_spec("e", sizes=(1, 2), rates_by_size={2: {"v100": 18.0}})
    core = make_core(elastic, make_spec("f"), servers=[("v100", 3)])
    granted(core, Named([("e@2", "v100"), ("f", "v100")]))

    assert core.jobs.gpus[:2].tolist() == [2, 1]
    assert core.jobs.leased.tolist() == [0, 1]


def test_a_pair_can_be_named() -> None:
    pairs, kept = np.array([[0, 0]]), np.array([[[0.8], [0.8]]])
    table = ThroughputTable(
        (("x", 1),), ("v100",), np.ones((1, 1)), np.zeros((1, 1), dtype=np.int64), ("",), pairs, kept
    )
    core = make_core(*(make_spec(name, job_type="x") for name in "abc"), packing=True)
    granted(core, Named([("a+b", "v100"), ("c", "v100")]), throughputs=table)

    assert core.jobs.leased.tolist() == [0, 1]
    assert core.jobs.partner[:3].tolist() == [1, 0, -1]


def test_journal_snapshot_and_archive_keep_the_named_round() -> None:
    core = two_types("gone", "a", "b")
    tell(core, JobCancelled(0))
    answer = answered(core, Named([("b", "v100"), ("a", "v100")]))
    _, read = decode(encode(answer, 1.0))
    tell(core, answer)
    restored = restore(decode_state(encode_state(snapshot(core))))
    tell(core, JobsArchived(np.array([0])))

    assert isinstance(read, AllocationSolved)
    assert encode(answer, 1.0)[1] == 13
    assert read.next_round.tolist() == restored.question.next_round.tolist() == [[2, -1, 0, 1], [1, -1, 0, 1]]
    assert core.question.next_round.tolist() == [[1, -1, 0, 1], [0, -1, 0, 1]]
    assert encode(replace(answer, next_round=NO_INTS), 1.0)[1] == 2, "as before"


def test_a_restored_core_and_one_whose_jobs_have_left_accept_serials() -> None:
    core = two_types("gone", "a", "b", solve_within_round=True)
    tell(core, JobCancelled(0))
    tell(core, JobsArchived(np.array([0])))
    tell(core, answer := answered(core, Named([("b", "v100"), ("a", "k80")])))

    assert answer.next_round.tolist() == [[2, -1, 0, 1], [1, -1, 1, 1]]
    assert core.question.next_round.tolist() == [[1, -1, 0, 1], [0, -1, 1, 1]]
    assert core.jobs.leased.tolist() == [0, 1]


@pytest.mark.parametrize("named", [[-1, -1, 0, 1], [-2, -1, 0, 1], [1, -2, 0, 1], [1, 3, 0, 1]])
def test_serials_that_cannot_be_are_refused_also_when_jobs_have_left(named: list[int]) -> None:
    core = two_types("gone", "a", "b")
    tell(core, JobCancelled(0))
    tell(core, JobsArchived(np.array([0])))
    answer = answered(core, Named([("a", "v100")]))

    with pytest.raises(InvalidInput, match=r"jobs of next_round must be in \[0, 3\)"):
        core.handle(replace(answer, next_round=np.array([named])), core.now_s)


def test_priority_classes_are_named_one_after_the_other_or_not_at_all() -> None:
    @dataclass(frozen=True)
    class Half(Named):
        def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
            found = super().allocate(problem, solver)
            return found if "high" in problem.job_ids else replace(found, next_round=None)

    classes = (PriorityClass("top", 10),)
    jobs = [make_spec("low"), make_spec("high", priority="top")]
    core = make_core(*jobs, servers=[("v100", 2)], priorities=classes)
    (question,) = questions(wake(core))
    whole = Engine(Named([("low", "v100"), ("high", "v100")])).solve(question)

    with pytest.raises(InvalidInput, match="a policy must name the next round of all priority classes"):
        Engine(Half([("high", "v100")])).solve(question)
    assert not isinstance(whole, AllocationFailed)
    assert whole.next_round[:, 0].tolist() == [1, 0]
    tell(core, whole)
    assert core.jobs.leased.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ([[0, -1, 0]], r"next_round must have shape \(N, 4\), got \(1, 3\)"),
        ([[5, -1, 0, 1]], r"jobs of next_round must be in \[0, 2\), got 5"),
        ([[0, 7, 0, 1]], r"co-located jobs of next_round must be in \[-1, 2\), got 7"),
        ([[0, -1, 2, 1]], r"types of next_round must be in \[0, 2\), got 2"),
        ([[0, -1, 0, 3]], "GPUs of 'a' in next_round must be of 1, got 3"),
        ([[0, 0, 0, 1]], "a pair of next_round must be two jobs of equal size, got 0 and 0"),
    ],
)
def test_the_core_refuses_what_is_no_configuration(named: list[list[int]], error: str) -> None:
    core = two_types("a", "b")
    answer = answered(core, Named([("a", "v100")]))
    before = encode_state(snapshot(core))

    with pytest.raises(InvalidInput, match=error):
        core.handle(replace(answer, next_round=np.array(named)), core.now_s)

    assert encode_state(snapshot(core)) == before


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ([[0]], r"next_round must be pairs of configuration and GPU type \(N, 2\)"),
        ([[0.5, 0]], "next_round must be pairs"),
        ([[1, 0]], r"configurations of next_round must be in \[0, 1\), got 1"),
        ([[0, -1]], r"GPU types of next_round must be in \[0, 1\), got -1"),
    ],
)
def test_an_allocation_refuses_rows_that_are_not_there(named: Any, error: str) -> None:
    found = Isolated().allocate(AllocationProblem.of("a", ["v100"], [1], [[1.0]]))

    with pytest.raises(InvalidInput, match=error):
        replace(found, next_round=np.array(named))


def test_a_simulation_follows_the_named_rounds() -> None:
    trace = make_trace(*(make_job(name, steps=1000.0) for name in "abc"))
    policy = Named([("c", "v100"), ("a", "v100"), ("b", "v100")])

    result = Simulation(trace, Cluster.of({"v100": 1}), Engine(policy), make_settings(round_s=100.0)).run()

    assert result.jobs["finish_s"].to_dict() == {"a": 2000.0, "b": 3000.0, "c": 1000.0}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_plan_takes_exactly_what_fits_in_the_named_order(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=2), "GPUs")
    gpus = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=7), "sizes of jobs")
    places = st.tuples(st.integers(0, len(gpus) - 1), st.integers(0, 1))
    order = data.draw(st.lists(places, max_size=14), "order")
    rounds = data.draw(st.integers(1, 3), "rounds")
    specs = [make_spec(f"j{k}", rates=BOTH, gpus=size) for k, size in enumerate(gpus)]
    core = make_core(*specs, servers=list(zip(TYPES, counts, strict=True)), round_s=100.0)
    left, expected = list(counts), dict[int, int]()
    for job, kind in order:
        if job not in expected and gpus[job] <= left[kind]:
            left[kind] -= gpus[job]
            expected[job] = kind

    for k in range(rounds):
        if found := questions(wake(core, 100.0 * k)):
            tell(core, Engine(Named([(f"j{job}", TYPES[kind]) for job, kind in order])).solve(found[0]))

    assert {job: int(core.jobs.lease_type[job]) for job in core.jobs.leased.tolist()} == expected
