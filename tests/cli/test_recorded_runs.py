"""Simulations give the same numbers, to the last bit, as when their digests were recorded.

The digests hold on the machine type that recorded them (x86-64 with the pinned numpy, scipy and numba): the order of
floating-point operations decides ties. A change that is meant to change runs updates them with
`python -m tests.cli.test_recorded_runs` and names the reason in its commit.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gavelpy.cli.commands import app

RECORDED = Path(__file__).with_name("recorded_runs.json")
SMALL = "--generate 24 --rate-per-h 12 --cluster v100:8,p100:8,k80:8 --seed 7"
COMMANDS = (
    f"{SMALL} --policy fifo,fifo@blind,max_min_fairness,max_min_fairness@blind,las,isolated",
    f"{SMALL} --policy finish_time_fairness,max_sum_throughput,min_makespan,shortest_job_first,nash_welfare",
    f"{SMALL} --policy max_min_fairness_water_filling,allox,gandiva --multi-gpu",
    f"{SMALL} --policy min_cost,max_min_fairness --deadlines 1.5:0.5,10:0.5",
    f"{SMALL} --policy max_min_fairness,fifo --preset gavel-osdi20 --multi-gpu",
    "--generate 120 --rate-per-h 8 --cluster v100:36,p100:36,k80:36 --policy max_min_fairness --seed 1 --window 30:100",
    "--generate 50 --cluster v100:16,k80:16 --policy las,min_makespan --multi-gpu --round-s 120 --restart-s 40",
)
TIMINGS = ("wall_s", "cpu_s", "cpu_solve_s", "cpu_fairness_s")
NEWER = ("efficiency", "gpu_hours", "ideal_avg_jct_s", "ideal_makespan_s", "avg_fair_share_delay_s",
         "avg_fragmentation_delay_s")  # fmt: skip  # than the digests


def digest(command: str) -> str:
    """SHA-256 of the results of a simulation, without its timings."""
    answer = CliRunner().invoke(app, ["simulate", *command.split(), "--fairness", "-o", "json"])
    assert answer.exit_code == 0, answer.stderr
    results = json.loads(answer.stdout)["results"]
    kept = {label: {k: v for k, v in metrics.items() if k not in TIMINGS + NEWER} for label, metrics in results.items()}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_simulation_gives_the_recorded_numbers(command: str) -> None:
    assert digest(command) == json.loads(RECORDED.read_text())[command]


if __name__ == "__main__":
    RECORDED.write_text(json.dumps({command: digest(command) for command in COMMANDS}, indent=2) + "\n")
