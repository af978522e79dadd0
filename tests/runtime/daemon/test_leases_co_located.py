"""Leases of co-located jobs: two on the same GPUs start at once, and a third waits for one of them to end."""

from __future__ import annotations

from gavelpy.mechanism.events import JobCancelled
from gavelpy.runtime.daemon.leases.lease import Wish
from tests.runtime.daemon.table_builders import Bench, ended, names, part


def shared() -> Bench:
    """Jobs 0 and 1 run on the same GPU."""
    bench = Bench(("n0", 1), packing=True)
    bench.together = (0, 1)
    bench.submit("a", "b")
    bench.wake()
    bench.orders("n0")
    bench.say("n0", part(0, 0), part(1, 1))
    return bench


def test_both_leases_of_a_pair_are_ordered_at_once_and_name_each_other() -> None:
    bench = Bench(("n0", 1), packing=True)
    bench.together = (0, 1)
    bench.submit("a", "b")

    bench.wake()

    orders = bench.orders("n0")
    assert [(one.job, one.start and one.start.gpus, one.start and one.start.beside_job) for one in orders] == [
        (0, (0,), 1),
        (1, (0,), 0),
    ]


def test_gpu_memory_is_journaled_when_it_grows_notably() -> None:
    bench = shared()

    used = (0.0, 4.0, 4.1, 3.0, 5.0)
    events = [bench.say("n0", part(0, 0, gpu_memory_gib=gib), part(1, 1)) for gib in used]

    assert [names(found) for found in events] == [[], ["GpuMemoryMeasured"], [], [], ["GpuMemoryMeasured"]]
    assert bench.core.jobs.measured_gib == {0: 5.0}


def test_a_new_partner_waits_until_the_former_one_has_ended() -> None:
    bench = shared()
    bench.submit("c")
    bench.together = (0, 2)
    bench.tell(JobCancelled(1))
    bench.wake(100.0)

    before = [(one.job, one.wish) for one in bench.orders("n0")]
    bench.say("n0", part(0, 0), ended(1, 1))
    bench.wake(101.0)
    after = {one.job: one for one in bench.orders("n0")}

    assert (1, Wish.KILL) in before or (1, Wish.STOP) in before
    assert 2 not in [job for job, _ in before]
    start = after[2].start
    assert start is not None
    assert start.beside_job == 0
    assert set(after) == {0, 2}, "the job that stays is not touched"
    assert after[0].wish is Wish.RUN
