"""Leases of jobs that report nothing, or declare that they save: what the table reports to the core."""

from __future__ import annotations

from gavelpy.runtime.daemon.leases.lease import Phase, Wish
from gavelpy.runtime.daemon.leases.table import LeaseTable
from tests.runtime.daemon.table_builders import PATIENCE, Bench, ended, names, part


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


def test_a_program_that_declares_to_save_makes_its_job_preemptible_with_one_event() -> None:
    bench = Bench(("n0", 1), keep_unsaved=True)
    bench.submit("a", "b")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0, is_by_time=True))
    before = bench.core.exempt.jobs.tolist()

    told = bench.say("n0", part(0, 0, saves_at_end=True))
    again = bench.say("n0", part(0, 0, saves_at_end=True))

    assert (before, bench.core.exempt.jobs.tolist()) == ([0], [])
    assert (names(told), names(again)) == (["SavingDeclared"], [])


def test_a_job_that_never_saved_is_extended_while_another_waits() -> None:
    bench = Bench(("n0", 1), keep_unsaved=True)
    bench.submit("a", "b")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0, is_by_time=True))

    bench.wake(100.0)

    (order,) = bench.orders("n0")
    assert (order.lease, order.wish, order.until_s) == (0, Wish.RUN, 500.0)


def test_the_lease_of_a_job_that_never_saved_lasts_longer_beyond_its_round() -> None:
    """While its agent is down the lease is not extended; until it ends, its job starts nowhere else."""
    bench = Bench(("n0", 1), keep_unsaved=True)
    bench.submit("a")
    bench.wake()
    (granted,) = bench.orders("n0")
    bench.say("n0", part(0, 0, is_by_time=True))

    bench.table.expire(100.0 + 300.0 + 10.0 + 5.0 - 0.1, ["n0"])
    early = bench.settle()
    bench.table.expire(100.0 + 300.0 + 10.0 + 5.0, ["n0"])

    assert granted.until_s == 400.0
    assert early == []
    assert names(bench.settle())[-1:] == ["LeaseEnded"]


def test_a_job_that_saves_has_leases_with_the_short_overlap() -> None:
    bench = Bench(("n0", 1), keep_unsaved=True)
    bench.submit("a")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0, steps_saved=10.0))

    bench.wake(100.0)

    (order,) = bench.orders("n0")
    assert order.until_s == 220.0


def test_a_restarted_scheduler_allows_for_a_lease_that_was_ordered_before_its_job_saved() -> None:
    bench = Bench(("n0", 1), keep_unsaved=True)
    bench.submit("a")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0, steps_saved=10.0))

    bench.table = LeaseTable(bench.core, PATIENCE)
    bench.table.rebuild()

    bench.table.expire(414.9, ["n0"])
    assert bench.settle() == []
    bench.table.expire(415.0, ["n0"])
    assert names(bench.settle())[-1:] == ["LeaseEnded"]


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
