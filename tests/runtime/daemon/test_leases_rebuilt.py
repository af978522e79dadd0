"""Leases that a restarted scheduler must treat as possibly running, because it does not know their state."""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism.events import LeaseEnded
from gavelpy.runtime.daemon.leases.lease import Phase, Wish
from gavelpy.runtime.daemon.leases.table import LeaseTable
from tests.runtime.daemon.table_builders import PATIENCE, Bench, ended, part


def restarted_bench() -> Bench:
    """A gang (lease 0) is being stopped and has ended on n0, not on n1; lease 1 was sent to n0; then a restart."""
    bench = Bench(("n0", 1), ("n1", 1))
    bench.submit("gang", gpus=2)
    bench.wake()
    bench.orders("n0"), bench.orders("n1")
    bench.say("n0", part(0, 0, Phase.PREPARED, rendezvous_port=1)), bench.say("n1", part(0, 0, Phase.PREPARED))
    bench.say("n0", part(0, 0)), bench.say("n1", part(0, 0))
    bench.submit("single")
    bench.core.jobs.target[0], bench.core.jobs.target[1] = 0.0, 1.0
    bench.core.jobs.lists.reset()
    bench.core.question.stale = False
    bench.wake(100.0)
    bench.say("n0", ended(0, 0))
    assert bench.wishes("n0") == {1: Wish.RUN}
    bench.table = LeaseTable(bench.core, PATIENCE)
    bench.table.rebuild()
    return bench


def test_a_lease_that_may_have_gone_out_before_a_restart_is_not_over_when_it_is_called_off() -> None:
    bench = restarted_bench()

    bench.table.kill(1)

    assert bench.settle() == []
    assert bench.wishes("n0") == {0: Wish.STOP, 1: Wish.KILL}


def test_a_lease_that_was_called_off_after_a_restart_ends_by_the_word_of_its_node() -> None:
    bench = restarted_bench()
    bench.table.kill(1)

    told = bench.say("n0", ended(0, 0), ended(1, 1))

    ends = [event for event in told if isinstance(event, LeaseEnded)]
    assert np.concatenate([end.leases for end in ends]).tolist() == [1]


def test_a_lease_that_runs_since_before_a_restart_continues() -> None:
    bench = restarted_bench()

    bench.say("n0", part(1, 1), ended(0, 0))

    assert bench.wishes("n0") == {1: Wish.RUN}
