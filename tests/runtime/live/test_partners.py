"""What happens to one of two jobs on a GPU does not touch the other: kills, cancellations, preemptions, agents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.runtime.live import evidence
from tests.runtime.live.partners import Assailant, Blow, Pair, nodes, settings, verdict
from tests.runtime.live.stage import StartStage

MANY = {
    Blow.JOB: 60, Blow.SHIM: 40, Blow.CANCEL: 25, Blow.REQUEUE: 25, Blow.PREEMPT: 20,
    Blow.AGENT: 20, Blow.AGENT_AND_JOB: 20,
}  # fmt: skip


def attacked(start: StartStage, tmp_path: Path, blows: dict[Blow, int], pairs: int, seed: int) -> Assailant:
    """Pairs that these blows, in random order, have hit, after all jobs are over."""
    rng = np.random.default_rng(seed)
    stage = start(*nodes(pairs), settings=settings(tmp_path, pairs))
    assailant = Assailant(stage, [Pair(node, []) for node in nodes(pairs)], 40_000.0, rng)
    assailant.prepare()
    for blow in rng.permutation([blow for blow, count in blows.items() for _ in range(count)]).tolist():
        assailant.hit(Blow(blow))
    assailant.end()
    return assailant


@pytest.mark.slow
def test_two_hundred_blows_to_one_of_a_pair_never_touch_the_other(start: StartStage, tmp_path: Path) -> None:
    found = attacked(start, tmp_path, MANY, pairs=4, seed=51)

    lines = evidence.read(found.stage.witnessed)
    assert "\n".join(verdict(found, lines)) == ""
    assert found.done == MANY
    shared = {frozenset((early.job, late.job)) for early, late in evidence.shared_gpus(evidence.stays(lines))}
    assert {frozenset(pair.jobs) for pair in found.pairs} <= shared
