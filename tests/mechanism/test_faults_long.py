"""1,000,000 faults, in episodes spread over the test processes: `make test-slow`."""

from __future__ import annotations

import pytest

from tests.mechanism.faults.world import World

FAULTS = 1_000_000
BATCHES, EPISODES = 50, 20
FIRST_SEED = 1_000


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_million_faults_break_no_promise(batch: int) -> None:
    first = FIRST_SEED + batch * EPISODES
    each = FAULTS // (BATCHES * EPISODES)

    faults = sum(World(seed, each).run().faults for seed in range(first, first + EPISODES))

    assert faults >= FAULTS // BATCHES
