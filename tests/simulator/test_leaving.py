"""Jobs that are over leave the core's tables during a simulation: the same events and results as if they stayed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.journal.codec import encode, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import Event, JobsArchived
from gavelpy.mechanism.snapshot import snapshot
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.policies.base import PolicyRun
from gavelpy.simulator.compare import engine_for
from gavelpy.simulator.conditions.spec import conditions_of
from gavelpy.simulator.estimation import Learning
from gavelpy.simulator.leaving import OVER_MIN
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.simulator.simulate import Simulation
from gavelpy.traces.generator import Durations, GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs

CLUSTER = Cluster.parse("v100:8,p100:4,k80:8")
NEVER = 10**9
DEFAULT = SimulationSettings()
HARD = replace(
    DEFAULT,
    conditions=conditions_of(
        {
            "nodes": {"mtbf_h": 20, "gpu_mtbf_h": 100, "repair": 1200, "gpu_repair": 3000},
            "spot": {"share": 0.5, "every_h": 1, "notice_s": 120},
            "job_failures": {"early_share": 0.2},
            "cancellations": {"share": 0.3, "after": 2_000},
            "trials": {"most_s": 900, "nodes": ["k80-1"]},
        }
    ),
)
APART = replace(DEFAULT, mechanism=replace(DEFAULT.mechanism, consolidate_s=3600.0))
Recorded = list[tuple[Event, float]]


def small_trace(count: int = 40) -> Trace:
    lengths = Durations(short=(1.0, 2.0), long=(2.0, 2.5))
    options = GeneratorOptions(jobs=count, mean_interarrival_s=300.0, multi_gpu=True, durations=lengths)
    return generate(options, published_throughputs(), np.random.default_rng(4))


def simulated(
    policy: str, settings: SimulationSettings, over_min: int, *, learns: bool = False
) -> tuple[Recorded, Simulation]:
    """The events of a run, and the run; its result is in `result`."""
    trace, events = small_trace(), Recorded()
    estimation = Learning().begin(trace, CLUSTER.gpu_types, 0) if learns else None
    simulation = Simulation(
        trace,
        CLUSTER,
        engine_for(PolicyRun(policy), settings, None, estimation, 0.0),
        settings,
        observers=[lambda event, now_s: events.append((event, now_s))],
        estimation=estimation,
        over_min=over_min,
    )
    return events, simulation


@pytest.mark.parametrize(
    ("policy", "settings", "learns"),
    [
        ("fifo", HARD, False),
        pytest.param("max_min_fairness", HARD, False, marks=pytest.mark.slow),
        pytest.param("max_min_fairness", DEFAULT, True, marks=pytest.mark.slow),
        ("fifo", APART, False),
    ],
)
def test_jobs_that_leave_change_no_event_and_no_result(policy: str, settings: SimulationSettings, learns: bool) -> None:
    stayed, whole = simulated(policy, settings, NEVER, learns=learns)
    left, slim = simulated(policy, settings, 0, learns=learns)

    ours, theirs = whole.run(), slim.run()

    assert [encode(*one) for one in stayed] == [encode(*one) for one in left if not isinstance(one[0], JobsArchived)]
    assert sum(isinstance(event, JobsArchived) for event, _ in left) > 2
    assert slim.core.jobs.count < 0.5 * whole.core.jobs.count == 0.5 * len(whole.trace)
    assert ours.jobs.equals(theirs.jobs)
    assert dict(ours.reasons) == dict(theirs.reasons)
    assert ours.metrics.avg_fragmentation_delay_s == theirs.metrics.avg_fragmentation_delay_s


def test_jobs_that_others_come_after_stay() -> None:
    first, second, *others = small_trace().jobs
    trace = replace(small_trace(), jobs=(first, replace(second, after_ok=(0,)), *others))
    run = engine_for(PolicyRun("fifo"), DEFAULT)

    simulation = Simulation(trace, CLUSTER, run, DEFAULT, over_min=0)
    simulation.run()

    assert simulation.core.jobs.count == len(trace)


def test_a_core_replays_the_events_of_a_run_that_jobs_leave() -> None:
    events, simulation = simulated("fifo", HARD, 0)
    simulation.run()

    core = SchedulerCore()
    for event, now_s in events:
        core.handle(event, now_s)

    assert any(isinstance(event, JobsArchived) for event, _ in events)
    assert encode_state(snapshot(core)) == encode_state(snapshot(simulation.core))


def test_few_jobs_leave_no_table() -> None:
    events, simulation = simulated("fifo", DEFAULT, OVER_MIN)
    simulation.run()

    assert not any(isinstance(event, JobsArchived) for event, _ in events)
