"""Training jobs with two and three ranks: equal parameters on all, and a resumed gang ends as an uninterrupted one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gavelpy.runtime.local_cluster import reserved_port
from tests.workloads.conftest import CLASSES
from tests.workloads.leases import ROOT, play_lease
from tests.workloads.test_jobs_training import TINY

STEPS, STOP = 14, 6


def run_gang(job: str, folder: Path, world: int) -> list[dict[str, Any]]:  # Any: JSON values
    """The output of the first rank after each of the runs in tests.workloads.gang."""
    pytest.importorskip("torch", reason="torch comes with gavelpy[torch]")
    play_lease(folder / "whole", 1)
    play_lease(folder / "stopped", 1, steps_max=STOP)
    play_lease(folder / "stopped", 2)
    gang = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    command = [sys.executable, "-m", "tests.workloads.gang", job, str(folder)]
    with ExitStack() as stack:
        ports = ",".join(str(stack.enter_context(reserved_port())) for _ in range(3))
        ranks = [
            subprocess.Popen(
                [*command, ports, *TINY[job], f"--steps={STEPS}"],
                env=os.environ | gang | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        for rank in ranks:
            stack.callback(rank.kill)
        said = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, said
    assert [out for out, _ in said[1:]] == [""] * (world - 1)
    return [json.loads(line) for line in said[0][0].splitlines()]


def check_gang(job: str, folder: Path, world: int) -> None:
    whole, stopped, resumed = run_gang(job, folder, world)

    assert [line["finished"] for line in (whole, stopped, resumed)] == [True, False, True]
    assert STOP <= stopped["steps"] < STEPS
    assert whole["parameters"] == whole["parameters"][:1] * world
    assert resumed["parameters"] == whole["parameters"]
    assert resumed["loss"] == pytest.approx(whole["loss"], abs=1e-6)


@pytest.mark.slow
def test_gang_of_three_resumes_with_the_same_bits(tmp_path: Path) -> None:
    """Two ranks add up to the same in either order; with three, DDP's buckets must be the same after a resume."""
    check_gang("language_model", tmp_path, world=3)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("job", sorted(CLASSES))
def test_every_gang_is_alike_and_resumes_as_if_it_had_not_stopped(job: str, world: int, tmp_path: Path) -> None:
    check_gang(job, tmp_path, world)
