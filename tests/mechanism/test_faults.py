"""Whatever breaks, every acknowledged job finishes exactly once, and no promise is broken on the way.

In virtual time, see `faults`. A failure names the seed of its episode; `python -m tests.mechanism.faults SEED 1` runs
it again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gavelpy.mechanism import lots
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.model.arrays import Ints
from gavelpy.runtime.daemon.lease_values import Lease
from gavelpy.runtime.daemon.leases import LeaseTable
from tests.mechanism.faults.world import World

SEEDS = range(8)
FAULTS = 500


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_breaks_and_every_job_finishes_once(seed: int) -> None:
    episode = World(seed, FAULTS).run()

    assert episode.faults >= FAULTS
    assert episode.finished > 0


def test_an_episode_is_the_same_again() -> None:
    assert World(3, 100).run() == World(3, 100).run()


def forget_where_checkpoints_are(patch: pytest.MonkeyPatch) -> None:
    def nowhere(jobs: JobTable, pool: GpuPool, rows: Ints) -> Ints:
        return np.full(len(rows), lots.NOT_BOUND)

    patch.setattr(lots, "bound", nowhere)


def use_leases_again(patch: pytest.MonkeyPatch) -> None:
    restarted = SchedulerCore._restarted

    def forgetful(core: SchedulerCore, incarnation: int) -> object:
        core.leases.next_lease = max(0, core.leases.next_lease - 3)
        return restarted(core, incarnation)

    patch.setattr(SchedulerCore, "_restarted", forgetful)


def resume_from_the_lease_before(patch: pytest.MonkeyPatch) -> None:
    release = LeaseTable._release

    def behind(table: LeaseTable, lease: Lease) -> None:
        release(table, lease)
        lease.resume_lease = max(-1, lease.resume_lease - 1)

    patch.setattr(LeaseTable, "_release", behind)


@pytest.mark.parametrize("harm", [forget_where_checkpoints_are, use_leases_again, resume_from_the_lease_before])
def test_a_defect_is_noticed(harm: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    harm(monkeypatch)

    with pytest.raises(AssertionError, match=r"seed \d+ at"):
        run_all(*SEEDS)


def run_all(*seeds: int) -> int:
    """Faults of these episodes."""
    return sum(World(seed, FAULTS).run().faults for seed in seeds)
