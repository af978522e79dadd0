"""Jobs with several sizes in simulations: their steps against a dumber replay of the events, and who refuses them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, encode
from gavelpy.mechanism.events import AllocationSolved, Event, LeaseEnded, LeaseStarted, Outcome
from gavelpy.mechanism.invariants import check
from gavelpy.model.job import JobSpec, Trace
from gavelpy.model.throughput import Provenance, ThroughputTable
from gavelpy.simulator.settings import Costs, preset
from gavelpy.simulator.simulate import Simulation
from tests.conftest import first_fast
from tests.simulator.builders import make_job, make_settings, make_simulation, make_trace, random_trace

EFFICIENCY = {1: 1.0, 2: 0.9, 4: 0.8, 8: 0.6}
SIZES = (1, 2, 4)


def elastic(job: JobSpec, sizes: tuple[int, ...] = SIZES) -> JobSpec:
    """The same job on each of these sizes, at a rate that grows less than the number of GPUs."""
    per_gpu = {t: rate / (job.gpus * EFFICIENCY[job.gpus]) for t, rate in job.rates_steps_per_s.items()}
    rates = {g: {t: r * g * EFFICIENCY[g] for t, r in per_gpu.items()} for g in sizes if g != job.gpus}
    return replace(job, sizes=sizes, rates_by_size=rates)


def elastic_trace(seed: int, jobs: int = 30) -> Trace:
    """Every second job of a random trace can run on 1, 2 and 4 GPUs."""
    trace = random_trace(seed, jobs)
    return Trace(tuple(elastic(job) if k % 2 else job for k, job in enumerate(trace.jobs)), trace.arrival_s)


def recorded(simulation: Simulation) -> list[tuple[float, Event]]:
    events: list[tuple[float, Event]] = []
    simulation.observers.append(lambda event, now_s: events.append((now_s, event)))
    simulation.observers.append(lambda _event, _now_s: check(simulation.core))
    return events


def sizes_of(event: LeaseStarted) -> dict[int, int]:
    """GPUs of each job that starts."""
    return dict(zip(event.jobs.tolist(), np.diff(event.gpu_offsets).tolist(), strict=True))


def replayed(
    trace: Trace, events: list[tuple[float, Event]], costs: Costs
) -> tuple[dict[int, float], dict[int, float]]:
    """Steps and GPU time of each job, counted from its runs alone: time on so many GPUs, at the rate of that size."""
    steps, gpu_s = dict.fromkeys(range(len(trace)), 0.0), dict.fromkeys(range(len(trace)), 0.0)
    running: dict[int, tuple[float, int, int]] = {}
    types, last = ("v100", "p100", "k80"), dict[int, tuple[int, ...]]()
    node_of = np.repeat([0, 1, 2], [4, 4, 8])
    for now_s, event in events:
        if isinstance(event, LeaseStarted):
            for k, job in enumerate(event.jobs.tolist()):
                gpus = tuple(event.gpus[event.gpu_offsets[k] : event.gpu_offsets[k + 1]].tolist())
                moved = job in last and set(last[job]) != set(gpus)
                last[job] = gpus
                begin_s = now_s + costs.restart_s + costs.migration_s * moved
                running[job] = (begin_s, len(gpus), int(node_of[gpus[0]]))
                gpu_s[job] -= now_s * len(gpus)
        elif isinstance(event, LeaseEnded):
            for job in event.jobs.tolist():
                begin_s, count, kind = running.pop(job)
                spec = trace.jobs[job]
                by_size = {spec.gpus: spec.rates_steps_per_s, **spec.rates_by_size}
                saves_s = costs.checkpoint_s if begin_s < now_s and event.outcome is Outcome.STOPPED else 0.0
                steps[job] += by_size[count].get(types[kind], 0.0) * max(now_s - saves_s - begin_s, 0.0)
                gpu_s[job] += now_s * count
    return steps, gpu_s


@pytest.mark.parametrize("seed", first_fast(range(4), 2))
def test_steps_and_gpu_time_are_those_of_each_run_at_the_rate_of_its_size(seed: int) -> None:
    trace, costs = elastic_trace(seed), Costs(checkpoint_s=5.0, restart_s=20.0, migration_s=10.0)
    settings = make_settings(costs, lease_min_s=180.0 * (seed % 2), move_lag_s=360.0 * (seed // 2))
    simulation = make_simulation(trace, "v100:4,p100:4,k80:8", settings=settings)
    events = recorded(simulation)

    result = simulation.run()

    steps, gpu_s = replayed(trace, events, costs)
    assert np.isfinite(result.history.finish_s[: len(trace)]).all()
    assert list(steps.values()) == pytest.approx([job.steps_total for job in trace.jobs])
    assert list(gpu_s.values()) == pytest.approx(result.history.gpu_s[: len(trace)].tolist())
    starts = [sizes_of(event) for _, event in events if isinstance(event, LeaseStarted)]
    assert {size for start in starts for job, size in start.items() if job % 2} == set(SIZES)


def test_a_lone_job_with_several_sizes_runs_on_that_on_which_it_is_fastest() -> None:
    simulation = make_simulation(make_trace(elastic(make_job("a"))), "v100:4", settings=make_settings())

    result = simulation.run()

    assert result.history.finish_s[0] == pytest.approx(3600.0 / (4 * EFFICIENCY[4]))
    assert result.history.gpu_s[0] == pytest.approx(4 * result.history.finish_s[0])


def test_a_job_that_shrinks_for_another_keeps_its_steps_and_grows_again() -> None:
    trace = make_trace(elastic(make_job("a", steps=36000.0)), make_job("b", gpus=2), arrival_s=[0.0, 1000.0])
    simulation = make_simulation(trace, "v100:4", settings=make_settings(move_lag_s=360.0))
    events = recorded(simulation)

    simulation.run()

    assert [sizes_of(event)[0] for _, event in events if isinstance(event, LeaseStarted)] == [4, 2, 4]
    assert replayed(trace, events, simulation.settings.costs)[0] == pytest.approx({0: 36000.0, 1: 3600.0})


def test_compiled_steps_change_nothing() -> None:
    from gavelpy.simulator.wakeup_kernels import WakeupKernels

    journals = []
    for is_compiled in (False, True):
        simulation = make_simulation(elastic_trace(3, jobs=12), "v100:4,p100:4,k80:8", settings=make_settings())
        simulation.core.jobs.kernels = WakeupKernels() if is_compiled else None
        events = recorded(simulation)
        simulation.run()
        journals.append([encode(event, now_s) for now_s, event in events])

    assert journals[0] == journals[1]


def test_answers_with_sizes_survive_the_journal() -> None:
    simulation = make_simulation(elastic_trace(5, jobs=8), "v100:4,p100:4,k80:8", settings=make_settings())
    events = recorded(simulation)
    simulation.run()

    answers = [(now_s, event) for now_s, event in events if isinstance(event, AllocationSolved)]
    again = [decode(encode(event, now_s))[1] for now_s, event in answers]

    assert any(len(event.sizes) for _, event in answers)
    assert [one.sizes.tolist() for one in again] == [event.sizes.tolist() for _, event in answers]


def test_rates_of_sizes_come_from_the_table_where_a_job_has_none() -> None:
    keys = (("lm", 1), ("lm", 2), ("lm", 4))
    rates, kinds = np.array([[1.0], [1.8], [3.2]]), np.full((3, 1), int(Provenance.MEASURED))
    table = ThroughputTable(keys, ("v100",), rates, kinds, ("", "", ""))
    job = JobSpec(make_job("a").id, 3600.0, job_type="lm", sizes=SIZES)
    simulation = make_simulation(make_trace(job), "v100:4", settings=make_settings(), throughputs=table)
    simulation.engine.throughputs = table

    result = simulation.run()

    assert result.history.finish_s[0] == pytest.approx(3600.0 / 3.2)


@pytest.mark.parametrize(
    ("policy", "name", "said"),
    [("isolated", "default", "policy 'isolated' does not use sizes"), ("fifo", "gavel-osdi20", "queues by GPU type")],
)
def test_a_run_that_cannot_use_sizes_refuses_them_by_name(policy: str, name: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        make_simulation(make_trace(elastic(make_job("a"))), "v100:4", policy, preset(name))
