"""Jobs whose rates change at given steps: by hand, against the fluid ideal, and where they lose steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavelpy.journal.codec import encode
from gavelpy.mechanism.events import Event, JobSubmitted, NodeJoined, NodeLost, ThroughputEstimated
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, NodeId, Trace
from gavelpy.model.job_phases import JobPhase, Phases, mean_rates
from gavelpy.policies.base import policy_named
from gavelpy.simulator.estimation import Learning
from gavelpy.simulator.ideal import IdealSimulation
from gavelpy.simulator.metrics import SimulationResult
from gavelpy.simulator.settings import Costs, SimulationSettings, preset
from tests.simulator.builders import make_job, make_settings, make_simulation, make_trace, run
from tests.simulator.conditions.builders import EVERYTHING

NAME = JobId("a")
FACTORS = (1.0, 4.0, 0.5)


def phases(*from_and_rate: tuple[float, float]) -> Phases:
    return tuple(JobPhase(step, {"v100": rate}) for step, rate in from_and_rate)


def one_job(own: Phases, steps: float = 1_000.0, gpus: int = 1) -> Trace:
    """A trace of one job, whose rate is the mean over its phases."""
    trace = make_trace(make_job(NAME, steps=steps, gpus=gpus, rates=mean_rates(own, steps)))
    return replace(trace, phases={NAME: own})


def random_phases(seed: int, jobs: int) -> Trace:
    """Jobs with up to three phases on two GPU types, some of which arrive later."""
    rng = np.random.default_rng(seed)
    specs, own = [], dict[JobId, Phases]()
    for k in range(jobs):
        steps, speed = float(rng.uniform(1_000, 4_000)), rng.uniform(0.5, 2.0)
        parts = np.sort(rng.uniform(0.1, 0.9, 2)) * steps
        rates = [{"v100": speed * f, "k80": speed * f * rng.uniform(0.2, 0.8)} for f in rng.permutation(FACTORS)]
        found = tuple(JobPhase(at, rate) for at, rate in zip([0.0, *parts.tolist()], rates, strict=True))
        specs.append(make_job(f"j{k}", steps=steps, rates=mean_rates(found, steps)))
        own[specs[-1].id] = found
    arrival_s = np.sort(np.where(np.arange(jobs) < jobs // 2, 0.0, rng.uniform(0, 4_000, jobs)))
    return Trace(tuple(specs), arrival_s, phases=own)


def finishes(result: SimulationResult) -> list[float]:
    found: list[float] = result.history.finish_s[: result.history.count].tolist()
    return found


TWO = phases((0.0, 1.0), (600.0, 4.0))  # 600 s, then 100 s


def estimates(trace: Trace, **options: object) -> list[tuple[float, float]]:
    """When the scheduler receives rates, and the first of them."""
    found: list[tuple[float, float]] = []

    def observe(event: Event, now_s: float) -> None:
        if isinstance(event, ThroughputEstimated):
            found.append((now_s, float(event.rates_steps_per_s[0, 0])))

    make_simulation(trace, observers=[observe], **options).run()
    return found


@pytest.mark.parametrize("round_s", [30.0, 100.0, 360.0, 5_000.0])
def test_a_job_takes_as_long_as_its_phases(round_s: float) -> None:
    result = run(one_job(TWO), settings=make_settings(round_s=round_s))

    assert finishes(result) == pytest.approx([700.0])
    assert result.metrics.efficiency == pytest.approx(1.0)


@pytest.mark.parametrize("round_s", [60.0, 360.0])
def test_the_scheduler_receives_the_rate_of_a_phase_when_it_begins(round_s: float) -> None:
    trace = one_job(phases((0.0, 1.0), (300.0, 2.0), (700.0, 0.5)))

    assert estimates(trace, settings=make_settings(round_s=round_s)) == [(300.0, 2.0), (500.0, 0.5)]


def test_a_job_is_submitted_with_the_rates_of_its_first_phase() -> None:
    submitted: list[dict[str, float]] = []
    simulation = make_simulation(one_job(TWO))
    simulation.observers.append(
        lambda event, _: (
            submitted.append(dict(event.spec.rates_steps_per_s)) if isinstance(event, JobSubmitted) else None
        )
    )
    simulation.run()

    assert submitted == [{"v100": 1.0}]


def test_starts_and_checkpoints_come_on_top_of_the_phases() -> None:
    """Two equal jobs on one GPU: each start costs 10 s, each stop 5 s."""
    own = phases((0.0, 1.0), (400.0, 2.0))
    job = make_job("a", rates=mean_rates(own, 1_000.0), steps=1_000.0)
    trace = replace(make_trace(job, replace(job, id=JobId("b"))), phases={job.id: own, JobId("b"): own})

    result = run(trace, settings=make_settings(Costs(checkpoint_s=5.0, restart_s=10.0, migration_s=0.0)))

    starts = 2 + int(result.history.preemptions[: result.history.count].sum())
    assert starts > 2
    assert result.metrics.makespan_s == pytest.approx(2 * 700.0 + 10.0 * starts + 5.0 * (starts - 2))


def test_whole_steps_are_counted_within_each_phase() -> None:
    """Rounds of the original end with a whole step; 10 steps of 36 s, then 20 of 18 s."""
    settings = preset("gavel-osdi20")
    trace = one_job(phases((0.0, 1 / 36), (10.0, 1 / 18)), 30.0)

    result = run(trace, settings=replace(settings, mechanism=replace(settings.mechanism, round_s=100.0)))

    assert finishes(result) == pytest.approx([720.0], rel=0.2)
    assert result.metrics.jobs_unfinished == 0


def test_a_job_that_loses_steps_is_back_in_its_earlier_phase() -> None:
    """The node dies at 650 s, in the second phase; nothing was saved, so all is repeated from 1,000 s on."""
    trace, node = one_job(TWO), NodeId("v100-0")
    lost, back = (650.0, NodeLost(node)), (1_000.0, NodeJoined(NodeId("new"), "v100", 1))

    found = estimates(trace, node_events=[lost, back])
    result = run(trace, node_events=[lost, back])

    assert [rate for _, rate in found] == [4.0, 1.0, 4.0]
    assert finishes(result) == pytest.approx([1_700.0])


def test_an_estimator_learns_the_rates_of_phases_from_progress() -> None:
    trace, cluster = one_job(phases((0.0, 1.0), (2_000.0, 4.0)), 14_000.0), Cluster.parse("v100:1")
    learning = Learning().begin(trace, cluster.gpu_types, 0)
    simulation = make_simulation(trace, cluster, estimation=learning)
    rates: list[float] = []
    simulation.observers.append(
        lambda event, _: (
            rates.append(float(event.rates_steps_per_s[0, 0])) if isinstance(event, ThroughputEstimated) else None
        )
    )

    result = simulation.run()

    assert finishes(result) == pytest.approx([2_000.0 + 3_000.0])
    assert rates[0] == pytest.approx(1.0, rel=0.05)
    assert rates[-1] == pytest.approx(4.0, rel=0.05)


def test_one_phase_is_as_none() -> None:
    rates = {"v100": 1.5}
    plain = make_trace(make_job("a", rates=rates), make_job("b", rates=rates), arrival_s=[0.0, 50.0])
    phased = replace(plain, phases={job.id: (JobPhase(0.0, rates),) for job in plain.jobs})

    assert journal(phased) == journal(plain)


def journal(trace: Trace) -> list[bytes]:
    found: list[bytes] = []
    make_simulation(trace, observers=[lambda event, now_s: found.append(encode(event, now_s))]).run()
    return found


@pytest.mark.parametrize(
    ("policy", "round_s", "within"),
    [("max_min_fairness", 10.0, 0.02), pytest.param("min_makespan", 5.0, 0.005, marks=pytest.mark.slow)],
)
def test_short_rounds_deliver_the_fluid_ideal(policy: str, round_s: float, within: float) -> None:
    trace, cluster = random_phases(3, 4), "v100:1,k80:1"
    fluid = IdealSimulation(trace, Cluster.parse(cluster), policy_named(policy), make_settings())

    ideal_s = fluid.run(np.ones(len(trace), dtype=np.bool_))
    found = run(trace, cluster, policy, settings=make_settings(round_s=round_s))

    assert finishes(found) == pytest.approx(ideal_s.tolist(), rel=within)


@given(
    parts=st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.05, 20.0)), min_size=1, max_size=5),
    round_s=st.floats(5.0, 400.0),
    restart_s=st.floats(0.0, 4.0),
)
@settings(max_examples=10, deadline=None)
def test_steps_are_conserved_over_any_phases(
    parts: Sequence[tuple[float, float]], round_s: float, restart_s: float
) -> None:
    """`run` checks conservation; a job alone needs the time of its phases and one start."""
    ends = np.cumsum([part for part, _ in parts]) * 200.0
    begins = [0.0, *ends[:-1].tolist()]
    own = phases(*zip(begins, [rate for _, rate in parts], strict=True))
    costs = Costs(checkpoint_s=0.0, restart_s=restart_s, migration_s=0.0)

    result = run(one_job(own, float(ends[-1])), settings=make_settings(costs, round_s=round_s))

    needed_s = sum(part * 200.0 / rate for part, rate in parts)
    assert finishes(result) == pytest.approx([needed_s + restart_s])


def test_conservation_holds_for_many_jobs_with_costs() -> None:
    result = run(random_phases(5, 10), "v100:2,k80:2", settings=SimulationSettings())

    assert result.metrics.jobs_unfinished == 0


def test_conservation_holds_where_much_goes_wrong() -> None:
    result = run(random_phases(8, 8), "v100:3,k80:2", settings=SimulationSettings(conditions=EVERYTHING), seed=8)

    assert 0 < result.metrics.jobs_unfinished < 8
