"""`gavel demo`: simulates three policies, each blind and aware, on the shipped trace; then runs real jobs.

The live part runs a scheduler, three agents and training jobs, and kills one node. Speed factors make the nodes behave
like a V100, a P100 and a K80. If the machine has fewer cores than the cluster has GPUs, concurrent jobs slow each other
down; the simulation for comparison therefore uses the rates and start-up times measured in this run.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import options as o
from gavelpy.cli import simulate as s
from gavelpy.cli.experiment import Experiment, run
from gavelpy.cli.output import console, notify
from gavelpy.cli.simulation_choices import list_prices
from gavelpy.cli.simulation_options import FiguresOption
from gavelpy.errors import InvalidInput, RemoteViolation

if TYPE_CHECKING:
    from rich.table import Table

    from gavelpy.model.job import Trace
    from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
    from gavelpy.runtime.wire import client_pb2 as pb

_POLICIES = ("fifo", "max_min_fairness", "min_makespan")
_SIMULATED_GPUS = {"v100": 36, "p100": 36, "k80": 36}
_TRACE = "demo_trace.csv"  # in the workloads directory
ROUND_S = 20.0
KILL_AFTER_S = 12.0
RESTART_AFTER_S = 6.0
TIMEOUT_S = 240.0
POLL_S = 0.5
LINE_EVERY_S = 5.0  # if stderr is not a terminal
FACTORS = {"v100": 1.0, "p100": 0.5, "k80": 0.25}
GPUS = {"v100": 2, "p100": 1, "k80": 1}
VICTIM = "p100"


@dataclass(frozen=True)
class LiveJob:
    """One training script, and its rate alone on one core of a current machine."""

    script: str
    steps: int
    rate_steps_per_s: float
    gpus: int = 1

    @property
    def name(self) -> str:
        """The job's name in the cluster."""
        return f"{self.script.replace('_', '-')}{'-gang' if self.gpus > 1 else ''}"


JOBS = (
    LiveJob("image_classification", 150, 40.0),
    LiveJob("language_model", 250, 60.0),
    LiveJob("translation", 150, 40.0),
    LiveJob("recommender", 800, 250.0),
    LiveJob("gan", 150, 40.0),
    LiveJob("actor_critic", 400, 100.0),
    LiveJob("recommender", 400, 200.0, gpus=2),
)


def demo(
    report: Annotated[Path, typer.Option(metavar="FILE", help="HTML report to write.")] = Path("out/demo/report.html"),
    figures: FiguresOption = None,
    seed: o.SeedOption = 0,
    live: Annotated[
        bool,
        typer.Option("--live/--no-live", help="Then run real training jobs on three local agents (about a minute)."),
    ] = True,
) -> None:
    """Compare policies with and without knowledge of the throughputs, on 108 simulated GPUs of three types.

    Then run seven training jobs on this machine, with a scheduler and three agents, one of which is killed on the way.

    \b
    Examples:
      gavel demo
      gavel demo --no-live
    """
    from gavelpy.model.cluster import Cluster
    from gavelpy.policies.base import PolicyRun
    from gavelpy.simulator.settings import preset
    from gavelpy.traces.reader import read_trace
    from gavelpy.traces.workloads import workloads_directory

    s.check_report(report, figures)
    if live:
        check_installed()
    trace = read_trace(workloads_directory() / _TRACE)
    experiment = Experiment(
        trace=trace,
        cluster=Cluster.of(_SIMULATED_GPUS, price_usd_per_gpu_h=list_prices(list(_SIMULATED_GPUS))),
        runs=[PolicyRun(policy, blind) for policy in _POLICIES for blind in (True, False)],
        options={"fairness": True},
        settings=preset("default"),
        seed=seed,
    )
    typer.echo(experiment.title)
    results = run(experiment)
    s.show(results)
    s.write_report(report, figures, experiment, results)
    typer.echo(f"\nreport: {report}")
    s.end_if_interrupted(experiment, results)
    if live:
        run_live(report.parent / "live")


def check_installed() -> None:
    """Raises InvalidInput, with the command that installs it, if a requirement of the live part is missing."""
    missing = [name for name in ("grpc", "sqlalchemy", "aiohttp", "torch") if find_spec(name) is None]
    if missing or sys.platform != "linux":
        needs = f"{', '.join(missing)}: pip install 'gavelpy[runtime,torch]'" if missing else "Linux"
        raise InvalidInput(f"the live part of the demo needs {needs}; or run `gavel demo --no-live`")


