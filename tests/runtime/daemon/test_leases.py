"""The lease table: parts of gangs, leases that wait for others, and when a lease is certainly over."""

from __future__ import annotations

from gavelpy.mechanism.events import (
    CheckpointSaved,
    JobAnnotated,
    JobCancelled,
    LeaseEnded,
    NodeLost,
    NodeUnreachable,
    Outcome,
)
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.leases.lease import Phase, Wish
from tests.runtime.daemon.table_builders import PATIENCE, Bench, ended, names, part


def test_granted_lease_is_ordered_with_all_it_takes_to_start() -> None:
    bench = Bench(("n0", 2))
    bench.submit("a")

    bench.wake()

    (order,) = bench.orders("n0")
    assert (order.lease, order.job, order.wish) == (0, 0, Wish.RUN)
    assert order.until_s == 100.0 + PATIENCE.overlap_s
    assert order.start is not None
    assert (order.start.gpus, order.start.gpu_type, order.start.world_size) == ((0,), "v100", 1)
    assert (order.start.resume_lease, order.start.resume_steps) == (-1, 0.0)


def test_what_a_node_has_started_is_not_launched_again() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()
    bench.orders("n0")

    told = bench.say("n0", part(0, 0))

    assert names(told) == ["LeaseStarted"]
    assert bench.orders("n0")[0].start is None


def test_a_report_that_comes_twice_makes_one_event() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0, steps_saved=50.0))

    told = bench.say("n0", part(0, 0, steps_saved=50.0))

    assert told == []


def test_a_lease_that_stays_is_extended_in_time() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0))

    bench.wake(100.0)

    assert bench.orders("n0")[0].until_s == 200.0 + PATIENCE.overlap_s
    assert NodeId("n0") in bench.table.changed


def test_a_new_lease_on_the_same_gpu_is_held_back_until_the_old_one_has_ended() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a", "b")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0))
    bench.wake(100.0)

    before = bench.wishes("n0")
    bench.say("n0", ended(0, 0, steps_saved=900.0))
    after = bench.wishes("n0")

    assert before == {0: Wish.STOP}
    assert after == {1: Wish.RUN}


def test_a_job_resumes_where_its_last_lease_saved_it() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a", "b")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0))
    bench.wake(100.0)
    bench.say("n0", ended(0, 0, steps_saved=900.0))
    bench.orders("n0")
    bench.say("n0", ended(0, 0), part(1, 1))
    bench.wake(200.0)
    bench.orders("n0")
    bench.say("n0", ended(1, 1, steps_saved=700.0))

    (order,) = bench.orders("n0")

    assert order.job == 0
    assert order.start is not None
    assert (order.start.resume_lease, order.start.resume_steps) == (0, 900.0)


def test_a_checkpoint_before_the_end_is_named_also_where_the_end_has_nothing_new() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a", "b")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0, is_by_time=True))
    bench.say("n0", part(0, 0, steps_saved=500.0))
    bench.wake(100.0)

    told = bench.say("n0", ended(0, 0, steps_saved=900.0))

    assert names(told) == ["CheckpointSaved", "LeaseEnded"]
    assert (bench.core.jobs.steps_saved[0], bench.core.jobs.saved_lease[0]) == (900.0, 0)


def test_an_ended_lease_is_forgotten_once_its_end_is_journaled() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()
    bench.orders("n0")
    bench.table.reported(NodeId("n0"), [ended(0, 0, Outcome.FINISHED)], 5.0)
    before = list(bench.table.forgotten(NodeId("n0")))

    bench.settle()
    bench.say("n0", ended(0, 0, Outcome.FINISHED))

    assert before == []
    assert list(bench.table.forgotten(NodeId("n0"))) == [0]
    assert bench.core.jobs.state[0] == JobState.FINISHED


