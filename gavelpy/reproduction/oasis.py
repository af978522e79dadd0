"""OASiS against FIFO, DRF, a risk-reward heuristic and Dorm: the total value of completed jobs.

Values are sigmoids of the completion time with the parameters of its simulations: worth 1 to 100, decays per hour of 0
(10 % of the jobs), 0.01 to 1 (55 %) and 4 to 6 (35 %), targets of 1 to 15 hours. More jobs arrive than the cluster can
serve in time. Three parts:

- its setting: jobs of workers and parameter servers in slots of an hour (`oasis_slots`); with `--full` also against
  Dorm, and on fewer nodes;
- jobs of one GPU, a small part of the cluster, as its guarantee assumes, in rounds of 360 s with costs of starts;
- the same with jobs that request 1 to 8 GPUs, on which FIFO and DRF run them, while OASiS and Dorm choose between 1, 2,
  4 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.model.cluster import Cluster
from gavelpy.model.completion_value import CompletionValue, values_at
from gavelpy.model.job import JobSpec, Trace
from gavelpy.policies.base import policy_from
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve
from gavelpy.reproduction.comparisons import FULL_SEEDS, DrawnSize, completion_s, settings_with, simulated
from gavelpy.reproduction.oasis_baselines import FifoWorkers, GrowingDrf, RiskReward
from gavelpy.reproduction.oasis_slots import SLOTS, OfPolicy, SlotPolicy, drawn_jobs, run_slots
from gavelpy.reproduction.published import UNKNOWN, FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.traces.generator import Durations, GeneratorOptions, generate

if TYPE_CHECKING:
    from gavelpy.model.arrays import Floats
    from gavelpy.model.throughput import ThroughputTable

GPU_TYPE, ROUND_S, SIZES, HOUR_S = "v100", 360.0, (1, 2, 4, 8), 3600.0
NO_DECAY = 1e-9  # per hour
ELASTIC = {"oasis": "oasis", "dorm": "dorm", "srtf": "srtf"}
RIGID = {"fifo": "fifo", "drf": "drf"}
BASELINES = ("fifo", "drf", "dorm")
NOT_IN_PAPER = ("srtf",)


SMALL = (DrawnSize(100, 8, 8.0), DrawnSize(60, 24, 8.0))  # of one GPU each; of gangs
FULL = (DrawnSize(200, 16, 16.0), SMALL[1])  # more gangs are too many for Dorm's integer program
SLOT_JOBS, NODES = 100, 50  # in its setting: jobs, and nodes of each kind
FEWER_NODES = (25, 12)  # with --full: the same jobs at two and four times the load
TIGHT = "oasis:highest=job:ratio=1e4"  # not in the paper: prices by the value of all slots of a job
SLOT_POLICIES = ("oasis", "fifo", "drf", "rrh", "srtf", TIGHT)
FULL_SLOT_POLICIES = (*SLOT_POLICIES, "dorm")  # its integer programs take some 100 s of CPU time for each seed


def valued(setting: DrawnSize, seed: int, table: ThroughputTable, *, gangs: bool) -> Trace:
    """Generated jobs of half an hour to 17 hours, with values; each of the gangs is from the table."""
    options = GeneratorOptions(
        setting.jobs,
        rate_jobs_per_h=setting.rate_jobs_per_h,
        multi_gpu=gangs,
        durations=Durations(long_share=0.0),
    )
    trace = generate(options, table, np.random.default_rng(seed))
    rng = np.random.default_rng([seed, 1])
    kind = rng.choice(3, size=setting.jobs, p=[0.10, 0.55, 0.35])
    decay_per_h = np.choose(
        kind, [np.full(setting.jobs, NO_DECAY), rng.uniform(0.01, 1, setting.jobs), rng.uniform(4, 6, setting.jobs)]
    )
    rows = zip(
        trace.jobs,
        rng.uniform(1, 100, setting.jobs).tolist(),
        (HOUR_S * rng.uniform(1, 15, setting.jobs)).tolist(),
        (decay_per_h / HOUR_S).tolist(),
        strict=True,
    )
    return replace(trace, jobs=tuple(_worth(job, *values) for job, *values in rows))


def _worth(job: JobSpec, worth: float, time_s: float, decay_per_s: float) -> JobSpec:
    text = f"sigmoid:worth={worth!r}:time_s={time_s!r}:decay_per_s={decay_per_s!r}"
    return replace(job, completion_value=text, rates_steps_per_s={GPU_TYPE: job.rates_steps_per_s[GPU_TYPE]})


def with_sizes(trace: Trace, table: ThroughputTable) -> Trace:
    """The same jobs on all sizes that the table has."""
    return replace(trace, jobs=tuple(_elastic(job, table) for job in trace.jobs))


def _elastic(job: JobSpec, table: ThroughputTable) -> JobSpec:
    rates = {size: table.rates(job.job_type, size).get(GPU_TYPE, 0.0) for size in SIZES if size != job.gpus}
    known = {size: {GPU_TYPE: rate} for size, rate in rates.items() if rate > 0}
    return replace(job, sizes=tuple(sorted([job.gpus, *known])), rates_by_size=known) if known else job


def value_of(trace: Trace, jct_s: Floats) -> Floats:
    """What the end of each job was worth, (J,); 0 if it did not end."""
    parameters = np.array([CompletionValue.parse(job.completion_value).row for job in trace.jobs])
    ended = np.isfinite(jct_s)
    found: Floats = np.zeros(len(trace))
    found[ended] = values_at(parameters[ended], jct_s[ended])
    return found


def compared(traces: list[Trace], gpus: int, size: FigureSize, *, gangs: bool) -> tuple[tuple[Row, ...], Figure]:
    """Total value and jobs that ended under each policy, over all traces, and the ratios of OASiS to the others."""
    cluster, settings = Cluster.parse(f"{GPU_TYPE}:{gpus}"), settings_with(ROUND_S)
    total, ended = dict.fromkeys([*ELASTIC, *RIGID], 0.0), dict.fromkeys([*ELASTIC, *RIGID], 0)
    curves = list[PlotCurve]()
    for trace in traces:
        results = simulated(
            with_sizes(trace, size.table) if gangs else trace, cluster, ELASTIC, settings, size, trace.name
        )
        results |= simulated(trace, cluster, RIGID, settings, size, trace.name)
        for i, (name, result) in enumerate(results.items()):
            jct_s = completion_s(result, trace)
            value = value_of(trace, jct_s)
            total[name] += float(value.sum())
            ended[name] += int(np.isfinite(jct_s).sum())
            if trace is traces[0]:
                finish_h = (trace.arrival_s + jct_s) / HOUR_S
                order = np.argsort(finish_h, kind="stable")[: int(np.isfinite(jct_s).sum())]
                colour = POLICY_COLOURS[i % len(POLICY_COLOURS)]
                curves.append(PlotCurve(name, finish_h[order], np.cumsum(value[order]), colour))
    kind = "of 1 to 8 GPUs" if gangs else "of 1 GPU"
    at = f"{sum(map(len, traces))} jobs {kind} on {gpus}"
    rows = [Row(at, name, "total value", UNKNOWN, value) for name, value in total.items()]
    rows += [Row(at, name, "jobs that end", UNKNOWN, float(count)) for name, count in ended.items()]
    for name in (*BASELINES, *NOT_IN_PAPER):
        rows.append(Row(at, f"oasis / {name}", "ratio of total value", UNKNOWN, total["oasis"] / total[name]))
    name = "value-gangs" if gangs else "value"
    return tuple(rows), Figure(name, f"Total value, {at}", Axis("h"), Axis("value"), tuple(curves))


def slot_policy(name: str, slots: int) -> SlotPolicy:
    """A policy for a run of so many slots, by its name in the table."""
    own: dict[str, SlotPolicy] = {"fifo": FifoWorkers(), "drf": GrowingDrf(), "rrh": RiskReward()}
    return own[name] if name in own else OfPolicy(policy_from(name), slots)


def in_slots(
    seeds: int, policies: Sequence[str] = SLOT_POLICIES, *, jobs: int = SLOT_JOBS, nodes: int = NODES
) -> list[Row]:
    """Total value and jobs that end under each policy in its setting, over all seeds, and the ratios to OASiS."""
    total, ended = dict.fromkeys(policies, 0.0), dict.fromkeys(policies, 0)
    for seed in range(seeds):
        drawn = drawn_jobs(jobs, SLOTS, seed)
        for name in policies:
            ends = run_slots(drawn, nodes, SLOTS, slot_policy(name, SLOTS))
            done = np.flatnonzero(np.isfinite(ends)).tolist()
            total[name] += sum(drawn.value_at(job, float(ends[job])) for job in done)
            ended[name] += len(done)
    at = f"{seeds * jobs} jobs of workers and servers on {nodes} + {nodes} nodes"
    rows = [Row(at, name, "total value", UNKNOWN, value) for name, value in total.items()]
    rows += [Row(at, name, "jobs that end", UNKNOWN, float(count)) for name, count in ended.items()]
    for name in policies[1:]:
        ratio = total["oasis"] / total[name] if total[name] else UNKNOWN
        rows.append(Row(at, f"oasis / {name}", "ratio of total value", UNKNOWN, ratio))
    return rows


def total_values(size: FigureSize) -> Reproduction:
    """OASiS and other policies in its setting, and on generated traces."""
    settings, seeds = (FULL, size.seeds or FULL_SEEDS) if size.is_full else (SMALL, size.seeds or 1)
    rows, figures = in_slots(seeds, FULL_SLOT_POLICIES if size.is_full else SLOT_POLICIES), list[Figure]()
    for nodes in FEWER_NODES if size.is_full else ():
        rows += in_slots(seeds, FULL_SLOT_POLICIES, nodes=nodes)
    for setting, gangs in zip(settings, (False, True), strict=True):
        traces = [valued(setting, seed, size.table, gangs=gangs) for seed in range(seeds)]
        more, figure = compared(traces, setting.gpus, size, gangs=gangs)
        rows += more
        figures.append(figure)
    used = {"clusters": [f"{GPU_TYPE}:{setting.gpus}" for setting in settings], "jobs": [one.jobs for one in settings]}
    used |= {"round_s": ROUND_S, "seeds": seeds, "rates_per_h": [one.rate_jobs_per_h for one in settings]}
    return Reproduction(tuple(rows), tuple(figures), used | {"sizes": SIZES})


TOTAL_VALUES = PublishedFigure(
    "oasis",
    "OASiS against FIFO, DRF, a risk-reward heuristic and Dorm: total value of completed jobs",
    "Bao et al., INFOCOM '18, abstract: it outperforms scheduling algorithms in common use, without a number",
    "its setting is recalled from the paper, and nodes count together; in the other parts jobs are Gavel's, with GPUs"
    " in place of workers and parameter servers",
    total_values,
)
