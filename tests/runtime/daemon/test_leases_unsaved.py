"""Leases of jobs that report nothing, or declare that they save: what the core is told of them."""

from __future__ import annotations

from gavelpy.runtime.daemon.lease_values import Phase, Wish
from tests.runtime.daemon.table_builders import Bench, ended, names, part


def test_steps_that_were_counted_by_time_are_an_estimate_and_in_no_checkpoint() -> None:
    bench = Bench(("n0", 1))
    bench.submit("a", "b")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0, steps_saved=900.0, is_by_time=True))
    bench.wake(100.0)

    told = bench.say("n0", ended(0, 0, steps_saved=900.0, is_by_time=True))

    assert names(told) == ["LeaseEnded"]
    assert (bench.core.jobs.steps_saved[0], bench.core.jobs.saved_lease[0]) == (0.0, -1)


def test_a_program_that_declares_to_save_makes_its_job_preemptible_and_is_told_once() -> None:
    bench = Bench(("n0", 1), keep_unsaved=True)
    bench.submit("a", "b")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0, is_by_time=True))
    before = bench.core.kept.jobs.tolist()

    told = bench.say("n0", part(0, 0, saves_at_end=True))
    again = bench.say("n0", part(0, 0, saves_at_end=True))

    assert (before, bench.core.kept.jobs.tolist()) == ([0], [])
    assert (names(told), names(again)) == (["SavingDeclared"], [])


def test_a_job_that_never_saved_is_extended_while_another_waits() -> None:
    bench = Bench(("n0", 1), keep_unsaved=True)
    bench.submit("a", "b")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0, is_by_time=True))

    bench.wake(100.0)

    (order,) = bench.orders("n0")
    assert (order.lease, order.wish, order.until_s) == (0, Wish.RUN, 220.0)


def test_where_one_node_of_a_gang_reports_time_counts_on_none() -> None:
    bench = Bench(("n0", 1), ("n1", 1))
    bench.submit("gang", gpus=2)
    bench.wake()
    for phase in (Phase.PREPARED, Phase.RUNNING):
        for node in ("n0", "n1"):
            bench.orders(node)
            bench.say(node, part(0, 0, phase, is_by_time=True))
    bench.say("n0", part(0, 0, steps_saved=40.0))

    bench.say("n1", ended(0, 0, steps_saved=900.0, is_by_time=True))
    bench.say("n0", ended(0, 0, steps_saved=50.0))

    assert (bench.core.jobs.steps_saved[0], bench.core.jobs.saved_lease[0]) == (50.0, 0)
