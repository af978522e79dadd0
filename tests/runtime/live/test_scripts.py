"""Twelve scripts as users bring them, on one cluster with two agents at once: each ends as documented."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import LocalNode, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.cli.test_main import RUN
from tests.conftest import PROJECT
from tests.runtime.live.cluster import OVER, submit
from tests.runtime.live.stage import Stage, StartStage

pytestmark = pytest.mark.slow

PYTHON, TORCHRUN = "{python}", "{python} -m torch.distributed.run"
SCRIPTS, EXAMPLES = PROJECT / "tests" / "runtime" / "scripts", PROJECT / "examples" / "frameworks"
SETTINGS = {
    "mechanism": {"round_s": 4.0, "failures_max": 1, "retry_s": 0.2, "retry_max_s": 0.5, "start_max_s": 60.0},
    "nodes": {"grace_s": 2.0},
}
PATIENCE_S = 900.0  # the frameworks are imported at each start, on a busy machine
TEN = [f"step {number}" for number in range(1, 11)]
SIXTY = [f"step {number}" for number in range(1, 61)]


@dataclass(frozen=True)
class Script:
    """A job and how it must end: state, class of the failure, and the lines of its log that begin with `step`."""

    command: str
    steps: list[str]
    state: str = "finished"
    failure: str = ""
    runs: int = 1  # times that it begins; 0 = not counted
    gpus: int = 1
    options: Mapping[str, object] = field(default_factory=dict)

    def description(
        self, name: str, directory: Path, python: str = sys.executable, **environment: str
    ) -> pb.JobDescription:
        """The submission."""
        return pb.JobDescription(
            name=name, command=self.command.replace("{python}", python), gpus=self.gpus,
            steps_total=max(len(self.steps), 10), rates_steps_per_s={"v100": 2.0}, working_directory=str(directory),
            environment={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", **environment},
            **self.options,  # type: ignore[arg-type]  # fields of the message
        )  # fmt: skip


JOBS = {
    "plain": Script(f"{PYTHON} {SCRIPTS}/plain.py", TEN),
    "lightning": Script(f"{PYTHON} {EXAMPLES}/lightning_training.py", SIXTY, runs=0),
    "transformers": Script(f"{PYTHON} {EXAMPLES}/transformers_training.py", SIXTY, runs=0),
    "torchrun": Script(
        f"{TORCHRUN} {EXAMPLES}/sharded_training.py", SIXTY, runs=0, gpus=2, options={"one_process_a_node": True}
    ),
    "gang": Script(f"{PYTHON} {EXAMPLES}/sharded_training.py", SIXTY[:30], runs=0, gpus=4),
    "bash-loop": Script(f"bash {SCRIPTS}/bash_loop.sh", TEN),
    "hung": Script(
        f"{PYTHON} {SCRIPTS}/hung.py", TEN[:3], "failed", "stalled", options={"stall_s": 6.0, "no_preempt": True}
    ),
    "crashing": Script(f"{PYTHON} {SCRIPTS}/crashing.py", TEN[:2] * 2, "failed", "unknown", runs=2),
    "out-of-memory": Script(f"{PYTHON} {SCRIPTS}/out_of_memory.py", [], "failed", "out-of-memory", runs=2),
    "typo": Script(f"pyhton {SCRIPTS}/plain.py", [], "failed", "user", runs=0),
    "slow-exit": Script(f"{PYTHON} {SCRIPTS}/slow_exit.py", TEN, runs=0),
    "forking-daemon": Script(f"{PYTHON} {SCRIPTS}/forking_daemon.py", []),
}

EXPECTED = {name: (script.state, script.failure, script.runs, script.steps) for name, script in JOBS.items()}


def test_twelve_scripts_end_as_documented(start: StartStage) -> None:
    pytest.importorskip("lightning")
    pytest.importorskip("transformers")
    stage = start(LocalNode("n0", "v100:2"), LocalNode("n1", "v100:2"), settings=SETTINGS)
    descriptions = [script.description(name, stage.witnessed) for name, script in JOBS.items()]

    serials = dict(zip(JOBS, submit(stage.cluster, descriptions, "twelve"), strict=True))
    numbers = serials.values()
    wait_until(lambda: all(stage.job(serial).state in OVER for serial in numbers), "all scripts end", PATIENCE_S)

    found = {name: outcome(stage, serial, is_counted=JOBS[name].runs > 0) for name, serial in serials.items()}
    assert found == EXPECTED
    assert (stage.witnessed / "results").read_text() == "complete"
    assert log(stage, serials["forking-daemon"])[-1] == "daemons 1"
    assert daemons() == []


def outcome(stage: Stage, serial: int, token: str = "", *, is_counted: bool) -> tuple[str, str, int, list[str]]:
    """State, class of the failure, how often it began, and its steps in the order of the log.

    A start that fails on a busy machine and is retried is no failure of a job that finishes.
    """
    job = stage.job(serial)
    lines = log(stage, serial, token)
    steps = [" ".join(line.split()[:2]) for line in lines if line.startswith("step ")]
    state = pb.JobState.Name(job.state).removeprefix("JOB_STATE_").lower()
    failure = job.failure_class if job.state == pb.JOB_STATE_FAILED else ""
    return state, failure, lines.count("began") if is_counted else 0, steps


def log(stage: Stage, serial: int, token: str = "") -> list[str]:
    """The lines of a job, as its user reads them."""
    environment = os.environ | {"GAVEL_SCHEDULER": stage.cluster.address, "GAVEL_TOKEN": token}
    read = subprocess.run([*RUN, "logs", str(serial)], env=environment, capture_output=True, text=True, check=True)
    return read.stdout.splitlines()


def daemons() -> list[str]:
    """Processes that outlived their job."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"daemon-of-a-job" in path.read_bytes():
                found.append(path.parent.name)
    return found
