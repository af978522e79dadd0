"""The faults of a crash test: a plan drawn from a seed, and its execution."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode, processes_below


class Fault(StrEnum):
    """The kinds of faults."""

    SCHEDULER = "scheduler"  # kill -9, then restarted
    AGENT = "agent"  # the same; its shims survive
    SHIM = "shim"  # kill -9
    JOB = "job"  # kill -9 of one of its processes
    FREEZE = "freeze"  # every shim of an agent is stopped until its lease is over, then continues


@dataclass(frozen=True)
class Planned:
    """A fault and its time, in seconds from the start."""

    at_s: float
    fault: Fault


def plan(counts: dict[Fault, int], within_s: float, rng: np.random.Generator) -> list[Planned]:
    """Each fault as often as given, at random times."""
    faults = [Planned(float(rng.uniform(0.0, within_s)), fault) for fault, n in counts.items() for _ in range(n)]
    return sorted(faults, key=lambda planned: planned.at_s)


@dataclass
class Saboteur:
    """Executes a plan on a cluster. `done` counts actual hits: a shim can only be killed where one runs."""

    cluster: LocalCluster
    rng: np.random.Generator
    frozen_s: float
    done: dict[Fault, int]
    restarts_s: list[float]  # how long the scheduler took to answer again
    began_s: float

    def carry_out(self, planned: list[Planned]) -> None:
        """Executes each fault at its time, or as soon after as the previous one is done."""
        for next_one in planned:
            time.sleep(max(0.0, self.began_s + next_one.at_s - time.monotonic()))
            if self._do(next_one.fault):
                self.done[next_one.fault] = self.done.get(next_one.fault, 0) + 1

    def _do(self, fault: Fault) -> bool:
        match fault:
            case Fault.SCHEDULER:
                self.cluster.kill("scheduler")
                self.restarts_s.append(self.cluster.start_scheduler())
                return True
            case Fault.AGENT:
                agent = self._any_agent()
                self.cluster.kill(agent.node_id)
                self.cluster.start_agent(agent)
                return True
            case Fault.SHIM:
                return self._signal_one(shims(self.cluster.directory), signal.SIGKILL)
            case Fault.JOB:
                return self._signal_one(witnesses(self.cluster.directory), signal.SIGKILL)
            case Fault.FREEZE:
                return self._freeze(self._any_agent())

    def _any_agent(self) -> LocalNode:
        agents = self.cluster.nodes
        return agents[int(self.rng.integers(len(agents)))]

    def _signal_one(self, processes: list[int], number: signal.Signals) -> bool:
        if not processes:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(processes[int(self.rng.integers(len(processes)))], number)
            return True
        return False

    def _freeze(self, agent: LocalNode) -> bool:
        below = self.cluster.directory / agent.node_id
        victims = [*shims(below), *witnesses(below)]
        for number, pause_s in ((signal.SIGSTOP, self.frozen_s), (signal.SIGCONT, 0.0)):
            for process in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            time.sleep(pause_s)
        return bool(victims)


def shims(below: Path) -> list[int]:
    """Process ids of the shims of lease directories below a directory."""
    return [process for process in processes_below(below) if not _is_witness(process)]


def witnesses(below: Path) -> list[int]:
    """Process ids of jobs that run under leases below a directory."""
    return [process for process in processes_below(below) if _is_witness(process)]


def _is_witness(process: int) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")  # of a dead process there are none
        return any(b"witness.py" in word for word in words[1:2])
    return False
