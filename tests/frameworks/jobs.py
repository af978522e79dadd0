"""Jobs of the examples on a local cluster: submit, move to other nodes, read the steps in their logs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from gavelpy.runtime.local_cluster import reserved_port
from gavelpy.runtime.wire import client_pb2 as pb
from tests.cli.test_main import RUN
from tests.conftest import PROJECT
from tests.runtime.live.cluster import submit
from tests.runtime.live.stage import Stage

SETTINGS = {"mechanism": {"round_s": 5.0}, "nodes": {"grace_s": 10.0}}
STEPS = 60
STEP = re.compile(r"^step (\d+) loss ([\d.]+)$", re.MULTILINE)
EXAMPLES = PROJECT / "examples" / "frameworks"
PROGRAMS = Path(sys.executable).parent


def start_example(stage: Stage, command: str, gpus: int = 1, *, torchrun: bool = False) -> int:
    """Submits an example, which writes a checkpoint twice a second; returns its serial."""
    name = re.sub(r"\W+", "-", command.split("/")[-1])
    job = pb.JobDescription(
        name=name, steps_total=STEPS, gpus=gpus, rates_steps_per_s={"v100": 10.0}, one_process_a_node=torchrun,
        command=f"{PROGRAMS / 'torchrun' if torchrun else sys.executable} {EXAMPLES}/{command}",
        working_directory=str(stage.witnessed), checkpoint_every_s=0.5,
        environment={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    return submit(stage.cluster, [job], name)[0]


def run_gang(module: str, folder: Path, name: str, stop_at: int, world: int = 2) -> list[Any]:
    """What each rank of a module with the arguments FOLDER NAME STOP_AT writes into FOLDER/NAME-RANK.json."""
    base = {**os.environ, "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
            "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_RESTART_COUNT": "0"}  # fmt: skip
    with reserved_port() as port:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", module, str(folder), name, str(stop_at)],
                cwd=PROJECT, env={**base, "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
            )
            for rank in range(world)
        ]  # fmt: skip
        assert [rank.wait(timeout=300) for rank in ranks] == [0] * world
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(world)]


def move(stage: Stage, job: int) -> None:
    """Drains the first node of a job as soon as it has saved, and waits until it runs under another lease."""
    before = stage.wait_saved(job)
    stage.wish(before.node_ids[0], pb.NODE_WISH_DRAIN)
    stage.wait_elsewhere(before)


def losses(stage: Stage, job: int) -> list[tuple[int, str]]:
    """Step and loss, in the order of the log."""
    environment = os.environ | {"GAVEL_SCHEDULER": stage.cluster.address}
    read = subprocess.run([*RUN, "logs", str(job)], env=environment, capture_output=True, text=True, check=True)
    return [(int(number), loss) for number, loss in STEP.findall(read.stdout)]


def assert_complete(stage: Stage, job: int, steps: int = STEPS) -> None:
    """Each step was taken once, in order, under two leases, and nothing failed."""
    found = stage.job(job)
    assert found.state == pb.JOB_STATE_FINISHED, (found.detail, found.reason)
    assert [number for number, _ in losses(stage, job)] == list(range(1, steps + 1))
