"""Jobs that have done their last step, as the lease table reports them to the core."""

from __future__ import annotations

from gavelpy.mechanism.events import Outcome
from gavelpy.runtime.daemon.leases.lease import Phase, Wish
from tests.runtime.daemon.table_builders import PATIENCE, Bench, ended, names, part


def test_the_last_step_is_one_event_when_all_parts_have_reported_it() -> None:
    bench = Bench(("n0", 1), ("n1", 1), finish_grace_s=600.0)
    bench.submit("gang", gpus=2)
    bench.wake()
    for phase in (Phase.PREPARED, Phase.RUNNING):
        bench.orders("n0"), bench.orders("n1")
        bench.say("n0", part(0, 0, phase, rendezvous_port=1)), bench.say("n1", part(0, 0, phase))

    first = bench.say("n0", part(0, 0, is_done=True))
    second = bench.say("n1", part(0, 0, is_done=True))
    again = bench.say("n1", part(0, 0, is_done=True))

    assert (names(first), names(second), names(again)) == ([], ["LastStepReported"], [])


def test_parts_that_follow_a_finished_one_have_the_time_of_finishing_jobs() -> None:
    bench = Bench(("n0", 1), ("n1", 1), finish_grace_s=600.0)
    bench.submit("gang", gpus=2)
    bench.wake()
    for phase in (Phase.PREPARED, Phase.RUNNING):
        bench.orders("n0"), bench.orders("n1")
        bench.say("n0", part(0, 0, phase, rendezvous_port=1)), bench.say("n1", part(0, 0, phase))
    bench.say("n0", ended(0, 0, Outcome.FINISHED))

    bench.table.expire(PATIENCE.grace_s + 1.0, ())
    before = bench.wishes("n1")
    bench.table.expire(600.0, ())

    assert (before, bench.wishes("n1")) == ({0: Wish.RUN}, {0: Wish.STOP})
