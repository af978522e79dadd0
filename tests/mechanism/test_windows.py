"""Reservations of nodes: no job runs there while one is in force, and none starts that would lose its work."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    LeaseEnded,
    NodeJoined,
    Outcome,
    ReservationAdded,
    ReservationRemoved,
    SavingDeclared,
)
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import copied, restore, snapshot
from gavelpy.model.job import JobId, JobSpec, NodeId
from tests.mechanism.builders import answer, make_core, make_spec, plans, questions, start, tell, wake

TWO = [("v100", 1), ("v100", 1)]
HOUR_S = 3_600.0


def reserve(
    core: SchedulerCore, *nodes: str, begin_s: float = 100.0, end_s: float = HOUR_S, name: str = "disks"
) -> None:
    tell(core, ReservationAdded(name, nodes, begin_s, end_s, "new disks"))


def node_of(core: SchedulerCore, job: int) -> str:
    """The node of a one-GPU job's lease; empty = it has none."""
    return core.pool.node_ids[core.pool.node_of[core.jobs.gpu_first[job]]] if core.jobs.lease[job] >= 0 else ""


def run_all(core: SchedulerCore, now_s: float | None = None) -> None:
    """Wakes the core, answers its question with full shares, and starts what is granted."""
    for plan in [*plans(wake(core, now_s)), *_answered(core)]:
        if len(plan.grant_jobs):
            start(core, *plan.grant_jobs.tolist())


def _answered(core: SchedulerCore) -> list:  # type: ignore[type-arg]  # plans
    return (
        plans(answer(core, *((int(job), 0, 1.0) for job in core.jobs.active))) if core.question.open_epoch >= 0 else []
    )


def end_stopping(core: SchedulerCore) -> None:
    """The nodes report the end of all leases that are being stopped."""
    for job in np.flatnonzero(core.jobs.stopping[: core.jobs.count] >= 0).tolist():
        lease = core.jobs.stopping[job : job + 1].copy()
        tell(core, LeaseEnded(np.array([job]), lease, np.zeros(1), Outcome.STOPPED))


def test_leases_end_when_the_reservation_begins_and_the_node_is_usable_after_it() -> None:
    core = make_core(make_spec("a"), make_spec("b"), servers=TWO)
    reserve(core, "n1")
    run_all(core)
    before = {node_of(core, job) for job in (0, 1)}

    run_all(core, core.wakeup_s)
    begun_s = core.now_s
    during = {node_of(core, job) for job in (0, 1)}
    end_stopping(core)
    run_all(core, HOUR_S)
    run_all(core)

    assert before == {"n0", "n1"}
    assert begun_s == 100.0
    assert during == {"n0", ""}
    assert {node_of(core, job) for job in (0, 1)} == {"n0", "n1"}


def test_the_policy_divides_only_what_is_not_reserved() -> None:
    core = make_core(make_spec("a"), make_spec("b"), servers=TWO)
    reserve(core, "n1", begin_s=0.0)

    (question,) = questions(wake(core))

    assert question.problem.gpu_counts.tolist() == [1.0]


def test_begin_does_not_wait_for_a_slow_policy() -> None:
    core = make_core(make_spec("a"), servers=[("v100", 1)], solve_patience_s=10.0)
    run_all(core)
    reserve(core, "n0")

    wake(core, 100.0)

    assert core.now_s == 100.0
    assert core.jobs.lease[0] == -1


def test_job_that_is_not_preempted_otherwise_must_leave_too() -> None:
    core = make_core(make_spec("a"), servers=[("v100", 1)], keep_unsaved=True)
    run_all(core)
    reserve(core, "n0", begin_s=50.0)

    wake(core, core.wakeup_s)
    wake(core, 50.0)

    assert core.jobs.lease[0] == -1
    assert core.jobs.stopping[0] == 0


def test_job_that_would_lose_its_work_starts_on_a_node_that_stays() -> None:
    core = make_core(make_spec("a"), servers=TWO, keep_unsaved=True)
    reserve(core, "n0")

    run_all(core)

    assert node_of(core, 0) == "n1"


def test_job_that_would_lose_its_work_waits_rather_than_start_and_preemptible_ones_use_the_node() -> None:
    core = make_core(make_spec("a"), servers=[("v100", 1)], keep_unsaved=True)
    reserve(core, "n0")
    run_all(core)
    waits = node_of(core, 0)
    why = reasons(core)[0]
    tell(core, _submission("b", preemptible=True))

    run_all(core)

    assert waits == ""
    assert why.kind is ReasonKind.BEFORE_RESERVATION
    assert why.text == (
        "would not end before the reservation 'disks' of free nodes, which begins at 100 s, and cannot be preempted"
    )
    assert (node_of(core, 0), node_of(core, 1)) == ("", "n0")


def _submission(name: str, **fields: object):  # type: ignore[no-untyped-def]  # an event
    from gavelpy.mechanism.events import JobSubmitted

    return JobSubmitted(make_spec(name, **fields))


