"""A script without gavelpy among 20 others on three nodes: each step runs once; a dead node's steps run again.

Meanwhile no answer of the scheduler may claim a checkpoint that is not on the disk.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import SCHEDULER, LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.claims import ClaimsAudit
from tests.runtime.live.stage import Stage, StartStage

HERE = Path(__file__).parent
NODES = (LocalNode("n0", "v100:2"), LocalNode("n1", "v100:1"), LocalNode("n2", "k80:1"))
RATES = {"v100": 40.0, "k80": 40.0}
STEPS = 1_280
STEP_S = 0.005  # 6 s rather than a minute
SHORT = 100
SETTINGS = {
    "mechanism": {"round_s": 2.0, "retry_s": 0.2, "retry_max_s": 1.0},
    "nodes": {"unsaved_overlap_s": 120.0, "silent_after_s": 3.0, "lease_overlap_s": 5.0},
}


def submit_all(stage: Stage) -> tuple[int, list[int]]:
    """Submits the script and 20 others: 8 more scripts, 6 that report but never save, 6 that save; their serials."""
    script = stage.submit("script", untouched(stage, "script", STEPS), STEPS, RATES)
    plain = [stage.submit(f"plain-{k}", untouched(stage, f"plain-{k}", SHORT), SHORT, RATES) for k in range(8)]
    command = f"{sys.executable} {HERE / 'unsaved.py'} {SHORT} {STEP_S}"
    unsaved = [stage.submit(f"unsaved-{k}", command, SHORT, RATES) for k in range(6)]
    return script, [*plain, *unsaved, *(stage.submit_witness(f"witness-{k}", SHORT, RATES) for k in range(6))]


def untouched(stage: Stage, name: str, steps: int) -> str:
    return f"{sys.executable} {HERE / 'untouched.py'} {stage.witnessed / name}.txt {steps} {STEP_S}"


def runs_of(stage: Stage, name: str) -> list[tuple[str, list[int]]]:
    """Node and steps of each run, in the order in which they ran."""
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for line in (stage.witnessed / f"{name}.txt").read_text().splitlines():
        lease, node, step = line.split()
        found[lease, node].append(int(step))
    return [(node, steps) for (_, node), steps in found.items()]


@pytest.mark.slow
def test_each_step_runs_once_while_scheduler_and_agents_are_killed(start: StartStage) -> None:
    stage = start(*NODES, settings=SETTINGS)
    with ClaimsAudit(stage.cluster) as audit:
        script, others = submit_all(stage)
        stage.wait(lambda: (stage.witnessed / "script.txt").exists(), "the script runs")
        for node in NODES:
            stage.cluster.kill(node.node_id)
            stage.cluster.start_agent(node)
        stage.cluster.kill(SCHEDULER)
        stage.cluster.start_scheduler()
        audit.command_line()

        stage.wait_over(script, *others)
        audit.command_line()

    states = {stage.job(job).state for job in (script, *others)}
    assert states == {pb.JOB_STATE_FINISHED}
    assert [steps for _, steps in runs_of(stage, "script")] == [list(range(STEPS))]
    for k in range(8):
        assert [steps for _, steps in runs_of(stage, f"plain-{k}")] == [list(range(SHORT))]
    assert audit.lies == []
    assert audit.claims > 20
    assert audit.answers > 200


@pytest.mark.slow
def test_only_the_steps_of_a_dead_node_run_again(start: StartStage) -> None:
    stage = start(*NODES, settings=SETTINGS)
    with ClaimsAudit(stage.cluster) as audit:
        script, others = submit_all(stage)
        stage.wait(lambda: (stage.witnessed / "script.txt").exists(), "the script runs")
        (where,) = stage.job(script).node_ids
        node = next(node for node in NODES if node.node_id == where)

        stage.cluster.kill_node(node)
        stage.cluster.start_agent(node)
        stage.wait_over(script, *others)

    first, second = runs_of(stage, "script")
    assert 0 < len(first[1]) < STEPS
    assert first == (where, list(range(len(first[1]))))
    assert second[1] == list(range(STEPS))
    for k in range(8):
        *lost, last = runs_of(stage, f"plain-{k}")
        assert last[1] == list(range(SHORT))
        assert {died for died, _ in lost} <= {where}
    assert audit.lies == []
    assert audit.claims > 0
