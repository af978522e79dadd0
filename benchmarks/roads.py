"""Counts how many modules of the package a reader must follow for one operation, from its call to its result.

A module counts if at least one function body in it executes. Every operation runs once before it is traced, so imports
and caches do not count. Compiled kernels run without the tracer; the function that calls them counts.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np

import gavelpy
from gavelpy.journal.store import open_store
from gavelpy.mechanism.events import JobSubmitted, NodeJoined
from gavelpy.model.allocation import Allocation
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, NodeId, Trace
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import policy_from
from gavelpy.runtime.daemon.config import parse_config
from gavelpy.runtime.daemon.recovery import Recovered, recover
from gavelpy.simulator.compare import simulate
from gavelpy.traces.problem_json import read_problem

PACKAGE = Path(gavelpy.__file__).parent
POLICY = "max_min_fairness"
CLUSTER = {"v100": 1, "k80": 1}
RATES = ((4.0, 1.0), (3.0, 3.0), (1.0, 2.0))  # steps/s of three distinct jobs
PROBLEM = {
    "cluster": CLUSTER,
    "jobs": [
        {"id": f"job-{row}", "rates_steps_per_s": dict(zip(CLUSTER, rates, strict=True))}
        for row, rates in enumerate(RATES)
    ],
}


def run() -> None:
    """Prints each operation with its number of modules, the goal, and their names."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "problem.json"
        file.write_text(json.dumps(PROBLEM), encoding="utf-8")
        problem = read_problem(file)
        show("allocate, from problem to shares", lambda: allocated(problem), goal=14)
        show("allocate, from problem file to shares", lambda: allocated(read_problem(file)))
        show("trace to completion time", completion_time_s, goal=40)
        show("recovery", recovery(Path(directory)), goal=18)


def show(name: str, road: Callable[[], object], goal: int | None = None) -> None:
    """Prints the modules that a second run of this operation executes."""
    road()
    crossed = modules_crossed(road)
    print(f"{name}: {len(crossed)} modules" + (f" (goal {goal})" if goal else ""))
    for module in crossed:
        print(f"    {module}")


def modules_crossed(road: Callable[[], object]) -> list[str]:
    """Files of the package in which a function body executes during this call, sorted; in all threads."""
    crossed: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            crossed.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        road()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    paths = [Path(file) for file in crossed]
    return sorted(str(path.relative_to(PACKAGE)) for path in paths if path.is_relative_to(PACKAGE))


def allocated(problem: AllocationProblem) -> Allocation:
    """The calls of `gavel allocate` for a problem, without the command line's own modules."""
    return policy_from(POLICY).allocate(problem).evaluated_on(problem)


def completion_time_s() -> float:
    """The average completion time of a small trace in s, as `gavel simulate` computes it."""
    jobs = _jobs()
    result = simulate(Trace(jobs, np.arange(len(jobs)) * 600.0), Cluster.of(CLUSTER), POLICY)
    return result.metrics.avg_jct_s


def recovery(folder: Path) -> Callable[[], Recovered]:
    """The daemon's recovery from a SQLite journal with a few jobs, as a crash leaves it."""
    config = parse_config(f"[scheduler]\nstate_directory = {json.dumps(str(folder))}\n")
    with open_store(config.scheduler.journal_url) as store:
        recovered = recover(store, config)
        arrivals = [NodeJoined(NodeId(name), name, count) for name, count in CLUSTER.items()]
        events = [*recovered.events, *arrivals, *(JobSubmitted(job) for job in _jobs())]
        store.append([(recovered.core.now_s + 1.0, event) for event in events])

    def road() -> Recovered:
        with open_store(config.scheduler.journal_url) as store:
            return recover(store, config)

    return road


def _jobs() -> tuple[JobSpec, ...]:
    return tuple(
        JobSpec(JobId(f"job-{row}"), 10_000.0, rates_steps_per_s=dict(zip(CLUSTER, rates, strict=True)))
        for row, rates in enumerate(RATES)
    )
