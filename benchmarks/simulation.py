"""The simulator on the original's generated trace: quality against its average JCT, and CPU time outside the solver.

The original (Narayanan et al., OSDI '20; its code at c4fa400) took 20 s of CPU in all and found an average JCT of
49,917 s on gen_single_lam900_seed0.trace, 36 GPUs of each type, jobs 0 to 299 measured, no costs. Its data are not part
of this project; without them a trace of the same distributions is generated, which has no reference figure.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.base import PolicyRun
from gavelpy.simulator.compare import compare, simulate
from gavelpy.simulator.settings import Costs, SimulationSettings, preset
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.reader import read_throughputs, read_trace
from gavelpy.traces.workloads import published_throughputs

ORIGINAL_JCT_S, ORIGINAL_CPU_S = 49_917.0, 20.0
CLUSTER = "v100:36,p100:36,k80:36"
WINDOW = (0, 300)
SCALE_JOBS = 100_000
BACKLOG = 10_000  # jobs at time 0; then one at these intervals, about as fast as jobs end
BACKLOG_INTERVALS_S = {"max_min_fairness": 32.0, "fifo": 55.0}
FREE = Costs(checkpoint_s=0.0, restart_s=0.0, migration_s=0.0)


def run() -> None:
    """Prints a line per setting."""
    trace, is_reference = the_trace()
    print(f"{trace.name or 'generated trace'}: {CLUSTER}, window {WINDOW[0]}:{WINDOW[1]}, max_min_fairness aware")
    settings = {
        "default, no costs": SimulationSettings(costs=FREE),
        "default": SimulationSettings(),
        "gavel-osdi20": preset("gavel-osdi20"),
    }
    simulate(trace, Cluster.parse(CLUSTER), "max_min_fairness", window=(0, 3))  # triggers imports on first use
    for name, chosen in settings.items():
        found = simulate(trace, Cluster.parse(CLUSTER), "max_min_fairness", settings=chosen, window=WINDOW).metrics
        outside_s = found.cpu_s - found.cpu_solve_s
        line = f"{name:18} average JCT {found.avg_jct_s:9,.0f} s, {found.rounds} rounds, {found.solves} solves; "
        line += f"CPU {found.cpu_s:.2f} s, {outside_s:.2f} s outside the solver"
        if is_reference:
            jct, cpu = found.avg_jct_s / ORIGINAL_JCT_S, found.cpu_s / ORIGINAL_CPU_S
            line += f"; JCT {jct:.3f} and CPU {cpu:.3f} of the original's"
        print(line)


def the_trace() -> tuple[Trace, bool]:
    """The original's trace if the reference data exist, else a similar one; and which it is."""
    table = reference_table()
    if table is not None:
        return read_trace(reference_data() / "traces" / "gen_single_lam900_seed0.trace", throughputs=table), True
    options = GeneratorOptions(jobs=1200, mean_interarrival_s=900.0)
    return generate(options, published_throughputs(), np.random.default_rng(0)), False


def reference_data() -> Path:
    """The folder of the original's data, which may be missing."""
    default = Path(__file__).resolve().parents[2] / "shared"
    return Path(os.environ.get("GAVELPY_REFERENCE_DIR") or default) / "data" / "gavel"


def reference_table() -> ThroughputTable | None:
    """The original's measured throughputs, if the reference data exist."""
    path = reference_data() / "simulation_throughputs.json"
    return read_throughputs(path) if path.is_file() else None


def run_scale() -> None:
    """Many jobs on many GPUs: the cost of a what-if over a year of a large cluster. Takes minutes."""
    options = GeneratorOptions(jobs=SCALE_JOBS, mean_interarrival_s=77.0, multi_gpu=True)
    trace = generate(options, published_throughputs(), np.random.default_rng(0))
    mechanism = MechanismSettings(solve_interval_s=360.0, settled_rounds_max=1_000_000)
    settings = SimulationSettings(mechanism, mechanism_given=frozenset({"solve_interval_s"}))
    cluster = Cluster.parse("v100:1000,p100:1000,k80:1000")
    print(f"{SCALE_JOBS:,} generated jobs, gangs of 1 to 8, on 3,000 GPUs; a solve a round at most")
    for policy in ("max_min_fairness", "fifo"):
        found = simulate(trace, cluster, policy, settings=settings).metrics
        rate = SCALE_JOBS / found.wall_s
        print(
            f"{policy:18} {found.wall_s:6.1f} s, {rate:,.0f} jobs/s; {found.rounds} rounds, {found.solves} solves "
            f"({found.cpu_solve_s:.1f} s), utilization {found.utilization:.2f}"
        )


def run_waiting() -> None:
    """Many jobs of which some 10,000 are active at all times, with the default settings. Takes ten minutes."""
    cluster = Cluster.parse("v100:1000,p100:1000,k80:1000")
    print(f"{SCALE_JOBS:,} generated jobs, gangs of 1 to 8, on 3,000 GPUs; {BACKLOG:,} jobs arrive at time 0")
    for policy, interval_s in BACKLOG_INTERVALS_S.items():
        options = GeneratorOptions(jobs=SCALE_JOBS, mean_interarrival_s=interval_s, multi_gpu=True)
        trace = generate(options, published_throughputs(), np.random.default_rng(0))
        at_s = np.maximum(trace.arrival_s - trace.arrival_s[BACKLOG], 0.0)
        trace = replace(trace, arrival_s=at_s, cancelled_s=np.zeros(0))
        began_s, seen = time.process_time(), _Active(trace)
        found = compare(trace, cluster, [PolicyRun(policy)], progress=seen.passed)[policy].metrics
        print(
            f"{policy:18} a job every {interval_s:g} s: {time.process_time() - began_s:6.1f} s of CPU, "
            f"{found.wall_s:6.1f} s; {found.rounds} rounds, {found.solves} solves ({found.cpu_solve_s:.1f} s); "
            f"active jobs {seen.mean:,.0f} on average until the last arrival, {seen.most:,} at most",
            flush=True,
        )


class _Active:
    """The number of active jobs over time, up to the last arrival."""

    def __init__(self, trace: Trace) -> None:
        self._arrival_s, self._area, self._at_s, self.most = trace.arrival_s, 0.0, 0.0, 0

    @property
    def mean(self) -> float:
        """Over time."""
        return self._area / self._at_s

    def passed(self, label: str, done: int, total: int, now_s: float) -> None:  # noqa: ARG002 the protocol's
        """An instant has passed."""
        if now_s <= self._arrival_s[-1]:
            active = int(np.searchsorted(self._arrival_s, now_s, side="right")) - done
            self._area += active * (now_s - self._at_s)
            self._at_s, self.most = now_s, max(self.most, active)