def test_a_gang_is_prepared_everywhere_before_it_runs_anywhere() -> None:
    bench = Bench(("n0", 1), ("n1", 1))
    bench.submit("a", gpus=2)
    bench.wake()
    first = bench.wishes("n0"), bench.wishes("n1")

    bench.say("n1", part(0, 0, Phase.PREPARED))
    half = bench.wishes("n0"), bench.wishes("n1")
    bench.say("n0", part(0, 0, Phase.PREPARED, rendezvous_port=4711))
    whole = bench.wishes("n0"), bench.wishes("n1")

    assert first == half == ({0: Wish.PREPARE}, {0: Wish.PREPARE})
    assert whole == ({0: Wish.RUN}, {0: Wish.RUN})
    starts = [bench.orders(node)[0].start for node in ("n0", "n1")]
    assert [start and (start.node_rank, start.first_rank, start.rendezvous_port) for start in starts] == [
        (0, 0, 4711),
        (1, 1, 4711),
    ]


def test_a_gang_has_started_when_all_its_parts_run_and_ended_when_all_have_ended() -> None:
    bench = Bench(("n0", 1), ("n1", 1))
    bench.submit("a", gpus=2)
    bench.wake()
    bench.orders("n0"), bench.orders("n1")

    one_runs = bench.say("n0", part(0, 0))
    both_run = bench.say("n1", part(0, 0))
    one_ended = bench.say("n0", ended(0, 0, Outcome.FINISHED))
    both_ended = bench.say("n1", ended(0, 0, Outcome.FINISHED))

    assert (names(one_runs), names(both_run)) == ([], ["LeaseStarted"])
    assert (names(one_ended), names(both_ended)) == ([], ["LeaseEnded"])


def test_the_rest_of_a_gang_is_killed_when_a_part_fails() -> None:
    bench = Bench(("n0", 1), ("n1", 1))
    bench.submit("a", gpus=2)
    bench.wake()
    bench.orders("n0"), bench.orders("n1")
    bench.say("n0", part(0, 0)), bench.say("n1", part(0, 0))

    bench.say("n0", ended(0, 0, Outcome.FAILED, exit_code=3, detail="it broke"))
    wishes = bench.wishes("n1")
    told = bench.say("n1", ended(0, 0, Outcome.STOPPED))

    assert wishes == {0: Wish.KILL}
    note, end = told
    assert isinstance(note, JobAnnotated)
    assert note.text == "it broke (exit code 3 on n0)"
    assert isinstance(end, LeaseEnded)
    assert end.outcome is Outcome.FAILED


def test_a_part_that_does_not_follow_a_finished_one_is_stopped_after_the_grace() -> None:
    bench = Bench(("n0", 1), ("n1", 1))
    bench.submit("a", gpus=2)
    bench.wake()
    bench.orders("n0"), bench.orders("n1")
    bench.say("n0", part(0, 0)), bench.say("n1", part(0, 0))
    bench.say("n0", ended(0, 0, Outcome.FINISHED))

    bench.table.expire(PATIENCE.grace_s - 0.1, ())
    within = bench.wishes("n1")
    bench.table.expire(PATIENCE.grace_s, ())

    assert within == {0: Wish.RUN}
    assert bench.wishes("n1") == {0: Wish.STOP}


def test_a_checkpoint_counts_although_its_lease_fails_later() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0))

    told = bench.say("n0", ended(0, 0, Outcome.FAILED, steps_done=80.0, steps_saved=60.0))

    saved = told[0]
    assert isinstance(saved, CheckpointSaved)
    assert saved.steps_done.tolist() == [60.0]
    assert bench.core.jobs.steps_saved[0] == 60.0


def test_trouble_of_a_running_lease_is_noted_once() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0))

    first, *later = [bench.say("n0", part(0, 0, detail=detail)) for detail in ("a failed", "a failed", "b failed")]

    (note,) = first
    assert isinstance(note, JobAnnotated)
    assert (note.job, note.lease, note.text) == (0, 0, "a failed")
    assert later == [[], []]


def test_what_a_killed_lease_saves_does_not_count() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0))
    bench.tell(JobCancelled(0))

    told = bench.say("n0", part(0, 0, steps_saved=60.0))

    assert told == []
    assert bench.wishes("n0") == {0: Wish.KILL}