@pytest.mark.parametrize("fields", [{"time_s": 90.0}, {"steps": 900.0}], ids=["by-its-limit", "by-its-steps"])
def test_job_that_ends_before_the_reservation_starts(fields: dict[str, float]) -> None:
    core = make_core(make_spec("a", **fields), servers=[("v100", 1)], keep_unsaved=True)
    reserve(core, "n0")

    run_all(core)

    assert node_of(core, 0) == "n0"


def test_job_that_declares_to_save_runs_up_to_the_begin() -> None:
    core = make_core(make_spec("a", preemptible=True), servers=[("v100", 1)], keep_unsaved=True)
    reserve(core, "n0")
    run_all(core)
    tell(core, SavingDeclared(np.array([0]), core.jobs.lease[:1].copy()))

    assert node_of(core, 0) == "n0"
    assert core.wakeup_s == 100.0


def test_waiting_job_names_the_reservation() -> None:
    core = make_core(make_spec("a"), servers=[("v100", 1)])
    reserve(core, "n0", begin_s=0.0)
    wake(core)

    why = reasons(core)[0]

    assert why.kind is ReasonKind.NODES_AWAY
    assert "n0 (reserved by 'disks': new disks)" in why.text


def test_deleted_reservation_gives_its_nodes_back_at_once() -> None:
    core = make_core(make_spec("a"), servers=[("v100", 1)])
    reserve(core, "n0", begin_s=0.0)
    wake(core)

    tell(core, ReservationRemoved("disks"), 20.0)
    run_all(core)

    assert node_of(core, 0) == "n0"
    assert core.windows == {}


def test_node_that_joins_again_stays_reserved() -> None:
    core = make_core(make_spec("a"), servers=[("v100", 1)])
    reserve(core, "n0", begin_s=0.0)

    tell(core, NodeJoined(NodeId("n0"), "v100", 1))
    run_all(core)

    assert node_of(core, 0) == ""


def test_replacing_a_reservation_moves_it() -> None:
    core = make_core(make_spec("a"), servers=TWO)
    reserve(core, "n0", begin_s=0.0)
    reserve(core, "n1", begin_s=0.0)

    run_all(core)

    assert node_of(core, 0) == "n0"


def test_reservations_survive_a_restart_and_are_in_copies_for_forecasts() -> None:
    core = make_core(make_spec("a"), servers=TWO)
    reserve(core, "n0", begin_s=0.0)
    reserve(core, "n1", begin_s=500.0, name="later")
    again, double = restore(decode_state(encode_state(snapshot(core)))), copied(core)

    tell(double, ReservationRemoved("later"))

    assert again.windows == core.windows
    assert again.window_due_s == core.window_due_s == 500.0
    assert again.pool.usable.tolist() == core.pool.usable.tolist() == [False, True]
    assert set(core.windows) == {"disks", "later"}


@pytest.mark.parametrize(
    "event", [ReservationAdded("x", ("n0", "n1"), 1.0, 2.0, "why"), ReservationRemoved("x")], ids=str
)
def test_events_come_back_from_the_journal(event: ReservationAdded | ReservationRemoved) -> None:
    assert vars(decode(encode(event, 0.0))[1]) == vars(event)


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (ReservationAdded("", ("n0",), 1.0, 2.0), "name"),
        (ReservationAdded("x", (), 1.0, 2.0), "node_ids"),
        (ReservationAdded("x", ("n7",), 1.0, 2.0), "node_id must be one of n0, got 'n7'"),
        (ReservationAdded("x", ("n0",), 2.0, 2.0), "must end after its begin"),
        (ReservationAdded("x", ("n0",), -9.0, -5.0), "must end after its begin and after now"),
        (ReservationRemoved("x"), "name must be that of a reservation, got 'x'"),
    ],
    ids=str,
)
def test_a_reservation_that_means_nothing_is_refused(
    event: ReservationAdded | ReservationRemoved, complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        make_core().handle(event, 0.0)


@pytest.mark.parametrize("seed", range(12))
def test_no_lease_is_ever_in_force_on_a_reserved_node_after_a_plan(seed: int) -> None:
    rng = np.random.default_rng(seed)
    specs = [
        JobSpec(JobId(f"j{k}"), float(rng.integers(200, 20_000)), gpus=int(rng.integers(1, 4)),
                rates_steps_per_s={"v100": 10.0}, preemptible=bool(rng.integers(2)))
        for k in range(8)
    ]  # fmt: skip
    core = make_core(*specs, servers=[("v100", 2)] * 4, keep_unsaved=bool(seed % 2), solve_patience_s=0.0)
    for k in range(4):
        begin_s = float(rng.integers(1, 3_000))
        reserve(
            core, f"n{rng.integers(4)}", begin_s=begin_s, end_s=begin_s + float(rng.integers(10, 900)), name=f"w{k}"
        )
    seen = 0

    while core.now_s < 5_000.0 and core.wakeup_s < np.inf:
        run_all(core, core.wakeup_s)
        end_stopping(core)
        now_s = core.now_s
        closed = {n for w in core.windows.values() if w.is_in_force(now_s) for n in w.node_ids}
        held = np.flatnonzero(core.pool.job >= 0)
        assert not closed & {core.pool.node_ids[node] for node in core.pool.node_of[held]}
        seen += bool(closed)

    assert seen
