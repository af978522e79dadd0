"""Numbers of steps that programs announce, as the lease table reports them to the core."""

from __future__ import annotations

from gavelpy.mechanism.events import Outcome, TotalAnnounced
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.runtime.daemon.leases.lease import Phase
from tests.runtime.daemon.table_builders import Bench, ended, names, part


def running(**options: object) -> Bench:
    """A job that runs alone."""
    bench = Bench(("n0", 1))
    bench.submit("a", **options)
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0))
    return bench


def test_number_is_announced_once_and_again_when_it_changes() -> None:
    bench = running(open_ended=True)

    events = [bench.say("n0", part(0, 0, steps_total=total)) for total in (0.0, 50.0, 50.0, 80.0, 60.0)]

    expected = [[], ["TotalAnnounced"], [], ["TotalAnnounced"], ["TotalAnnounced"]]
    assert [names(found) for found in events] == expected
    assert bench.core.jobs.steps_total[0] == 60.0


def test_number_as_submitted_is_no_news() -> None:
    bench = running()

    assert names(bench.say("n0", part(0, 0, steps_total=1e6))) == []
    assert names(bench.say("n0", part(0, 0, steps_total=400.0))) == ["TotalAnnounced"]


def test_gang_announces_the_least_of_its_nodes_when_all_have_announced() -> None:
    bench = Bench(("n0", 1), ("n1", 1))
    bench.submit("gang", gpus=2, open_ended=True)
    bench.wake()
    for phase in (Phase.PREPARED, Phase.RUNNING):
        bench.orders("n0"), bench.orders("n1")
        bench.say("n0", part(0, 0, phase, rendezvous_port=1)), bench.say("n1", part(0, 0, phase))

    first = bench.say("n0", part(0, 0, steps_total=50.0))
    (event,) = bench.say("n1", part(0, 0, steps_total=48.0))

    assert names(first) == []
    assert isinstance(event, TotalAnnounced)
    assert event.steps_total.tolist() == [48.0]


def test_finished_job_of_unknown_length_has_the_steps_of_its_end() -> None:
    bench = running(open_ended=True)

    bench.say("n0", ended(0, 0, Outcome.FINISHED, steps_done=123.0))

    assert bench.core.jobs.state[0] == JobState.FINISHED
    assert bench.core.jobs.steps_total[0] == bench.core.jobs.steps_done[0] == 123.0


def test_finished_job_of_submitted_length_has_all_of_its_steps() -> None:
    bench = running()

    bench.say("n0", ended(0, 0, Outcome.FINISHED, steps_done=123.0))

    assert bench.core.jobs.steps_total[0] == bench.core.jobs.steps_done[0] == 1e6


def test_report_corrects_an_estimate_by_time() -> None:
    bench = running(open_ended=True)
    bench.say("n0", part(0, 0, steps_done=600.0, is_by_time=True))

    bench.say("n0", part(0, 0, steps_done=5.0, steps_total=50.0))
    bench.tell(*bench.table.progress())

    assert (bench.core.jobs.steps_done[0], bench.core.jobs.steps_total[0]) == (5.0, 50.0)
