"""Rates of the shipped jobs alone and in pairs, the cost of LeaseIterator, saving and loading: by workers.

All six workers hold their job on the GPU at the same time, and only those that are measured run steps.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Self

from benchmarks.gpu.worker import CLASSES, Answer
from gavelpy.runtime.agent import gpu_processes

REPEATS = 3
LEAD_S = 0.05  # until two workers begin together
ROOT = Path(__file__).resolve().parents[2]


class Workers:
    """A worker for each job, by name of the job."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], log: Path) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}
        errors = log.open("a")
        for name in CLASSES:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu.worker", name, *arguments],
                cwd=ROOT, env={**os.environ, **environment}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        errors.close()
        self.ready = {name: self.read(name) for name in CLASSES}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()  # closes its pipes, too

    def send(self, name: str, **command: Any) -> None:  # Any: JSON values
        """Sends a command to a worker."""
        stdin = self._processes[name].stdin
        assert stdin is not None
        stdin.write(json.dumps(command) + "\n")
        stdin.flush()

    def read(self, name: str) -> Answer:
        """The next answer of a worker."""
        stdout = self._processes[name].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the worker of {name} ended with code {self._processes[name].wait()}")
        return dict(json.loads(line))

    def ask(self, name: str, **command: Any) -> Answer:  # Any: JSON values
        """Sends a command and waits for its answer."""
        self.send(name, **command)
        return self.read(name)

    def together(self, names: tuple[str, ...], seconds: float) -> list[float]:
        """Steps/s of these jobs while all of them run for so long."""
        at_s = time.monotonic() + LEAD_S
        for name in names:
            self.send(name, do="steps", seconds=seconds, at_s=at_s)
        return [answer["steps"] / answer["seconds"] for answer in map(self.read, names)]


def alone_and_paired(arguments: list[str], seconds: float, folder: Path) -> Answer:
    """Everything about the six jobs with the GPU sliced in time."""
    with Workers(arguments, {}, folder / "workers.log") as workers:
        jobs = {name: _of_job(workers, name, seconds, folder / name) for name in CLASSES}
        found = gpu_processes.gpu_processes(gpu_processes.find_tool("nvidia"))
        used = {one.process: one.gib for one in found}
        for job in jobs.values():
            job["driver_gib"] = used.get(job["memory"].get("process", -1), 0.0)
        return {"ready": workers.ready, "jobs": jobs, "pairs": _pairs(workers, seconds)}


def with_mps(arguments: list[str], seconds: float, folder: Path) -> Answer:
    """The rates with NVIDIA's Multi-Process Service, whose daemon this starts and stops."""
    with _mps(folder) as environment, Workers(arguments, environment, folder / "workers.log") as workers:
        alone = {name: workers.together((name,), seconds)[0] for name in CLASSES}
        return {"ready": workers.ready, "alone": alone, "pairs": _pairs(workers, seconds)}


def _of_job(workers: Workers, name: str, seconds: float, folder: Path) -> Answer:
    bare, leased = [], []
    for repeat in range(REPEATS):
        directory = folder / f"lease-{repeat}"
        directory.mkdir(parents=True)
        bare.append(_rate(workers.ask(name, do="steps", seconds=seconds / REPEATS)))
        leased.append(_rate(workers.ask(name, do="leased", seconds=seconds / REPEATS, directory=str(directory))))
    saves = [workers.ask(name, do="save", directory=str(folder / "checkpoint")) for _ in range(REPEATS)]
    loads = [workers.ask(name, do="load", directory=str(folder / "checkpoint")) for _ in range(REPEATS)]
    return {
        "bare": bare,
        "leased": leased,
        "leased_to_bare": median(leased) / median(bare),
        "save_s": median(answer["seconds"] for answer in saves),
        "checkpoint_bytes": saves[-1]["bytes"],
        "load_s": median(answer["seconds"] for answer in loads),
        "memory": workers.ask(name, do="memory"),
    }


def _rate(answer: Answer) -> float:
    return float(answer["steps"] / answer["seconds"])


def _pairs(workers: Workers, seconds: float) -> list[Answer]:
    pairs = itertools.combinations(CLASSES, 2)
    return [{"jobs": pair, "rates": workers.together(pair, seconds)} for pair in pairs]


@contextlib.contextmanager
def _mps(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of programs that use a daemon of their own."""
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for place in environment.values():
        Path(place).mkdir(parents=True)
    tool, settings = "nvidia-cuda-mps-control", {**os.environ, **environment}
    subprocess.run([tool, "-d"], env=settings, check=True, timeout=30)
    try:
        yield environment
    finally:
        subprocess.run([tool], env=settings, check=True, timeout=30, input=b"quit\n")
