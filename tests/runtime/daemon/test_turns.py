"""What starts and stops of leases cost, as measured from the reports of nodes."""

from __future__ import annotations

from gavelpy.mechanism.events import Event, TurnMeasured
from gavelpy.runtime.daemon.leases.lease import Phase
from tests.runtime.daemon.table_builders import Bench, ended, part


def times(events: list[Event]) -> list[tuple[list[float], list[float]]]:
    return [(one.restart_s.tolist(), one.save_s.tolist()) for one in events if isinstance(one, TurnMeasured)]


def bench_at(now_s: float, bench: Bench) -> Bench:
    bench.now_s = now_s
    return bench


def started() -> Bench:
    """A job of which processes run since 2 s."""
    bench = Bench(("n0", 1))
    bench.submit("a", preemptible=True)
    bench.wake()
    bench.orders("n0")
    bench_at(1.0, bench).say("n0", part(0, 0, Phase.STARTING))
    bench_at(2.0, bench).say("n0", part(0, 0))
    return bench


def test_start_lasts_until_the_first_step_and_is_journaled_once() -> None:
    bench = started()

    none = bench_at(20.0, bench).say("n0", part(0, 0))
    first = bench_at(42.0, bench).say("n0", part(0, 0, steps_done=3.0))
    later = bench_at(50.0, bench).say("n0", part(0, 0, steps_done=90.0))

    assert [times(each) for each in (none, first, later)] == [[], [([40.0], [0.0])], []]
    assert bench.core.jobs.restart_s[0] == 40.0


def test_stop_lasts_from_the_order_to_the_end() -> None:
    bench = started()
    bench.submit("b")
    bench.wake(200.0)  # b is new: it gets the GPU at the end of the round
    bench.wake(300.0)

    events = bench_at(312.5, bench).say("n0", ended(0, 0))

    assert times(events) == [([0.0], [12.5])]
    assert bench.core.jobs.save_s[0] == 12.5


def test_a_job_that_reports_no_steps_has_no_measured_start() -> None:
    bench = started()

    events = bench_at(42.0, bench).say("n0", part(0, 0, steps_done=400.0, is_by_time=True))

    assert times(events) == []


def test_a_start_that_takes_about_as_long_as_known_is_not_journaled_again() -> None:
    bench = started()
    bench.core.jobs.restart_s[0] = 38.0

    events = bench_at(42.0, bench).say("n0", part(0, 0, steps_done=3.0))

    assert times(events) == []