def run_live(directory: Path) -> None:
    """Runs the jobs until they finish and prints the results; raises RemoteViolation after TIMEOUT_S."""
    from gavelpy.runtime.service_manager import quiet_grpc

    quiet_grpc()
    from gavelpy.runtime.local_cluster import LocalCluster, LocalNode

    nodes = tuple(LocalNode(f"{name}-node", f"{name}:{GPUS[name]}", factor) for name, factor in FACTORS.items())
    shutil.rmtree(directory, ignore_errors=True)
    offered = ", ".join(f"{count} {name}" for name, count in GPUS.items())
    notify(f"live: {len(JOBS)} training jobs on {offered}, emulated by three agents on this machine")
    with LocalCluster(directory.resolve(), nodes, {"mechanism": {"round_s": ROUND_S}}) as cluster:
        cluster.start()
        began_s = time.monotonic()
        _submit(cluster)
        rates = _watch(cluster, nodes)
        took_s = time.monotonic() - began_s
        jobs = _details(cluster)
    console().print(_table(jobs))
    _print_simulated(jobs, rates, took_s)


def _submit(cluster: LocalCluster) -> None:
    from gavelpy.runtime.wire import client_pb2 as pb
    from gavelpy.traces.workloads import workloads_directory

    scripts = workloads_directory() / "jobs"
    described = [
        pb.JobDescription(
            name=job.name,
            steps_total=job.steps,
            gpus=job.gpus,
            rates_steps_per_s={name: job.rate_steps_per_s * factor for name, factor in FACTORS.items()},
            command=f"{sys.executable} {scripts / job.script}.py --steps {job.steps}",
            working_directory=str(scripts.resolve()),
            checkpoint_every_s=3.0,
        )
        for job in JOBS
    ]
    with cluster.client() as client:
        client.SubmitJobs(pb.SubmitJobsRequest(idempotency_key="demo", jobs=described), timeout=10.0)


def _watch(cluster: LocalCluster, nodes: Sequence[LocalNode]) -> dict[str, float]:
    """Shows the jobs' progress; meanwhile kills a node and restarts its agent.

    Returns the median measured rate of each job in steps/s by name, converted to the fastest type.
    """
    from rich.console import Console
    from rich.live import Live

    victim = next(node for node in nodes if node.node_id.startswith(VICTIM))
    began_s = time.monotonic()
    acts = [
        (KILL_AFTER_S, lambda: _kill(cluster, victim)),
        (KILL_AFTER_S + RESTART_AFTER_S, lambda: _restart(cluster, victim)),
    ]
    screen = Console(stderr=True)
    printed_s = 0.0
    measured: dict[str, list[float]] = {}
    claimed = {job.name: job.rate_steps_per_s for job in JOBS}
    with Live(console=screen, transient=True) if screen.is_terminal else contextlib.nullcontext() as view:
        while True:
            elapsed_s = time.monotonic() - began_s
            while acts and elapsed_s >= acts[0][0]:
                acts.pop(0)[1]()
            jobs = _listed(cluster)
            for job in jobs:
                rate = job.rate_steps_per_s / FACTORS[job.gpu_type] if job.gpu_type else 0.0
                if rate and not math.isclose(rate, claimed[job.name]):  # a measurement, not the submitted rate
                    measured.setdefault(job.name, []).append(rate)
            if view is not None:
                view.update(_progress(jobs, elapsed_s))
            elif elapsed_s - printed_s >= LINE_EVERY_S:
                printed_s = elapsed_s
                notify(f"{elapsed_s:5.0f} s  " + "  ".join(f"{job.name} {_percent(job)}" for job in jobs))
            if not acts and all(_is_over(job) for job in jobs):
                return {name: statistics.median(rates) for name, rates in measured.items()}
            if elapsed_s > TIMEOUT_S:
                raise RemoteViolation(f"jobs did not finish within {TIMEOUT_S:g} s; logs are in {cluster.directory}")
            time.sleep(POLL_S)


def _kill(cluster: LocalCluster, node: LocalNode) -> None:
    notify(f"kill -9: {node.node_id}, the agent and its jobs")
    cluster.kill_node(node)


def _restart(cluster: LocalCluster, node: LocalNode) -> None:
    notify(f"restart: {node.node_id}")
    cluster.start_agent(node)


def _listed(cluster: LocalCluster) -> list[pb.Job]:
    from gavelpy.runtime.wire import client_pb2 as pb

    with cluster.client() as client:
        return list(client.ListJobs(pb.ListJobsRequest(all_states=True), timeout=10.0).jobs)


def _details(cluster: LocalCluster) -> list[pb.GetJobResponse]:
    from gavelpy.runtime.wire import client_pb2 as pb

    numbers = [str(job.job) for job in _listed(cluster)]
    with cluster.client() as client:
        return [client.GetJob(pb.GetJobRequest(job=number), timeout=10.0) for number in numbers]


