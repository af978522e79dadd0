"""Reservations of nodes for users: their jobs alone run there, which needs a plan and a problem for each part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.commands import SolveAllocation
from gavelpy.mechanism.events import (
    CheckpointSaved,
    JobsReleased,
    JobSubmitted,
    LeaseEnded,
    Outcome,
    ReservationAdded,
    ReservationRemoved,
)
from gavelpy.mechanism.feasibility import cannot_run
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.priority_classes import PriorityClass
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.mechanism.windows import Window, in_the_way
from gavelpy.model.job import JobSpec
from gavelpy.policies.max_min_fairness import MaxMinFairness
from tests.mechanism.builders import make_core, make_spec, tell, wake
from tests.mechanism.test_priority_order import SmallCluster

TWO = [("v100", 1), ("v100", 1)]
HOUR_S = 3_600.0
VERSION_8 = Path(__file__).parent / "fixtures" / "snapshot_version_8.msgpack"


class Cluster(SmallCluster):
    """As its base, with nodes and jobs that the test names."""

    def __init__(self, *specs: JobSpec, servers: list[tuple[str, int]] = TWO, **settings: object) -> None:
        self.core = make_core(*specs, servers=servers, **settings)
        self.engine = Engine(MaxMinFairness())
        self.types, self.gang_max = ("v100", "k80"), 2
        self.wake(0.0)

    def check_plans(self, commands: object, before: object) -> None:
        """Classes are not the subject."""

    def held(self) -> list[list[int]]:
        return []

    def reserve(
        self, *nodes: str, name: str = "x", user: str = "ann", begin_s: float = 0.0, end_s: float = HOUR_S
    ) -> None:
        self.tell(ReservationAdded(name, nodes, begin_s, end_s, "talk", (user,)))
        self.wake(self.core.now_s)

    def submit_one(self, name: str, **fields: object) -> None:
        self.tell(JobSubmitted(make_spec(name, **fields)))
        self.wake(self.core.now_s)

    def nodes(self) -> list[str]:
        """The node of each job, which has one GPU; empty = no lease."""
        core = self.core
        return [
            str(core.pool.node_ids[core.pool.node_of[core.jobs.gpu_first[job]]]) if core.jobs.lease[job] >= 0 else ""
            for job in range(core.jobs.count)
        ]

    def why(self, job: int) -> tuple[ReasonKind, str]:
        found = reasons(self.core)[job]
        return found.kind, found.text


def anns(name: str, **fields: object) -> JobSpec:
    return make_spec(name, owner="ann", reservation="x", **fields)


def test_only_jobs_that_name_the_reservation_run_on_its_nodes() -> None:
    cluster = Cluster()
    cluster.reserve("n1")

    for name in ("a", "b"):
        cluster.submit_one(name, owner="ann")
    cluster.submit_one("c", owner="ann", reservation="x")

    assert cluster.nodes() == ["n0", "", "n1"]
    kind, text = cluster.why(1)
    assert kind is ReasonKind.BEHIND_OTHERS
    assert text.endswith("; n1 reserved for ann by 'x': talk until 3600 s")


def test_job_waits_for_the_begin_of_its_reservation_though_gpus_are_free() -> None:
    cluster = Cluster()
    cluster.reserve("n1", begin_s=100.0)
    cluster.submit_one("a", owner="ann", reservation="x")
    before, why = cluster.nodes(), cluster.why(0)

    cluster.wake(cluster.core.wakeup_s)

    assert (before, cluster.core.now_s, cluster.nodes()) == ([""], 100.0, ["n1"])
    assert why == (ReasonKind.AWAITS_RESERVATION, "its reservation 'x' begins at 100 s")


def test_others_leave_at_the_begin_and_the_owner_of_the_reservation_starts() -> None:
    cluster = Cluster(make_spec("a"), make_spec("b"))
    cluster.reserve("n1", begin_s=100.0)
    cluster.submit_one("c", owner="ann", reservation="x")
    before = cluster.nodes()

    cluster.wake(cluster.core.wakeup_s)

    assert sorted(before) == ["", "n0", "n1"]
    assert sorted(cluster.nodes()[:2]) == ["", "n0"]
    assert cluster.nodes()[2] == "n1"


def test_the_policy_divides_each_part_among_its_own_jobs() -> None:
    core = make_core(*(make_spec(f"j{k}") for k in range(3)), servers=[("v100", 2), ("v100", 1)])
    tell(core, ReservationAdded("x", ("n0",), 0.0, HOUR_S, "", ("ann",)))
    tell(core, JobSubmitted(anns("a")))

    (question,) = [one for one in wake(core) if isinstance(one, SolveAllocation)]
    answer = Engine(MaxMinFairness()).solve(question)

    assert [(part.rows.tolist(), part.capacity.tolist()) for part in question.parts] == [
        ([0, 1, 2], [[1000]]),
        ([3], [[2000]]),
    ]
    assert answer.share.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0])


def test_job_that_cannot_be_preempted_runs_on_and_the_reservation_gets_its_gpu_afterwards() -> None:
    cluster = Cluster(make_spec("a"), servers=[("v100", 1)], keep_unsaved=True)
    cluster.reserve("n0")
    cluster.submit_one("b", owner="ann", reservation="x")
    during = cluster.nodes()

    cluster.tell(LeaseEnded(np.array([0]), cluster.core.jobs.lease[:1].copy(), np.array([1e6]), Outcome.FINISHED))
    cluster.wake(cluster.core.now_s)

    assert during == ["n0", ""]
    assert cluster.nodes() == ["", "n0"]


def test_job_that_becomes_preemptible_on_a_reserved_node_leaves_it_at_once() -> None:
    cluster = Cluster(make_spec("a"), servers=[("v100", 1)], keep_unsaved=True)
    cluster.reserve("n0")
    cluster.submit_one("b", owner="ann", reservation="x")

    cluster.tell(CheckpointSaved(np.array([0]), cluster.core.jobs.lease[:1].copy(), np.array([10.0])))
    cluster.wake(cluster.core.now_s)

    assert cluster.nodes() == ["", "n0"]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, [0]),
        ({"time_s": 90.0}, []),
        ({"steps": 900.0}, []),
        ({"preemptible": True}, []),
        ({"owner": "ann", "reservation": "y"}, []),
    ],
    ids=["no-limit", "ends-by-its-limit", "ends-by-its-steps", "preemptible", "of-the-same-reservation"],
)
def test_jobs_in_the_way_are_those_that_would_run_into_the_reservation(
    fields: dict[str, object], names: list[int]
) -> None:
    cluster = Cluster(servers=[("v100", 1)], keep_unsaved=True)
    cluster.reserve("n0", name="y", end_s=50.0)
    cluster.submit_one("a", **fields)
    cluster.wake(cluster.core.wakeup_s)

    found = in_the_way(cluster.core, Window("y", ("n0",), 200.0, HOUR_S, "", ("ann",)))

    assert found.tolist() == names


def test_job_without_a_limit_that_cannot_be_preempted_does_not_start_before_the_reservation_of_others() -> None:
    cluster = Cluster(servers=[("v100", 1)], keep_unsaved=True)
    cluster.reserve("n0", begin_s=100.0)

    cluster.submit_one("a")
    why = cluster.why(0)
    cluster.submit_one("b", time_s=90.0)

    assert cluster.nodes() == ["", "n0"]
    assert why[0] is ReasonKind.BEFORE_RESERVATION
    assert "which begins at 100 s" in why[1]


def test_reservation_that_is_far_ahead_does_not_close_the_nodes_of_a_nearer_one() -> None:
    cluster = Cluster(keep_unsaved=True)
    cluster.reserve("n0", begin_s=100.0)
    cluster.reserve("n1", begin_s=10_000.0, end_s=20_000.0, name="y")

    cluster.submit_one("a", time_s=5_000.0)

    assert cluster.nodes() == ["n1"]


def test_at_the_end_its_jobs_leave_and_are_held_and_a_released_one_runs_outside() -> None:
    cluster = Cluster()
    cluster.reserve("n1")
    cluster.submit_one("a", owner="ann", reservation="x")
    cluster.wake(HOUR_S)
    after, why = cluster.nodes(), cluster.why(0)

    cluster.tell(JobsReleased(np.array([0])))
    cluster.wake(HOUR_S)

    assert after == [""]
    assert why[0] is ReasonKind.HELD
    assert why[1] == "its reservation 'x' is over, so it is held; once released, it runs outside of reservations"
    assert cluster.nodes() != [""]


def test_job_that_cannot_be_preempted_runs_on_after_the_end_of_its_reservation() -> None:
    cluster = Cluster(keep_unsaved=True)
    cluster.reserve("n1")
    cluster.submit_one("a", owner="ann", reservation="x")

    cluster.wake(HOUR_S)

    assert cluster.nodes() == ["n1"]


def test_held_job_runs_in_a_reservation_of_the_same_name_once_it_is_released() -> None:
    cluster = Cluster(servers=[("v100", 1)] * 3)
    cluster.reserve("n1")
    cluster.submit_one("a", owner="ann", reservation="x")
    cluster.wake(HOUR_S)
    cluster.reserve("n2", end_s=2 * HOUR_S)

    cluster.tell(JobsReleased(np.array([0])))
    cluster.wake(HOUR_S)

    assert cluster.nodes() == ["n2"]


def test_deleted_reservation_returns_its_nodes_at_once() -> None:
    cluster = Cluster()
    cluster.reserve("n0", "n1")
    cluster.submit_one("a", owner="ann", reservation="x")
    cluster.submit_one("b")
    before = cluster.nodes()

    cluster.tell(ReservationRemoved("x"))
    cluster.wake(cluster.core.now_s)

    assert before[0] != "" == before[1]
    assert cluster.nodes()[0] == "" != cluster.nodes()[1]


def test_reservation_that_is_replaced_without_its_owner_holds_the_job() -> None:
    cluster = Cluster()
    cluster.reserve("n1")
    cluster.submit_one("a", owner="ann", reservation="x")

    cluster.reserve("n1", user="bob")

    assert cluster.nodes() == [""]
    assert cluster.core.jobs.hold[0] >= 0


def test_maintenance_of_a_reserved_node_ends_the_leases_of_the_reservation_too() -> None:
    cluster = Cluster()
    cluster.reserve("n1")
    cluster.submit_one("a", owner="ann", reservation="x")

    cluster.tell(ReservationAdded("disks", ("n1",), 0.0, 100.0))
    cluster.wake(0.0)
    during = cluster.nodes()
    cluster.wake(100.0)

    assert during == [""]
    assert cluster.nodes() == ["n1"]


def test_job_of_others_that_fits_on_reserved_nodes_only_names_the_reservation_and_is_not_called_impossible() -> None:
    cluster = Cluster()
    cluster.reserve("n0", "n1")

    cluster.submit_one("a")

    text = "needs 1 GPU; n0, n1 reserved for ann by 'x': talk until 3600 s"
    assert cluster.why(0) == (ReasonKind.RESERVED, text)
    assert cannot_run(cluster.core, np.array([0])) == {}


def test_gang_that_is_larger_than_its_reservation_can_never_run() -> None:
    cluster = Cluster()
    cluster.reserve("n1", begin_s=100.0)

    cluster.submit_one("a", owner="ann", reservation="x", gpus=2)

    why = cannot_run(cluster.core, np.array([0]))[0]
    assert why == "it needs 2 GPUs of one type; its reservation 'x' has at most 1 v100 that it can use together"


def test_many_jobs_of_a_higher_class_outside_do_not_hold_back_a_job_inside() -> None:
    cluster = Cluster(priorities=(PriorityClass("high", 10),))
    cluster.reserve("n1")
    for k in range(4):
        cluster.submit_one(f"h{k}", priority="high")

    cluster.submit_one("a", owner="ann", reservation="x")

    assert cluster.nodes() == ["n0", "", "", "", "n1"]


def test_waiting_gang_inside_reserves_no_gpus_outside() -> None:
    cluster = Cluster(servers=[("v100", 2), ("v100", 1)], keep_unsaved=True)
    cluster.reserve("n0")
    cluster.submit_one("a", owner="ann", reservation="x")
    cluster.submit_one("gang", owner="ann", reservation="x", gpus=2)

    cluster.submit_one("b")

    assert cluster.nodes() == ["n0", "", "n1"]


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (ReservationAdded("y", ("n1", "n0"), 50.0, 60.0, "", ("bob",)), "n1 is in 'x' at that time"),
        (ReservationAdded("y", ("n0",), 50.0, 60.0, "", ("bob", "bob")), "must be names, each once"),
        (ReservationAdded("y", ("n0",), 50.0, 60.0, "", ("",)), "must be names, each once"),
    ],
    ids=["overlaps", "twice", "empty"],
)
def test_reservation_for_users_that_means_nothing_is_refused(event: ReservationAdded, complaint: str) -> None:
    cluster = Cluster()
    cluster.reserve("n1")

    with pytest.raises(InvalidInput, match=complaint):
        cluster.core.handle(event, 0.0)


def test_reservations_of_one_node_at_different_times_are_allowed() -> None:
    cluster = Cluster()
    cluster.reserve("n1", end_s=100.0)
    cluster.reserve("n1", begin_s=100.0, name="y", user="bob")
    cluster.submit_one("a", owner="ann", reservation="x")
    cluster.submit_one("b", owner="bob", reservation="y")
    first = cluster.nodes()

    cluster.wake(100.0)

    assert (first, cluster.nodes()) == (["n1", ""], ["", "n1"])


def test_a_restart_keeps_parts_users_and_the_next_begin() -> None:
    cluster = Cluster()
    cluster.reserve("n1")
    cluster.reserve("n0", begin_s=100.0, name="y")
    cluster.submit_one("a", owner="ann", reservation="x")
    cluster.submit_one("b", owner="ann", reservation="y")
    cluster.tell(JobSubmitted(make_spec("late")))

    again = restore(decode_state(encode_state(snapshot(cluster.core))))

    check(again)
    assert encode_state(snapshot(again)) == encode_state(snapshot(cluster.core))
    assert again.window_due_s == 100.0
    assert again.jobs.part[:3].tolist() == [1, -1, 0]


def test_begin_between_the_last_wakeup_and_a_restart_is_not_missed() -> None:
    cluster = Cluster()
    cluster.reserve("n1", begin_s=100.0)
    tell(cluster.core, JobSubmitted(make_spec("a")), 150.0)

    again = restore(snapshot(cluster.core))
    wake(again)

    assert again.pool.node_part == [0, 1]


def test_a_snapshot_of_version_8_has_maintenance_only() -> None:
    core = restore(decode_state(VERSION_8.read_bytes()))

    check(core)
    assert core.windows == {"disks": Window("disks", ("n1",), 0.0, HOUR_S, "new disks")}
    assert core.window_due_s == HOUR_S
    assert core.pool.node_part == [0, 0]
    assert core.jobs.part[:2].tolist() == [0, 0]


@pytest.mark.parametrize(
    "event",
    [ReservationAdded("x", ("n0",), 1.0, 2.0, "why", ("ann", "bob")), ReservationAdded("x", ("n0",), 1.0, 2.0)],
    ids=["users", "maintenance"],
)
def test_users_come_back_from_the_journal(event: ReservationAdded) -> None:
    assert vars(decode(encode(event, 0.0))[1]) == vars(event)
