"""Leases that start or end while storage hangs: neither waits longer than its limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gavelpy.runtime import lease_files
from gavelpy.runtime.agent.gpus import Gpus
from gavelpy.runtime.agent.leases import starter
from gavelpy.runtime.agent.leases.directory import LeaseDirectory
from gavelpy.runtime.agent.leases.environment import NodeEnvironment
from gavelpy.runtime.agent.leases.orders import LeaseOrder, OrderKind
from gavelpy.runtime.agent.leases.reconcile import WITHDRAWN, Accept, Action, LocalPhase, Withdraw
from gavelpy.runtime.agent.leases.registry import LeaseRegistry
from gavelpy.runtime.agent.leases.starter import Starter
from gavelpy.runtime.lease_files import Launch, LeaseOutcome, clock_s
from tests.runtime.agent.storage_that_hangs import Storage
from tests.runtime.agent.test_starting import make_assignment

JOB, LEASE = 5, 8
NEVER_S = 1e12


def starting(
    state: Path, act: Callable[[LeaseDirectory], None] = lambda _: None, action: Action | None = None
) -> LeaseDirectory:
    """A lease that is starting on hung storage, after `act` or an action of the registry has ended it."""

    async def run() -> LeaseDirectory:
        storage = Storage()
        storage.is_hung = True
        ended = asyncio.Event()
        starts = Starter(storage, ended.set)
        starts.environment = NodeEnvironment("n0", Gpus("v100", ("0",)), {}, state / "checkpoints", "127.0.0.1:9")
        registry = LeaseRegistry(state, starts.begin)
        assignment = make_assignment()
        order = LeaseOrder(LEASE, JOB, clock_s() + NEVER_S, OrderKind.RUN, assignment=assignment)
        registry.act(Accept(order, assignment, start=True), clock_s())
        [folder] = registry.folders
        await asyncio.sleep(0.05)
        assert folder.phase is LocalPhase.STARTING
        act(folder)
        if action is not None:
            registry.act(action, clock_s())
        async with asyncio.timeout(20.0):
            await ended.wait()
        starts.close()
        return folder

    return asyncio.run(run())


def test_lease_that_is_killed_while_storage_hangs_gives_its_gpus_back(tmp_path: Path) -> None:
    folder = starting(
        tmp_path,
        lambda one: one.amend(replace(one.orders, kill=True), clock_s()),
    )

    assert folder.end is not None
    assert (folder.end.outcome, folder.end.detail) == (LeaseOutcome.LOST, "it was killed before it had started")


def test_lease_that_is_withdrawn_while_storage_hangs_starts_nothing(tmp_path: Path) -> None:
    folder = starting(tmp_path, action=Withdraw(LEASE))

    assert folder.end is not None
    assert (folder.end.outcome, folder.end.detail) == (LeaseOutcome.STOPPED, WITHDRAWN)
    assert folder.launch is None


def test_lease_does_not_wait_for_storage_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter, "PREPARE_S", 0.2)

    folder = starting(tmp_path, lambda one: None)

    assert folder.end is not None
    assert (folder.end.outcome, folder.end.detail) == (
        LeaseOutcome.LOST,
        "storage did not answer within 0.2 s on node n0",
    )


@pytest.mark.parametrize(("is_hung", "steps"), [(True, 30.0), (False, 70.0)])
def test_end_waits_for_the_count_of_checkpoints_at_most_for_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_hung: bool, steps: float
) -> None:
    """The job's next lease finds a checkpoint that was not counted."""
    monkeypatch.setattr(starter, "COUNT_S", 0.2 if is_hung else 60.0)
    own = tmp_path / "own"
    (own / lease_files.step_name(70)).mkdir(parents=True)

    async def run() -> LeaseDirectory:
        storage = Storage()
        storage.is_hung = is_hung
        counted = asyncio.Event()
        counting = Starter(storage, counted.set)
        registry = LeaseRegistry(tmp_path, lambda folder: None, counting.count)
        assignment = make_assignment(steps_done=30.0)
        registry.act(
            Accept(LeaseOrder(LEASE, JOB, NEVER_S, OrderKind.PREPARE, assignment=assignment), assignment, start=False),
            1.0,
        )
        [folder] = registry.folders
        environment = {lease_files.CHECKPOINT_DIRECTORY_VARIABLE: str(own)}
        folder.launch = Launch(LEASE, JOB, ("true",), "/", environment, ({},), steps_done=30.0)
        folder.conclude(LeaseOutcome.LOST, "its shim vanished", 2.0)
        assert folder.end is None
        assert folder.phase is LocalPhase.STOPPING
        async with asyncio.timeout(60.0):
            await counted.wait()
        storage.close()
        return folder

    folder = asyncio.run(run())

    assert folder.phase is LocalPhase.ENDED
    assert folder.progress.steps_saved == steps