def _is_over(job: pb.Job) -> bool:
    from gavelpy.runtime.wire import client_pb2 as pb

    return job.state in (pb.JOB_STATE_FINISHED, pb.JOB_STATE_CANCELLED, pb.JOB_STATE_FAILED)


def _state(job: pb.Job) -> str:
    from gavelpy.runtime.wire import client_pb2 as pb

    return pb.JobState.Name(job.state).removeprefix("JOB_STATE_").lower()


def _percent(job: pb.Job) -> str:
    return f"{job.steps_done / job.steps_total:.0%}"


def _progress(jobs: Sequence[pb.Job], elapsed_s: float) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table(title=f"{elapsed_s:.0f} s", box=None, title_justify="left")
    for name in ("job", "state", "on", "", ""):
        table.add_column(name)
    for job in jobs:
        bar = ProgressBar(total=job.steps_total, completed=job.steps_done, width=30)
        table.add_row(job.name, _state(job), ", ".join(job.node_ids) or job.reason, bar, _percent(job))
    return table


def _table(jobs: Sequence[pb.GetJobResponse]) -> Table:
    """Time that each job was owed and received on each GPU type, in seconds."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="live", title_justify="left")
    for name in ("job", "GPUs", "ended", "steps", "restarts"):
        table.add_column(name)
    for gpu_type in FACTORS:
        table.add_column(f"{gpu_type}: owed\nreceived, s", justify="right")
    table.add_column("time in\nthe system, s", justify="right")
    for answer in jobs:
        job = answer.job
        accounts = {account.gpu_type: account for account in answer.accounts}
        times = [f"{accounts[t].owed_s:.0f}\n{accounts[t].received_s:.0f}" for t in FACTORS]
        steps = f"{job.steps_done:.0f} of {job.steps_total:.0f}"
        in_system = f"{job.ended_at_s - job.submitted_at_s:.1f}"
        table.add_row(job.name, str(job.gpus), _state(job), steps, str(job.restarts), *times, in_system)
    return table


def _print_simulated(jobs: Sequence[pb.GetJobResponse], rates: Mapping[str, float], took_s: float) -> None:
    """Simulates the same jobs under the daemon's rules, with the rates and start-up times of the live run."""
    from gavelpy.model.cluster import Cluster
    from gavelpy.simulator.compare import simulate
    from gavelpy.simulator.settings import Costs, SimulationSettings, default_mechanism

    start_s = measured_start_s(jobs, rates)
    mechanism = replace(default_mechanism().with_round(ROUND_S), solve_interval_s=1.0)
    settings = SimulationSettings(mechanism, Costs(1.0, start_s, 0.0))
    result = simulate(_trace(jobs, rates), Cluster.of(GPUS), "max_min_fairness", settings=settings)
    live_s = sum(answer.job.ended_at_s - answer.job.submitted_at_s for answer in jobs) / len(jobs)
    simulated_s = result.metrics.avg_jct_s
    notify(
        f"finished after {took_s:.0f} s; average time in the system: live {live_s:.1f} s, simulated {simulated_s:.1f} s"
    )
    notify(
        f"the simulation uses the rates of this run and {start_s:.1f} s from the start of a lease to its first step; "
        f"it leaves out the killed node and the slowdown of jobs that share the {os.cpu_count()} cores of this machine"
    )


def measured_start_s(jobs: Sequence[pb.GetJobResponse], rates: Mapping[str, float]) -> float:
    """Mean time of a lease without steps, in seconds: time received minus time of steps."""
    idle_s, leases = 0.0, 0
    for answer in jobs:
        if rate := rates.get(answer.job.name, 0.0):
            fast_s = answer.job.steps_total / rate  # time of all steps on the fastest type
            received_s = sum(account.received_s for account in answer.accounts)
            effective_s = sum(FACTORS[account.gpu_type] * account.received_s for account in answer.accounts)
            idle_s += max(0.0, received_s * (1.0 - fast_s / max(effective_s, fast_s)))
            leases += answer.job.restarts + 1
    return idle_s / leases if leases else 0.0


def _trace(jobs: Sequence[pb.GetJobResponse], rates: Mapping[str, float]) -> Trace:
    import numpy as np

    from gavelpy.model.job import JobId, JobSpec, Trace

    specs = []
    for answer in jobs:
        job = answer.job
        effective_s = sum(FACTORS[account.gpu_type] * account.received_s for account in answer.accounts)
        rate = rates.get(job.name) or job.steps_total / max(effective_s, 1.0)  # a job too short to be measured
        on_types = {name: rate * factor for name, factor in FACTORS.items()}
        specs.append(JobSpec(JobId(job.name), job.steps_total, job.gpus, rates_steps_per_s=on_types))
    return Trace(tuple(specs), np.zeros(len(specs)), "live")