def test_a_lease_that_no_node_knows_of_ends_by_being_called_off() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()  # the grant has not been sent yet

    bench.tell(JobCancelled(0))
    told = bench.settle()

    assert names(told) == ["LeaseEnded"]
    assert bench.orders("n0") == []
    assert bench.table.leases == {}


def test_a_lease_on_an_unreachable_node_is_over_after_its_time_grace_and_margin() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0))
    bench.tell(NodeUnreachable(NodeId("n0")))
    over_s = 100.0 + PATIENCE.overlap_s + PATIENCE.grace_s + PATIENCE.margin_s

    bench.table.expire(over_s - 0.1, {NodeId("n0")})
    early = bench.settle()
    bench.table.expire(over_s, {NodeId("n0")})
    bench.now_s = over_s
    late = bench.settle()

    assert early == []
    assert names(late) == ["JobAnnotated", "LeaseEnded"]


def test_a_lease_on_a_node_that_is_heard_does_not_expire() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()
    bench.orders("n0")

    bench.table.expire(1e6, ())

    assert bench.settle() == []


def test_the_job_of_an_unreachable_node_waits_until_its_old_lease_is_surely_over() -> None:
    bench = Bench(("n0", 1), ("n1", 1))
    bench.submit("a")
    bench.wake()
    here, there = ("n0", "n1") if bench.orders("n0") else ("n1", "n0")
    bench.say(here, part(0, 0))
    bench.tell(NodeUnreachable(NodeId(here)))
    bench.wake(100.0)

    before = bench.wishes(there)
    bench.now_s = 200.0
    bench.table.expire(200.0, {NodeId(here)})
    bench.settle()
    bench.wake()

    assert before == {}
    assert list(bench.wishes(there).values()) == [Wish.RUN]


def test_the_leases_of_a_lost_node_are_lost_and_its_jobs_go_elsewhere_at_once() -> None:
    bench = Bench(("n0", 1), ("n1", 1))
    bench.submit("a")
    bench.wake()
    here, there = ("n0", "n1") if bench.orders("n0") else ("n1", "n0")
    bench.say(here, part(0, 0))

    bench.tell(NodeLost(NodeId(here)))
    bench.table.lost(NodeId(here), 5.0, "it burned")
    bench.settle()
    bench.wake()

    assert list(bench.wishes(there).values()) == [Wish.RUN]


def test_what_a_machine_that_has_booted_does_not_report_is_lost() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0))

    told = bench.say("n0", is_confirmed_dead=True)

    end = told[-1]
    assert isinstance(end, LeaseEnded)
    assert end.outcome is Outcome.LOST


def test_a_lease_that_a_node_has_forgotten_is_killed_there_rather_than_believed_gone() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0))

    told = bench.say("n0")

    assert told == []
    assert bench.wishes("n0") == {0: Wish.KILL}


def test_strangers_reports_change_nothing() -> None:
    bench = Bench(("n0", 1), ("n1", 1))
    bench.submit("a")
    bench.wake()
    here, there = ("n0", "n1") if bench.orders("n0") else ("n1", "n0")
    bench.say(here, part(0, 0))

    wrong_node = bench.say(there, ended(0, 0, Outcome.FINISHED))
    wrong_job = bench.say(here, part(0, 0), part(7, 3))

    assert wrong_node == wrong_job == []
    assert bench.core.jobs.state[0] == JobState.RUNNING


def test_ends_of_one_kind_are_one_event_in_the_order_of_kinds() -> None:
    bench = Bench(("n0", 4))
    bench.submit("a", "b", "c", "d")
    bench.wake()
    bench.orders("n0")
    outcomes = (Outcome.LOST, Outcome.STOPPED, Outcome.FINISHED, Outcome.STOPPED)

    told = bench.say("n0", *[ended(k, k, outcome, is_by_time=k == 1) for k, outcome in enumerate(outcomes)])

    ends = [(end.outcome, end.is_by_time, end.jobs.tolist()) for end in told if isinstance(end, LeaseEnded)]
    assert ends == [
        (Outcome.FINISHED, False, [2]),
        (Outcome.STOPPED, False, [3]),
        (Outcome.STOPPED, True, [1]),
        (Outcome.LOST, False, [0]),
    ]
