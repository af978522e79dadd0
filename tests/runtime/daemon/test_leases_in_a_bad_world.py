"""The lease table under every fault of nodes and messages: no job or GPU is used twice, and all jobs finish."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gavelpy.mechanism.lifecycle import JobState
from tests.conftest import costly
from tests.runtime.daemon.table_world import World

STEPS = 120
CALM_STEPS = 3_000


@costly(8)  # each runs thousands of steps
@given(st.integers(0, 2**32))
def test_nothing_runs_twice_and_everything_finishes(seed: int) -> None:
    world = World(seed)

    troubled(world, STEPS)
    calm(world)

    jobs = world.bench.core.jobs
    assert set(jobs.state[: jobs.count].tolist()) == {JobState.FINISHED}
    assert all(not node.running() for node in world.nodes.values())


def troubled(world: World, steps: int) -> None:
    for _ in range(steps):
        world.step()


def calm(world: World) -> None:
    """Reconnects all nodes and advances time until all jobs are over."""
    for node in world.nodes.values():
        node.is_mute = False
    for _ in range(CALM_STEPS):
        if world.is_done and not world.bench.table.leases:
            return
        world.step(calm=True)
    raise AssertionError(f"not done after {CALM_STEPS} calm steps")
