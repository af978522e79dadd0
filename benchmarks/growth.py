"""CPU time of an event and of a round over the number of active jobs, on 3,000 GPUs: figures and a picture.

All jobs arrive at once. A round is an instant at which one begins, with all that follows; an event is any other instant
(mostly the end of a job). Both are medians of the first instants after the arrivals.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.plot import photographed
from gavelpy.model.cluster import Cluster
from gavelpy.policies.base import PolicyRun
from gavelpy.report.plots import POLICY_COLOURS
from gavelpy.simulator.compare import compare
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs

ACTIVE_JOBS, INSTANTS = (1_000, 3_000, 10_000, 30_000, 100_000), 300
POLICIES = ("max_min_fairness", "fifo")
OUT = Path("out/benchmarks/growth.csv")
SIZE_PX = 620, 420


class Growth(NamedTuple):
    """One policy with so many active jobs; times are NaN where there was no such instant."""

    policy: str
    active_jobs: int
    event_ms: float
    round_ms: float
    events: int
    rounds: int


def run(arguments: Sequence[str] = ()) -> None:
    """Prints a line per policy and number of jobs, and writes a CSV file, a page and a picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks growth", description=__doc__)
    parser.add_argument("--jobs", nargs="+", type=int, default=ACTIVE_JOBS, metavar="N", help="numbers of active jobs")
    parser.add_argument("--out", type=Path, default=OUT, help=f"the CSV file (default: {OUT})")
    options = parser.parse_args(arguments)
    found = []
    for policy in POLICIES:
        for count in options.jobs:
            one = measured(policy, count)
            found.append(one)
            print(
                f"{policy:18} {count:7,} active jobs: event {one.event_ms:7.2f} ms (of {one.events}), "
                f"round {one.round_ms:7.2f} ms (of {one.rounds})",
                flush=True,
            )
    for path in written(found, options.out):
        print(f"measurements are in {path}")


def measured(policy: str, count: int) -> Growth:
    """The times of the first instants."""
    trace = generate(GeneratorOptions(jobs=count, multi_gpu=True), published_throughputs(), np.random.default_rng(0))
    clock = Instants()
    cluster = Cluster.parse("v100:1000,p100:1000,k80:1000")
    compare(trace, cluster, [PolicyRun(policy)], progress=clock.passed, stop=clock.is_enough)
    took_ms = 1000.0 * np.diff(clock.cpu_s)
    is_round = np.mod(clock.at_s[1:], SimulationSettings().mechanism.round_s) == 0.0
    medians = [float(np.median(part)) if len(part) else np.nan for part in (took_ms[~is_round], took_ms[is_round])]
    return Growth(policy, count, *medians, int((~is_round).sum()), int(is_round.sum()))


class Instants:
    """Virtual time and CPU time after each instant of a simulation; the first one has all arrivals."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self.cpu_s: list[float] = []

    def passed(self, label: str, done: int, total: int, now_s: float) -> None:  # noqa: ARG002 the protocol's
        """An instant has passed."""
        self.at_s.append(now_s)
        self.cpu_s.append(time.process_time())

    def is_enough(self) -> bool:
        """Whether enough instants are measured."""
        return len(self.at_s) > INSTANTS


def written(found: Sequence[Growth], path: Path) -> list[Path]:
    """Writes the figures, and next to them a page and, where a browser is installed, a picture; returns the paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([Growth._fields, *found])
    page, picture = path.with_suffix(".html"), path.with_suffix(".png")
    drawn(found).write_html(page, include_plotlyjs=True, full_html=True, config={"displayModeBar": False})
    return [path, page, picture] if photographed(page, picture, *SIZE_PX) else [path, page]


def drawn(found: Sequence[Growth]) -> Any:  # plotly has no types
    """Milliseconds over active jobs, both logarithmic: a colour per policy, events solid and rounds dotted."""
    from plotly.graph_objects import Figure

    figure = Figure()
    for policy, colour in zip(POLICIES, POLICY_COLOURS, strict=False):
        rows = [one for one in found if one.policy == policy]
        for name, dash in (("event", "solid"), ("round", "dot")):
            figure.add_scatter(
                x=[one.active_jobs for one in rows],
                y=[one.event_ms if name == "event" else one.round_ms for one in rows],
                name=f"{policy}, {name}",
                mode="lines+markers",
                line={"color": colour, "dash": dash},
            )
    figure.update_xaxes(type="log", title_text="active jobs", dtick=1)
    figure.update_yaxes(type="log", title_text="ms of CPU time", dtick=1)
    figure.update_layout(template="plotly_white", width=SIZE_PX[0], height=SIZE_PX[1], margin={"t": 20})
    return figure
