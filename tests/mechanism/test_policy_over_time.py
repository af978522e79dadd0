"""What an answer carries beyond shares: when it is due again, memory, refused jobs, and marginal values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AllocationSolved, ProgressReported
from gavelpy.mechanism.priority_classes import PriorityClass
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.allocation import Allocation
from gavelpy.model.cluster import Cluster
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.isolated import Isolated
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.simulator.simulate import Simulation
from gavelpy.solve.solver import Solver
from tests.mechanism.builders import answer, make_core, make_spec, questions, start, tell, wake
from tests.simulator.builders import make_job, make_settings, make_trace


@dataclass(frozen=True)
class Counting:
    """Counts its calls in its memory; is due again after `again_s`, and refuses jobs whose name begins with `bad`."""

    again_s: float = math.inf
    seen: list[bytes] = field(default_factory=list)

    name: ClassVar[str] = "counting"
    summary: ClassVar[str] = "Counts."
    fills_leftover: ClassVar[bool] = False

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        self.seen.append(problem.memory)
        found = Isolated().allocate(problem)
        bad = [job for job in problem.job_ids if job.startswith("bad")]
        is_bad = np.array([job in bad for job in problem.job_ids])
        return Allocation(
            problem, np.where(is_bad[:, None], 0.0, found.share), found.shadow_prices, found.certificate,
            again_s=self.again_s, memory=b"%d" % (int(problem.memory or b"0") + 1),
            refused=dict.fromkeys(bad, "no value"),
        )  # fmt: skip


def answered(core: SchedulerCore, engine: Engine, now_s: float | None = None) -> list[AllocationSolved]:
    """Wakes the core and answers its requests; the answers."""
    found = []
    for question in questions(wake(core, now_s)):
        answer = engine.solve(question)
        assert isinstance(answer, AllocationSolved)
        tell(core, answer)
        found.append(answer)
    return found


def test_memory_is_handed_back_and_the_policy_is_asked_again() -> None:
    core, policy = make_core(make_spec("a"), round_s=1000.0), Counting(again_s=50.0)
    engine = Engine(policy)
    answered(core, engine)
    due_s = core.wakeup_s
    early = answered(core, engine, 49.0)
    answered(core, engine, 50.0)

    assert (due_s, core.wakeup_s, early) == (50.0, 100.0, [])
    assert policy.seen == [b"", b"1"]
    assert core.question.memory == b"counting\n2"


def test_a_policy_sees_job_types_owners_and_how_long_a_start_took() -> None:
    names = [("a", "lstm", "ann"), ("b", "", "ben"), ("c", "lstm", "ann")]
    jobs = [make_spec(name, job_type=kind, owner=owner) for name, kind, owner in names]
    core = make_core(*jobs, servers=[("v100", 3)])
    (first,) = questions(wake(core))
    answer(core, (0, 0, 1.0))
    start(core, 0, now_s=10.0)
    tell(core, ProgressReported(np.array([0]), core.jobs.lease[:1], np.array([5.0])), 35.0)
    core.disturb()

    (again,) = questions(wake(restore(snapshot(core)), 35.0))

    assert [first.problem.job_types[k] if k >= 0 else "" for k in first.problem.job_type] == ["lstm", "", "lstm"]
    assert [again.problem.owners[k] for k in again.problem.owner] == ["ann", "ben", "ann"]
    assert (first.problem.restart_s.tolist(), again.problem.restart_s.tolist()) == ([0.0] * 3, [25.0, 0.0, 0.0])


def test_without_a_wish_nothing_is_due_before_the_round_ends() -> None:
    core = make_core(make_spec("a"), round_s=1000.0)
    answered(core, Engine(Counting()))

    assert core.wakeup_s == 1000.0


def test_within_a_round_nothing_is_asked_where_the_settings_forbid_it() -> None:
    core = make_core(make_spec("a"), round_s=1000.0, solve_within_round=False)
    engine = Engine(Counting(again_s=50.0))
    answered(core, engine)

    assert core.wakeup_s == 1000.0
    assert answered(core, engine, 60.0) == []
    assert len(answered(core, engine, 1000.0)) == 1


def test_a_refused_job_waits_with_the_reason_until_it_is_accepted() -> None:
    core = make_core(make_spec("good"), make_spec("bad-1"), servers=[("v100", 2)], fill_leftover=False)
    answered(core, Engine(Counting(again_s=5.0)))
    refused = reasons(core)[1]
    (accepted,) = answered(core, Engine(Isolated()), 5.0)

    assert (refused.kind, refused.text) == (ReasonKind.REFUSED, "the policy refuses it: no value")
    assert accepted.jobs.tolist() == [0, 1]
    assert core.question.refused == {}


def test_journal_and_snapshot_keep_all_of_it() -> None:
    core = make_core(make_spec("good"), make_spec("bad-1"), servers=[("v100", 1), ("k80", 1)], fill_leftover=False)
    (answer,) = answered(core, Engine(Counting(again_s=5.0)))

    _, read = decode(encode(answer, 1.0))
    restored = restore(decode_state(encode_state(snapshot(core))))

    assert isinstance(read, AllocationSolved)
    assert (read.again_s, read.memory, read.refused_why) == (5.0, b"counting\n1", ("no value",))
    assert read.refused_jobs.tolist() == [1]
    assert (restored.wakeup_s, restored.question.memory) == (5.0, b"counting\n1")
    assert reasons(restored)[1].kind is ReasonKind.REFUSED


def test_marginal_values_are_journaled_and_those_of_rules_are_not() -> None:
    specs = [make_spec(name) for name in "abc"]
    (optimised,) = answered(make_core(*specs), Engine(MaxMinFairness()))
    (ruled,) = answered(make_core(*specs), Engine(Isolated()))

    _, read = decode(encode(optimised, 1.0))
    assert isinstance(read, AllocationSolved)
    assert read.marginal_value.tolist() == optimised.marginal_value.tolist()
    assert read.marginal_value[0] > 0
    assert len(ruled.marginal_value) == 0
    assert encode(ruled, 1.0)[1] == 2, "a record that needs nothing new has the version of before"


def test_priority_classes_join_their_answers() -> None:
    classes = (PriorityClass("high", 1), PriorityClass("low", -1))
    specs = [make_spec("a", priority="high"), make_spec("bad-1", priority="low"), make_spec("c", priority="low")]
    core = make_core(*specs, servers=[("v100", 2)], priorities=classes)
    (answer,) = answered(core, Engine(Counting(again_s=7.0)))

    assert (answer.again_s, answer.memory, answer.refused_jobs.tolist()) == (7.0, b"", [1])


def test_a_simulation_asks_as_often_as_the_policy_wants() -> None:
    policy = Counting(again_s=100.0)
    trace = make_trace(make_job("a", steps=2000.0), make_job("b", steps=2000.0))

    result = Simulation(trace, Cluster.of({"v100": 2}), Engine(policy), make_settings(round_s=1000.0)).run()

    assert result.metrics.solves == len(policy.seen)
    assert len(policy.seen) >= 20
    assert policy.seen[-1] == b"%d" % (len(policy.seen) - 1)


def test_a_simulation_ends_although_a_policy_refuses_a_job_forever() -> None:
    trace = make_trace(make_job("a", steps=2000.0), make_job("bad-b", steps=2000.0))
    settings = make_settings(round_s=1000.0, fill_leftover=False)

    result = Simulation(trace, Cluster.of({"v100": 2}), Engine(Counting(again_s=100.0)), settings).run()

    assert result.reasons == {1: "the policy refuses it: no value"}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"again_s": 0.5}, "again_s must be at least 1, or infinite for never, got 0.5"),
        ({"again_s": math.nan}, "again_s must be at least 1"),
        ({"memory": "text"}, "memory must be at most 1048576 bytes, got 'text'"),
        ({"memory": b"x" * ((1 << 20) + 1)}, "memory must be at most 1048576 bytes, got 1048577 bytes"),
        ({"refused": {"b": "why"}}, "refused must name jobs of the problem, got 'b'"),
    ],
)
def test_answers_that_mean_nothing_are_refused(options: dict[str, Any], error: str) -> None:
    problem = AllocationProblem.of("a", ["v100"], [1], [[1.0]])
    found = Isolated().allocate(problem)

    with pytest.raises(InvalidInput, match=error):
        Allocation(problem, found.share, found.shadow_prices, found.certificate, **options)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"again_s": math.nan}, "again_s must be at least 1, got nan"),
        ({"again_s": -5.0}, "again_s must be at least 1, got -5.0"),
        ({"refused_jobs": np.array([7]), "refused_why": ("late",)}, r"refused_jobs must be in \[0, 1\), got 7"),
        ({"refused_jobs": np.array([0])}, "refused_why must be one text for each of refused_jobs, got 0 for 1"),
    ],
)
def test_the_core_refuses_an_answer_with_such_values_and_does_not_change(changes: dict[str, Any], error: str) -> None:
    core = make_core(make_spec("a"))
    (question,) = questions(wake(core))
    answer = Engine(Isolated()).solve(question)
    before = encode_state(snapshot(core))

    with pytest.raises(InvalidInput, match=error):
        core.handle(replace(answer, **changes), core.now_s)

    assert encode_state(snapshot(core)) == before
