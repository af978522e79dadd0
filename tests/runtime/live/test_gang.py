"""A gang over two nodes that trains with torch.distributed: all ranks start, stop and move together."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live import evidence
from tests.runtime.live.stage import StartStage

SCRIPT = "tests.runtime.live.gang_training"
ROOT = Path(__file__).parents[3]
STEPS = 600  # at 20 steps/s, until the second lease hurries


@pytest.mark.slow  # torch starts four times; tests/runtime/iterator has a fast one, live gangs die in test_crash.py
def test_gang_stops_at_one_step_and_continues_elsewhere_with_other_ranks(start: StartStage) -> None:
    nodes = tuple(LocalNode(name, "v100:1") for name in ("n0", "n1", "n2"))
    stage = start(*nodes, settings={"mechanism": {"round_s": 3.0}})
    command = f"env PYTHONPATH={ROOT} {sys.executable} -m {SCRIPT} {stage.witnessed} 0.05"
    job = stage.submit("gang", command, STEPS, {"v100": 15.0}, gpus=2)
    first = stage.wait_saved(job)

    stage.wish(first.node_ids[0], pb.NODE_WISH_DRAIN)
    stage.wait_elsewhere(first)
    stage.hurry()
    stage.wait_over(job)

    assert stage.job(job).state == pb.JOB_STATE_FINISHED, stage.job(job).detail
    lines = stage.lines(job)
    stopped = [line for line in lines if line.kind == "stopped" and line.lease == first.lease]
    began = [line for line in lines if line.kind == "began" and line.lease > first.lease]
    finished = [line for line in lines if line.kind == "finished"]
    assert sorted(line.rank for line in stopped) == sorted(line.rank for line in finished) == [0, 1]
    assert len({line.steps for line in [*stopped, *began]}) == 1
    assert [line.steps for line in finished] == [STEPS] * 2
    assert where(stopped).keys() == set(first.node_ids)
    assert first.node_ids[0] not in where(finished)
    assert where(stopped)[first.node_ids[1]] != where(finished)[first.node_ids[1]]
    weights = [path.read_text() for path in stage.witnessed.glob(f"weights-*-{STEPS}")]
    assert len(weights) == 2
    assert len(set(weights)) == 1


def where(lines: list[evidence.Line]) -> dict[str, int]:
    """The rank on each node."""
    return {line.node: line.rank for line in lines}
