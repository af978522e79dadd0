"""torchrun on one node and on several: an FSDP model whose shards all ranks save, moved without losing a step."""

from __future__ import annotations

import pytest

from gavelpy.runtime.local_cluster import LocalNode
from tests.frameworks.jobs import SETTINGS, assert_complete, losses, move, start_example
from tests.runtime.live.stage import StartStage

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("gpus_per_node", [2, 1])
def test_torchrun_job_moves_without_losing_a_step(start: StartStage, gpus_per_node: int) -> None:
    names = ("n0", "n1", "n2")[: 4 - gpus_per_node]
    stage = start(*(LocalNode(name, f"v100:{gpus_per_node}") for name in names), settings=SETTINGS)
    job = start_example(stage, "sharded_training.py 0.2", gpus=2, torchrun=True)

    move(stage, job)
    stage.wait_over(job)

    assert_complete(stage, job)


def test_ranks_that_gavel_starts_take_the_same_steps_as_those_of_torchrun(start: StartStage) -> None:
    stage = start(LocalNode("n0", "v100:4"), settings=SETTINGS)

    jobs = [start_example(stage, f"sharded_training.py {pause}", 2, torchrun=torchrun)
            for pause, torchrun in (("0.0", False), ("0.00", True))]  # fmt: skip
    stage.wait_over(*jobs)

    assert losses(stage, jobs[0]) == losses(stage, jobs[1])
    assert_complete(stage, jobs[0])
