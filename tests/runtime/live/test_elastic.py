"""A job that trains goes from 1 to 4 to 2 to 4 GPUs of three agents, of which two are killed on the way.

Its losses are compared with those of runs of the same script without a scheduler: one with the same numbers of ranks at
the same steps, which has the same bits, and ones whose number of ranks never changes.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from gavelpy.runtime.local_cluster import LocalNode, reserved_port, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.conftest import PROJECT
from tests.runtime.live.cluster import OVER
from tests.runtime.live.stage import Stage, StartStage

SCRIPT = PROJECT / "examples" / "frameworks" / "elastic_training.py"
STEPS = 384
PAUSE_S = 1.2  # per step on one rank: 100 s at least for all steps on four, more than an agent takes to come back
PATIENCE_S = 600.0  # a lease loads PyTorch once for each rank, which takes minutes if ten others want each core
STEP = re.compile(r"^step (\d+) ranks (\d+) loss (\S+)$", re.MULTILINE)
LEASE = re.compile(r"lease-(\d+)-rank-0")
RATES = {2: pb.Rates(rates_steps_per_s={"v100": 5.6}), 4: pb.Rates(rates_steps_per_s={"v100": 10.4})}
NODES = (LocalNode("n0", "v100:1"), LocalNode("n1", "v100:2"), LocalNode("n2", "v100:1"))
SETTINGS = {
    "mechanism": {"round_s": 5.0},
    "nodes": {"grace_s": 10.0, "silent_after_s": 5.0},
    "throughputs": {"estimate": False},
}


class Step(NamedTuple):
    """A line of the script: a step of the job, the ranks that it had, and the loss with all its digits."""

    number: int
    ranks: int
    loss: str


def lines_of(text: str) -> list[Step]:
    return [Step(int(number), int(ranks), loss) for number, ranks, loss in STEP.findall(text)]


def by_lease(stage: Stage) -> list[list[Step]]:
    """The steps that the first rank has written under each lease, without leases that did none."""
    found = {int(match[1]): path for path in stage.witnessed.iterdir() if (match := LEASE.fullmatch(path.name))}
    steps = [lines_of(found[lease].read_text()) for lease in sorted(found)]
    return [lines for lines in steps if lines]


def accepted(leases: list[list[Step]]) -> list[Step]:
    """The steps that count: of each lease, those before the first step of the next one."""
    ends = [after[0].number for after in leases[1:]] + [STEPS + 1]
    return [step for lines, end in zip(leases, ends, strict=True) for step in lines if step.number < end]


def steps_on(stage: Stage, ranks: int) -> int:
    """Steps that the newest lease has done, if it has so many ranks."""
    leases = by_lease(stage)
    return len(leases[-1]) if leases and leases[-1][0].ranks == ranks else 0


def wait_trained(stage: Stage, job: int, ranks: int, steps: int) -> None:
    """Waits until the newest lease has so many ranks and has done so many steps; fails at once if the job is over."""

    def has_trained() -> bool:
        report = stage.job(job)
        assert report.state not in OVER, f"over before {steps} steps on {ranks} GPUs: {report.detail}"
        return steps_on(stage, ranks) >= steps and stage.cluster.nodes_up() == len(stage.cluster.processes) - 1

    wait_until(has_trained, f"{steps} steps on {ranks} GPUs", PATIENCE_S)


def run_alone(directory: Path, sizes: list[tuple[int, int]]) -> list[Step]:
    """The steps of the script without a scheduler, in runs of so many ranks up to a step."""
    directory.mkdir()
    text = ""
    for ranks, until in sizes:
        command = [sys.executable, str(SCRIPT), "--checkpoints", str(directory), "--steps", str(until)]
        base = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")}
        with reserved_port() as port:
            base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
            started = [
                subprocess.Popen(
                    command, env=base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, text=True
                )
                for rank in range(ranks)
            ]
            texts = [process.communicate(timeout=600)[0] for process in started]
        assert [process.returncode for process in started] == [0] * ranks
        text += texts[0]
    return lines_of(text)


def distance(one: list[Step], other: list[Step]) -> float:
    """Mean difference of the losses of two runs, by step."""
    return statistics.fmean(abs(float(a.loss) - float(b.loss)) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
def test_training_that_grows_and_shrinks_takes_each_step_once_and_ends_as_an_undisturbed_one(
    start: StartStage, tmp_path: Path
) -> None:
    stage = start(NODES[0], settings=SETTINGS)
    command = (
        f"sh -c 'exec {sys.executable} {SCRIPT} --pause {PAUSE_S} >> {stage.witnessed}/lease-$GAVEL_LEASE-rank-$RANK'"
    )
    job = stage.submit("elastic", command, 0, {"v100": 3.0}, sizes=[1, 2, 4], rates_by_size=RATES)

    wait_trained(stage, job, 1, 20)
    for node in NODES[1:]:
        stage.cluster.start_agent(node)
    wait_trained(stage, job, 4, 20)
    grown = stage.job(job)
    stage.cluster.kill("n1")
    stage.cluster.start_agent(NODES[1])
    wait_trained(stage, job, 4, steps_on(stage, 4) + 20)
    assert stage.job(job).lease == grown.lease
    stage.cluster.kill_node(NODES[2])
    wait_until(lambda: steps_on(stage, 2) >= 20, "20 steps on 2 GPUs", PATIENCE_S)
    stage.cluster.start_agent(NODES[2])
    wait_trained(stage, job, 4, 20)
    wait_until(lambda: stage.job(job).state in OVER, "the job is over", PATIENCE_S)

    over = stage.job(job)
    assert (over.state, over.steps_done) == (pb.JOB_STATE_FINISHED, STEPS), over.detail
    leases = by_lease(stage)
    steps = accepted(leases)
    assert [step.number for step in steps] == list(range(1, STEPS + 1))
    sizes = [(before.ranks, before.number) for before, after in pairwise(steps) if before.ranks != after.ranks]
    assert [ranks for ranks, _ in sizes] == [1, 4, 2]
    same = run_alone(tmp_path / "same", [*sizes, (4, STEPS)])
    assert steps == same
    fixed = [run_alone(tmp_path / f"fixed-{ranks}", [(ranks, STEPS)]) for ranks in (1, 2, 4)]
    noise = max(distance(one, other) for one, other in ((fixed[0], fixed[1]), (fixed[0], fixed[2]), fixed[1:]))
    assert max(distance(steps, other) for other in fixed) <= 1.25 * noise
    figures = {
        "ranks_until_step": sizes, "steps_repeated": sum(map(len, leases)) - STEPS, "noise": noise,
        "distances": [distance(steps, other) for other in fixed],
    }  # fmt: skip
    sys.stdout.write(json.dumps(figures) + "\n")
