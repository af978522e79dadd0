"""The shares of openb's GPUs that random placement and FGD allocate, next to the published ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gavelpy.reproduction.fgd import PUBLISHED, PUBLISHED_LOAD
from gavelpy.simulator.fragmentation import StudyStrategy, inflated, study
from gavelpy.traces.openb import read_openb_nodes, read_openb_pods


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize("seed", [10, 11])
def test_allocated_shares_are_within_one_and_a_half_points_of_the_published_ones(
    reference_directory: Path, seed: int
) -> None:
    """Other seeds than those of `gavel reproduce fgd`."""
    data = reference_directory / "data" / "openb"
    nodes = read_openb_nodes(data / "openb_node_list_gpu_node.csv")
    tasks = read_openb_pods(data / "openb_pod_list_default.csv", nodes.models).tasks
    arrivals = inflated(tasks, nodes.capacity_milli, PUBLISHED_LOAD, np.random.default_rng([seed, 0]))

    found = {
        strategy.value: study(nodes, tasks, arrivals, strategy, np.random.default_rng([seed, 1])).allocated
        for strategy in (StudyStrategy.RANDOM, StudyStrategy.FGD)
    }

    assert found == pytest.approx({name: PUBLISHED[name] for name in found}, abs=0.015)
    assert found["fgd"] - found["random"] > 0.06
