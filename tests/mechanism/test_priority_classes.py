"""Priority classes: validation, the order of plans, who preempts whom, and the GPUs that are kept from a class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.commands import RoundPlan, SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AllocationSolved,
    ConfigChanged,
    JobCancelled,
    JobSubmitted,
    LeaseEnded,
    Outcome,
)
from gavelpy.mechanism.priority_classes import PriorityClass
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.policies.max_min_fairness import MaxMinFairness
from tests.mechanism.builders import end, make_core, make_spec, plans, questions, running_core, start, tell, wake

HIGH = PriorityClass("high", 100, preempts=("low", "normal"))
LOW = PriorityClass("low", -100)
POLITE = PriorityClass("polite", 50)  # comes first, preempts none
CLASSES = (HIGH, POLITE, LOW)


def running(*names: str, classes: tuple[PriorityClass, ...] = CLASSES, **options: Any) -> SchedulerCore:
    """A core with jobs that run on four V100; the class of each is its name up to a dash."""
    specs = [make_spec(name, priority=name.partition("-")[0]) for name in names]
    options = {"servers": [("v100", 4)]} | options
    return running_core(*specs, priorities=classes, **options)


def submitted(core: SchedulerCore, name: str, **options: Any) -> int:
    """Submits a job whose class is its name up to a dash; returns its serial."""
    tell(core, JobSubmitted(make_spec(name, priority=name.partition("-")[0], **options)))
    return core.jobs.count - 1


def settled(core: SchedulerCore, now_s: float | None = None) -> list[Any]:
    """Wakes the core and answers its request with the policy; the commands."""
    commands = wake(core, now_s)
    engine = Engine(MaxMinFairness())
    for question in questions(commands):
        commands = [*commands, *tell(core, engine.solve(question))]
    return commands


def start_after(core: SchedulerCore, plan: RoundPlan) -> None:
    """Ends the leases that a plan takes back, and starts those that it grants."""
    for job, lease in zip(plan.revoke_jobs.tolist(), plan.revoke_leases.tolist(), strict=True):
        end(core, job, lease, Outcome.STOPPED)
    if len(plan.grant_jobs):
        start(core, *plan.grant_jobs.tolist())


# Validation -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ((PriorityClass("a b", 1),), "priorities must be named by 1 to 63 letters"),
        ((PriorityClass("a", 1), PriorityClass("a", 2)), "priorities must have each name once, got 'a' twice"),
        ((PriorityClass("a", 1), PriorityClass("b", 1)), "value must differ from that of 'a', got 1"),
        ((PriorityClass("a", 0),), "value must differ from that of"),  # normal has 0
        ((PriorityClass("a", 10**10),), r"priorities.a.value must be in \[-1000000000, 1000000000\]"),
        ((PriorityClass("a", 1, ("b",)),), r"priorities.a.preempts must be lower classes \(normal\), got 'b'"),
        ((PriorityClass("a", -1, ("normal",)),), "priorities.a.preempts must be empty, as no class is lower"),
        ((PriorityClass("a", 1, owners=("",)),), "priorities.a.owners must be names of users"),
    ],
)
def test_classes_that_mean_nothing_are_refused(classes: tuple[PriorityClass, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        MechanismSettings(priorities=classes)


def test_classes_and_jobs_with_a_class_are_journalled() -> None:
    event = JobSubmitted(make_spec("a", priority="high"))
    config = ConfigChanged(MechanismSettings(priorities=CLASSES))

    _, job = decode(encode(event, 1.0))
    _, changed = decode(encode(config, 1.0))

    assert isinstance(job, JobSubmitted)
    assert isinstance(changed, ConfigChanged)
    assert (job.spec, changed.settings.priorities) == (event.spec, CLASSES)


def test_without_classes_records_have_the_versions_of_before() -> None:
    plain, classed = JobSubmitted(make_spec("a")), JobSubmitted(make_spec("a", priority="high"))

    assert (encode(plain, 1.0)[1], encode(classed, 1.0)[1]) == (2, 8)


def test_a_restored_core_continues_as_the_original() -> None:
    core = running("low-1", "low-2", "low-3", "low-4")
    submitted(core, "high-1")
    settled(core, 10.0)

    copy = restore(decode_state(encode_state(snapshot(core))))

    assert encode_state(snapshot(copy)) == encode_state(snapshot(core))
    assert copy.jobs.rank[:5].tolist() == core.jobs.rank[:5].tolist() == [3, 3, 3, 3, 0]
    assert reasons(copy) == reasons(core)


# Preemption -----------------------------------------------------------------------------------------------------------


def test_a_job_of_a_higher_class_preempts_the_youngest_lease_of_the_lowest_class_at_once() -> None:
    core = running("low-1", "normal-1", "low-2", "normal-2")
    end(core, 2, 2, Outcome.LOST, now_s=5.0)
    settled(core, 5.0)  # low-2 begins again, after the others
    start(core, 2)
    job = submitted(core, "high-1")

    (plan,) = plans(settled(core, 10.0))

    assert (plan.revoke_jobs.tolist(), plan.grant_jobs.tolist(), plan.extend_jobs.tolist()) == ([2], [job], [])
    assert reasons(core)[2].kind is ReasonKind.PREEMPTED
    assert reasons(core)[2].text == "preempted by job 4 of class high; waits until GPUs are left for its class"


def test_a_gang_takes_as_many_leases_as_it_needs_and_no_more() -> None:
    core = running("low-1", "low-2", "normal-1", "normal-2")
    gang = submitted(core, "high-1", gpus=3)

    (plan,) = plans(settled(core, 10.0))

    assert (plan.revoke_jobs.tolist(), plan.grant_jobs.tolist()) == ([0, 1, 3], [gang])


def test_a_lease_that_a_larger_one_makes_superfluous_is_not_taken_back() -> None:
    gang = make_spec("low-gang", priority="low", gpus=3)
    core = running_core(gang, make_spec("low-1", priority="low"), servers=[("v100", 4)], priorities=CLASSES)
    job = submitted(core, "high-1", gpus=3)

    (plan,) = plans(settled(core, 10.0))

    assert (plan.revoke_jobs.tolist(), plan.grant_jobs.tolist()) == ([0], [job])


def test_a_class_that_may_not_preempt_gets_the_next_free_gpu() -> None:
    core = running("low-1", "low-2", "low-3", "low-4")
    waiting = submitted(core, "low-5")
    polite = submitted(core, "polite-1")
    assert [plan.grant_jobs.tolist() for plan in plans(settled(core, 10.0))] == []
    assert reasons(core)[polite].kind is ReasonKind.KEPT_BY_CLASS
    assert "held by 4 jobs of class low, which class polite may not preempt" in reasons(core)[polite].text

    tell(core, JobCancelled(0), 20.0)
    tell(core, LeaseEnded(np.array([0]), np.array([0]), np.zeros(1), Outcome.STOPPED), 21.0)
    (plan,) = plans(settled(core, 21.0))

    assert (plan.grant_jobs.tolist(), plan.revoke_jobs.tolist()) == ([polite], [])
    assert reasons(core)[waiting].kind is ReasonKind.BEHIND_CLASS


def test_a_class_that_others_wait_behind_rotates_on_the_gpus_that_it_holds() -> None:
    core = running("low-1", "low-2", "low-3", "low-4")
    submitted(core, "low-5")
    submitted(core, "polite-1")
    settled(core, 10.0)

    (plan,) = plans(settled(core, 360.0))

    assert (plan.grant_jobs.tolist(), len(plan.revoke_jobs), len(plan.extend_jobs)) == ([4], 1, 3)
    assert core.jobs.taken_by[plan.revoke_jobs].tolist() == [-1]


def test_a_class_does_not_grow_where_a_higher_gang_waits_that_may_not_preempt_it() -> None:
    core = running("low-1", "low-2", "low-3")
    gang = submitted(core, "polite-1", gpus=2)
    late = submitted(core, "low-5")

    assert plans(settled(core, 10.0)) == []
    (turn,) = plans(settled(core, 360.0))
    assert (len(turn.grant_jobs), len(turn.revoke_jobs)) == (1, 1)
    start_after(core, turn)
    tell(core, JobCancelled(int(core.jobs.leased[0])), 370.0)
    (plan,) = plans(settled(core, 370.0))
    assert plan.grant_jobs.tolist() == [gang]
    assert late in turn.grant_jobs.tolist()


def test_a_job_that_is_not_preemptible_is_not_preempted_by_a_higher_class() -> None:
    core = running("low-1", servers=[("v100", 1)], keep_unsaved=True)
    job = submitted(core, "high-1")

    assert plans(settled(core, 10.0)) == []
    (plan,) = plans(settled(core, 360.0))
    assert (plan.extend_jobs.tolist(), plan.grant_jobs.tolist()) == ([0], [])
    assert reasons(core)[job].kind is ReasonKind.BEHIND_UNSAVED


def test_lease_protection_does_not_hold_against_a_class_that_may_preempt() -> None:
    core = running("low-1", servers=[("v100", 1)], lease_min_s=300.0)
    job = submitted(core, "high-1")

    (plan,) = plans(settled(core, 10.0))

    assert plan.grant_jobs.tolist() == [job]


def test_a_class_may_be_configured_to_respect_lease_protection() -> None:
    core = running(
        "low-1", servers=[("v100", 1)], lease_min_s=300.0, classes=(replace(HIGH, respect_lease_min=True), LOW)
    )
    job = submitted(core, "high-1")

    assert plans(settled(core, 10.0)) == []
    (plan,) = plans(settled(core, 360.0))
    assert (plan.revoke_jobs.tolist(), plan.grant_jobs.tolist()) == ([0], [job])


def test_jobs_of_a_class_take_turns_and_lower_ones_get_none() -> None:
    core = running("high-1", servers=[("v100", 1)])
    second, low = submitted(core, "high-2"), submitted(core, "low-1")
    ran = []
    for k in range(1, 7):
        for plan in plans(settled(core, 360.0 * k)):
            start_after(core, plan)
            ran += plan.grant_jobs.tolist()

    assert set(ran) == {0, second}
    assert core.jobs.total("received_s")[low].sum() == 0


def test_a_gang_of_a_low_class_reserves_nothing_from_a_higher_one() -> None:
    core = running("normal-1", "normal-2", keep_unsaved=True, servers=[("v100", 3)])
    gang = submitted(core, "low-1", gpus=2)
    job = submitted(core, "high-1")

    (plan,) = plans(settled(core, 10.0))

    assert plan.grant_jobs.tolist() == [job]
    assert reasons(core)[gang].kind in (ReasonKind.BEHIND_UNSAVED, ReasonKind.BEHIND_CLASS)


def test_a_job_of_a_class_that_is_removed_counts_as_normal() -> None:
    core = running("low-1", servers=[("v100", 1)])

    tell(core, ConfigChanged(replace(core.settings, priorities=(POLITE,))))
    assert core.jobs.rank[0] == 1
    tell(core, ConfigChanged(replace(core.settings, priorities=())))

    assert core.jobs.rank[0] == 0


# The policy's problem -------------------------------------------------------------------------------------------------


class Recorded(Engine):
    """An engine that records the parts that it solves."""

    def __init__(self) -> None:
        super().__init__(MaxMinFairness())
        self.parts: list[tuple[list[int], list[float]]] = []

    def _solved(self, question: SolveAllocation) -> Any:
        self.parts.append((question.jobs.tolist(), question.problem.gpu_counts.tolist()))
        return super()._solved(question)


def solved_parts(core: SchedulerCore) -> tuple[list[tuple[list[int], list[float]]], AllocationSolved]:
    (question,) = questions(wake(core, 10.0))
    engine = Recorded()
    found = engine.solve(question)
    assert isinstance(found, AllocationSolved)
    return engine.parts, found


def test_the_policy_divides_what_higher_classes_leave() -> None:
    normal = PriorityClass("normal", preempts=("low",))
    core = running("low-1", "low-2", "low-3", "low-4", classes=(HIGH, normal, LOW))
    submitted(core, "high-1", gpus=2)
    submitted(core, "normal-1")

    parts, found = solved_parts(core)

    assert parts == [([4], [4.0]), ([5], [2.0]), ([0, 1, 2, 3], [1.0])]
    assert dict(zip(found.jobs.tolist(), found.share.tolist(), strict=True)) == pytest.approx(
        {4: 1.0, 5: 1.0, 0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25}
    )


def test_gpus_that_a_class_cannot_take_back_are_not_in_its_problem() -> None:
    core = running("low-1", "low-2", "low-3")
    submitted(core, "polite-1")
    submitted(core, "polite-2")

    parts, _ = solved_parts(core)

    assert parts == [([3, 4], [1.0]), ([0, 1, 2], [3.0])]


def test_without_leases_of_other_classes_there_is_one_problem() -> None:
    core = make_core(make_spec("a"), make_spec("b"), priorities=CLASSES)

    (question,) = questions(wake(core))

    assert question.tiers == ()


def test_jobs_alone_use_the_rest_of_their_time_on_other_types() -> None:
    """The only high job has a share of the V100 alone, and the low one gets the K80."""
    both = {"v100": 10.0, "k80": 1.0}
    core = make_core(servers=[("v100", 1), ("k80", 1)], priorities=CLASSES)
    submitted(core, "high-1", rates=both)
    submitted(core, "high-2", rates=both)
    submitted(core, "low-1", rates=both)

    (question,) = questions(wake(core))
    found = Engine(MaxMinFairness()).solve(question)

    assert isinstance(found, AllocationSolved)
    assert set(found.jobs.tolist()) == {0, 1}
