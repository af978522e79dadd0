"""Under random faults every acknowledged job finishes exactly once, and no invariant is violated.

The episodes run in virtual time, see `faults`. A failure names the seed of its episode; `python -m
tests.mechanism.faults SEED 1` repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from gavelpy.journal.codec import decode
from gavelpy.mechanism import domains, nodes
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import NodeLost, NodeUnhealthy, NodeUnreachable
from gavelpy.mechanism.jobs import JobTable
from gavelpy.model.arrays import Ints
from gavelpy.runtime.daemon.leases.lease import Lease
from gavelpy.runtime.daemon.leases.table import LeaseTable
from gavelpy.runtime.daemon.nodes.quorum_views import QuorumViews
from tests.conftest import first_fast
from tests.mechanism.faults.troubles import Hostility
from tests.mechanism.faults.world import JOBS, World
from tests.mechanism.test_priority_order import random_classes

SEEDS = range(8)
FAULTS = 500
RESERVING = Hostility(reserve=0.06, unreserve=0.01)
CALM = Hostility(**dict.fromkeys(vars(Hostility()), 0.0))
APART_S = 110.0
HANG_S = 60.0
LONG = (2_000, 4_000)  # steps of a job


@pytest.mark.parametrize("seed", first_fast(SEEDS[:2], 1))  # test_faults_long.py has 1,000,000 faults more
def test_everything_breaks_and_every_job_finishes_once(seed: int) -> None:
    episode = World(seed, FAULTS).run()

    assert episode.faults >= FAULTS
    assert episode.finished > 0


@pytest.mark.parametrize("seed", first_fast([100, 101], 1))
def test_every_job_finishes_once_where_jobs_that_never_saved_keep_their_gpus(seed: int) -> None:
    episode = World(seed, FAULTS // 2, keep_unsaved=True).run()

    assert episode.finished > 0


@pytest.mark.parametrize("seed", first_fast([201, 200], 1))  # without and with keep_unsaved
def test_every_job_finishes_once_where_classes_preempt_each_other(seed: int) -> None:
    classes = random_classes(Random(seed))

    episode = World(seed, FAULTS // 2, keep_unsaved=seed % 2 == 0, classes=classes).run()

    assert episode.finished > 0


@pytest.mark.parametrize("seed", first_fast([300, 301], 1))  # with classes and keep_unsaved, and without both
def test_every_job_finishes_once_or_reaches_its_limit_where_nodes_are_reserved(seed: int) -> None:
    classes = random_classes(Random(seed)) if seed % 3 == 0 else ()

    episode = World(seed, FAULTS // 2, RESERVING, keep_unsaved=seed % 2 == 0, classes=classes).run()

    assert episode.finished > 0


def test_an_episode_is_the_same_again() -> None:
    assert World(3, 100).run() == World(3, 100).run()


def forget_where_checkpoints_are(patch: pytest.MonkeyPatch) -> None:
    def nowhere(jobs: JobTable, rows: Ints) -> Ints:
        return np.full(len(rows), domains.NOT_PINNED)

    patch.setattr(domains, "pinned_directory", nowhere)


def use_leases_again(patch: pytest.MonkeyPatch) -> None:
    restarted = nodes.restarted

    def forgetful(core: SchedulerCore, incarnation: int) -> object:
        core.leases.next_lease = max(0, core.leases.next_lease - 3)
        return restarted(core, incarnation)

    patch.setattr(nodes, "restarted", forgetful)


def resume_from_the_lease_before(patch: pytest.MonkeyPatch) -> None:
    release = LeaseTable._release

    def behind(table: LeaseTable, lease: Lease) -> None:
        release(table, lease)
        lease.resume_lease = max(-1, lease.resume_lease - 1)

    patch.setattr(LeaseTable, "_release", behind)


def believe_that_leases_end_as_ordered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QuorumViews, "runs_until_s", lambda _, node_id, promised_s, *times: promised_s)


@pytest.mark.parametrize(
    "harm",
    [forget_where_checkpoints_are, use_leases_again, resume_from_the_lease_before],
)
def test_a_defect_is_noticed(harm: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    harm(monkeypatch)

    with pytest.raises(AssertionError, match=r"seed \d+ at"):
        run_all(*SEEDS)


def test_most_nodes_without_the_scheduler_run_on_and_nothing_runs_twice() -> None:
    world = World(6, 1, CALM, LONG)

    ran = run_apart(world)

    assert ran > 2  # their leases would have ended long ago


def test_a_scheduler_that_starts_what_agents_extend_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    believe_that_leases_end_as_ordered(monkeypatch)

    with pytest.raises(AssertionError, match="still runs"):
        run_apart(World(15, 1, CALM, LONG))


def test_a_directory_that_hangs_touches_no_job_that_does_not_use_it() -> None:
    """The directory hangs on all machines, for longer than a round and the silence limit; half of the jobs use it."""
    world = World(6, 0, CALM, (600, 900), keep_unsaved=True)
    world.truth.plain = set(range(0, JOBS, 2))
    world.advance(40.0)
    jobs, heard = world.service.core.jobs, len(world.service.journal)
    before = {job: int(jobs.lease[job]) for job in jobs.leased.tolist() if job in world.truth.plain}

    world.troubles.hang(list(world.machines.values()), HANG_S)
    world.advance(HANG_S)
    during = {job: int(jobs.lease[job]) for job in before}
    events = [decode(record)[1] for record in world.service.journal[heard:]]
    episode = world.run()

    assert during == before
    assert before
    assert not [event for event in events if isinstance(event, NodeUnreachable | NodeLost)]
    assert [event for event in events if isinstance(event, NodeUnhealthy)]
    assert episode.finished == JOBS


def run_apart(world: World) -> int:
    """Parts the scheduler and one node from the other nodes; returns how many leases still run there after a while."""
    assert world.service.settings.orphan_max_s > APART_S
    assert not world.truth.is_fencing
    world.advance(80.0)
    others = ["n1", "n2", "n3", "n4"]
    for name in others:
        world.cut_until_s[name] = world.parted_until_s[frozenset(("n0", name))] = world.now_s + APART_S
    world.advance(APART_S - 5.0)
    return sum(len(world.machines[name].copies) for name in others)


def run_all(*seeds: int) -> int:
    """Number of faults in these episodes."""
    return sum(World(seed, FAULTS).run().faults for seed in seeds)
