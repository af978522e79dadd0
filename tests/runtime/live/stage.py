"""Actions of live tests on a cluster: submit witness jobs, wait for conditions, read the evidence."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gavelpy.runtime.local_cluster import CALL_S, LocalCluster, LocalNode, processes_below, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live import evidence
from tests.runtime.live.cluster import OVER, jobs_of, patiently, submit
from tests.runtime.live.witness import HURRY

WITNESS = Path(__file__).with_name("witness.py")
PATIENCE_S = 150.0  # on a busy machine; every wait returns as soon as it can
Settings = Mapping[str, Mapping[str, Any]]  # Any: every value that TOML can express


class StartStage(Protocol):
    """The type of the fixture `start`."""

    def __call__(self, *nodes: LocalNode, settings: Settings | None = None) -> Stage:
        """Starts the scheduler and these nodes, and returns when they run."""


@dataclass(frozen=True)
class Stage:
    """A cluster, and the directory into which its witnesses write."""

    cluster: LocalCluster
    witnessed: Path

    def submit(
        self,
        name: str,
        command: str,
        steps: float,
        rates: Mapping[str, float],
        gpus: int = 1,
        *,
        preemptible: bool = False,
        **fields: Any,  # of JobDescription
    ) -> int:
        """Submits a job that writes a checkpoint twice a second; returns its serial."""
        job = pb.JobDescription(
            name=name, steps_total=steps, gpus=gpus, rates_steps_per_s=rates, command=command,
            working_directory=str(self.witnessed), checkpoint_every_s=0.5,
            preemptible=preemptible, **fields,
        )  # fmt: skip
        return submit(self.cluster, [job], name)[0]

    def submit_witness(
        self,
        name: str,
        steps: float,
        rates: Mapping[str, float],
        gpus: int = 1,
        **fields: Any,  # of JobDescription
    ) -> int:
        """Submits a witness job; returns its serial."""
        told = ",".join(f"{gpu_type}={rate:g}" for gpu_type, rate in rates.items())
        return self.submit(name, f"{sys.executable} {WITNESS} {self.witnessed} {told}", steps, rates, gpus, **fields)

    def job(self, serial: int) -> pb.Job:
        """The scheduler's report of a job."""
        return jobs_of(self.cluster)[serial]

    def explained(self, serial: int) -> pb.GetJobResponse:
        """The scheduler's explanation of a job."""
        request = pb.GetJobRequest(job=str(serial))
        return patiently(self.cluster, lambda client: client.GetJob(request, timeout=CALL_S))

    def node(self, node_id: str) -> pb.NodeStatus:
        """The scheduler's report of a node."""
        answer = patiently(self.cluster, lambda client: client.ListNodes(pb.ListNodesRequest(), timeout=CALL_S))
        return next(node for node in answer.nodes if node.node_id == node_id)

    def policy(self) -> pb.GetClusterResponse:
        """The current policy and the rounds."""
        return patiently(self.cluster, lambda client: client.GetCluster(pb.GetClusterRequest(), timeout=CALL_S))

    def wish(self, node_id: str, wish: pb.NodeWish.ValueType) -> None:
        """Sends an operator's request about a node."""
        request = pb.SetNodeRequest(node_id=node_id, wish=wish)
        patiently(self.cluster, lambda client: client.SetNode(request, timeout=CALL_S))

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Returns as soon as the condition holds."""
        wait_until(holds, what, PATIENCE_S)

    def wait_saved(self, serial: int) -> pb.Job:
        """Waits until the job runs and has a checkpoint on record; returns it."""
        running = pb.JOB_STATE_RUNNING
        self.wait(
            lambda: (job := self.job(serial)).state == running and job.steps_saved > 0,
            f"job {serial} runs and has saved",
        )
        return self.job(serial)

    def wait_over(self, *serials: int) -> None:
        """Waits until these jobs are over."""
        self.wait(lambda: all(self.job(serial).state in OVER for serial in serials), f"jobs {serials} are over")

    def wait_elsewhere(self, before: pb.Job) -> pb.Job:
        """Waits until the job runs under another lease; returns it."""
        running = pb.JOB_STATE_RUNNING
        self.wait(
            lambda: (job := self.job(before.job)).state == running and job.lease > before.lease,
            f"job {before.job} runs under another lease than {before.lease}",
        )
        return self.job(before.job)

    def hurry(self) -> None:
        """Makes jobs do their remaining steps 100 times as fast."""
        (self.witnessed / HURRY).touch()

    def lines(self, serial: int, kind: str = "") -> list[evidence.Line]:
        """The lines that the witnesses of a job wrote, of one kind or of all."""
        return [line for line in evidence.read(self.witnessed) if line.job == serial and kind in ("", line.kind)]

    def signal_node(self, node_id: str, number: signal.Signals) -> None:
        """Sends a signal to the agent, its shims and its jobs."""
        victims = [self.cluster.processes[node_id].pid, *processes_below(self.cluster.directory / node_id)]
        for process in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def is_idle(self, node_id: str) -> bool:
        """Whether no shim and no job runs on a node."""
        return not processes_below(self.cluster.directory / node_id)
