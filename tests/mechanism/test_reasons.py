"""Every waiting job has one reason, and its text names the relevant facts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AllocationSolved, JobCancelled, JobSubmitted, NodeDraining, NodeJoined
from gavelpy.mechanism.feasibility import cannot_run
from gavelpy.mechanism.reasons import Reason, ReasonKind, reasons
from gavelpy.model.job import JobSpec, NodeId
from tests.mechanism.builders import answer, make_core, make_spec, running_core, tell, wake


def reason_of(core: SchedulerCore, job: int) -> Reason:
    return reasons(core)[job]


def unknown() -> Reason:
    core = make_core(make_spec("a", rates={}, job_type="mystery", gpus=2))
    wake(core)
    return reason_of(core, 0)


def nowhere() -> Reason:
    return reason_of(make_core(make_spec("a", rates={"v100": 0.0}), servers=[("v100", 1), ("k80", 1)]), 0)


def too_large() -> Reason:
    servers = [("k80", 2), ("v100", 1), ("v100", 3)]
    return reason_of(make_core(make_spec("a", gpus=5, rates={"v100": 4.0, "k80": 1.0}), servers=servers), 0)


def awaits() -> Reason:
    core = make_core(make_spec("a"))
    wake(core)
    return reason_of(core, 0)


def starting() -> Reason:
    core = make_core(make_spec("a"))
    wake(core)
    answer(core, (0, 0, 1.0))
    return reason_of(core, 0)


def no_share() -> Reason:
    core = make_core(make_spec("a"), make_spec("b"))
    wake(core)
    answer(core, (0, 0, 1.0))
    return reason_of(core, 1)


def behind_others() -> Reason:
    servers = [("v100", 1), ("v100", 1), ("k80", 1)]
    specs = [make_spec(name, rates={"v100": 4.0, "k80": 1.0}) for name in "abcd"]
    core = make_core(*specs, servers=servers)
    wake(core)
    answer(core, (0, 0, 1.0), (1, 0, 0.9), (2, 1, 0.8), (3, 0, 0.1))
    return reason_of(core, 3)


@pytest.mark.parametrize(
    ("kind", "make", "text"),
    [
        (ReasonKind.UNKNOWN_THROUGHPUT, unknown, "the throughput of 'mystery' on 2 GPUs is unknown"),
        (ReasonKind.RUNS_ON_NO_TYPE, nowhere, "its throughput is zero on every GPU type of the cluster (v100, k80)"),
        (ReasonKind.GANG_TOO_LARGE, too_large, "needs 5 GPUs of one type; the maximum is 4 v100"),
        (ReasonKind.AWAITS_ALLOCATION, awaits, "waits for its first allocation"),
        (ReasonKind.STARTING, starting, "has a lease and is about to start"),
        (ReasonKind.NO_SHARE, no_share, "the policy gives it no share now; other jobs come first"),
        (
            ReasonKind.BEHIND_OTHERS,
            behind_others,
            "waits for its turn on v100: 2 jobs have it until the round ends at 360 s",
        ),
    ],
    ids=["unknown", "nowhere", "too-large", "awaits", "starting", "no-share", "behind"],
)
def test_reason_says_what_matters(kind: ReasonKind, make: Callable[[], Reason], text: str) -> None:
    assert make() == Reason(kind, text)


def test_a_job_that_runs_needs_no_reason() -> None:
    core = running_core(make_spec("a"))
    tell(core, JobSubmitted(make_spec("b")), 5.0)

    assert list(reasons(core)) == [1]


def test_without_any_gpu_a_job_of_known_speed_is_not_called_unknown() -> None:
    core = make_core(make_spec("a"), servers=[])

    assert reason_of(core, 0) == Reason(
        ReasonKind.RUNS_ON_NO_TYPE, "its throughput is zero on every GPU type of the cluster (none)"
    )


def test_a_job_that_cannot_run_where_it_is_known_is_unknown_elsewhere() -> None:
    core = make_core(make_spec("a", rates={}, job_type="mystery"))
    core.jobs.rate[0] = [0.0]
    tell(core, NodeJoined(NodeId("n9"), "k80", 1))
    core.jobs.rate[0] = [0.0, float("nan")]

    assert reason_of(core, 0).kind == ReasonKind.UNKNOWN_THROUGHPUT


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (
            make_spec("a", gpus=9),
            "it needs 9 GPUs of one type; the cluster has at most 4 v100 that it can use together",
        ),
        (make_spec("a", rates={}, gpus=9), "it needs 9 GPUs of one type; the cluster has at most 4 v100"),
        (make_spec("a", rates={"h100": 5.0}), "its throughput is zero on every GPU type of the cluster (v100, k80)"),
        (make_spec("a", rates={"k80": 5.0}, gpus=3), "the cluster has at most 2 k80 that it can use together"),
    ],
)
def test_job_that_no_node_can_run_is_named(spec: JobSpec, why: str) -> None:
    core = make_core(spec, servers=(("v100", 4), ("k80", 2)))

    assert why in cannot_run(core, np.array([0]))[0]


def test_job_that_waits_for_drained_nodes_or_an_estimate_can_run_some_time() -> None:
    core = make_core(make_spec("a", gpus=4), make_spec("b", rates={}), servers=(("v100", 4),))
    tell(core, NodeDraining(NodeId("n0")))

    assert cannot_run(core, np.arange(2)) == {}


def test_without_any_node_the_warning_says_so() -> None:
    core = make_core(make_spec("a"), servers=())

    assert cannot_run(core, np.array([0])) == {0: "no node has joined the cluster yet"}


def test_draining_servers_do_not_count() -> None:
    core = make_core(make_spec("a"))
    tell(core, NodeDraining(NodeId("n0")))

    assert reason_of(core, 0).text == "needs 1 GPU; only enough with those of n0 (draining)"


def test_of_some_jobs_the_same_is_said_as_among_all() -> None:
    rates = {"v100": 4.0, "k80": 1.0}
    specs = [make_spec("a"), make_spec("b", rates=rates), make_spec("c", gpus=9), make_spec("d"), make_spec("e")]
    core = make_core(*specs, servers=[("v100", 1), ("k80", 1)])
    wake(core)
    answer(core, (0, 0, 0.9), (1, 1, 0.4), (1, 0, 0.1))
    tell(core, JobSubmitted(make_spec("f", rates=rates)), 5.0)
    tell(core, JobCancelled(4), 6.0)

    said = reasons(core)
    some = reasons(core, np.array([5, 2, 4, 2, 3]))

    assert some == {job: said[job] for job in (2, 3, 5)}
    assert [said[job].kind for job in (2, 3, 5)] == [
        ReasonKind.GANG_TOO_LARGE,
        ReasonKind.NO_SHARE,
        ReasonKind.AWAITS_ALLOCATION,
    ]


def test_jobs_that_wait_for_the_same_are_told_the_same() -> None:
    core = make_core(*map(make_spec, "abc"), servers=[("v100", 1)])
    wake(core)
    answer(core, (0, 0, 0.5), (1, 0, 0.4), (2, 0, 0.1))

    said = reasons(core)

    assert said[1] == said[2]
    assert said[1].text == "waits for its turn on v100: 1 job has it until the round ends at 360 s"


def test_time_with_others_is_a_share_too() -> None:
    core = make_core(*map(make_spec, "abc"), servers=[("v100", 1)], packing=True)
    wake(core)
    one = np.array([0])
    pair = {"pair_jobs": np.array([[1, 2]]), "pair_gpu_type": one, "pair_share": np.array([0.3])}
    tell(core, AllocationSolved(core.question.open_epoch, one, one, np.array([0.7]), **pair))

    said = reasons(core)

    assert [said[job].kind for job in (1, 2)] == [ReasonKind.BEHIND_OTHERS] * 2
