"""Co-located jobs in virtual time, against computations by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.journal.history import History
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import Event
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.snapshot import VERSION, snapshot
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobSpec, Trace
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.base import policy_named
from gavelpy.simulator.compare import PolicyRun, compare
from gavelpy.simulator.estimation import Learning
from gavelpy.simulator.settings import Costs
from gavelpy.simulator.simulate import Simulation
from tests.conftest import first_fast
from tests.simulator.builders import NO_COSTS, make_job, make_settings, make_trace, random_trace, timeless

TYPES = ("v100", "p100", "k80")


def make_table(
    kept: Mapping[tuple[str, str], tuple[float, float]], types: tuple[str, ...] = ("v100",)
) -> ThroughputTable:
    """Single-GPU job types at 1 step/s on every type, and the fractions of it that two co-located jobs reach."""
    names = sorted({name for pair in kept for name in pair})
    rates = np.ones((len(names), len(types)))
    rows = np.array([[names.index(one), names.index(other)] for one, other in kept], dtype=np.int64)
    shares = np.repeat(np.array(list(kept.values()))[:, :, None], len(types), axis=2)
    keys = tuple((name, 1) for name in names)
    return ThroughputTable(keys, types, rates, np.zeros(rates.shape, dtype=np.int64), ("",) * len(keys), rows, shares)


def job(name: str, kind: str, steps: float) -> JobSpec:
    return replace(make_job(name, steps=steps), job_type=kind)


def make_packed(
    trace: Trace, table: ThroughputTable, cluster: str = "v100:1", costs: Costs = NO_COSTS, **options: Any
) -> Simulation:  # Any: keyword arguments of Simulation
    """A simulation of max-min fairness with packing that has not started."""
    engine = Engine(policy_named("max_min_fairness"), throughputs=table)
    where = Cluster.parse(cluster, price_usd_per_gpu_h={"v100": 3.6})
    return Simulation(trace, where, engine, make_settings(costs, packing=True), **options)


GOOD = {("ant", "bee"): (0.8, 0.6)}  # co-located they do 1.4 times as much


def test_two_jobs_share_a_gpu_at_the_rates_they_keep() -> None:
    """Co-located until ant's 800 steps at 0.8 are done at 1000; bee then has 400 of 1000 left, alone."""
    trace = make_trace(job("a", "ant", 800.0), job("b", "bee", 1000.0))

    result = make_packed(trace, make_table(GOOD)).run()

    assert result.jobs["finish_s"].to_dict() == pytest.approx({"a": 1000.0, "b": 1400.0})
    assert result.metrics.preemptions == 0


def test_jobs_that_gain_nothing_take_turns() -> None:
    trace = make_trace(job("a", "ant", 800.0), job("b", "bee", 1000.0))

    result = make_packed(trace, make_table({("ant", "bee"): (0.5, 0.4)})).run()

    assert not len(result.sharing)
    assert result.metrics.makespan_s == pytest.approx(1800.0)


def test_a_job_runs_at_its_own_rate_until_its_partner_has_loaded() -> None:
    """b arrives at 100 and triggers a request; it joins a at the end of the round, at 360, and has loaded at 375."""
    trace = make_trace(job("a", "ant", 1000.0), job("b", "bee", 1000.0), arrival_s=[0.0, 100.0])

    result = make_packed(trace, make_table(GOOD), costs=Costs(0.0, 15.0, 0.0)).run()

    # a: 15 to 375 at 1, then 640 steps at 0.8 are done at 1175; b has done 480 of 1000 by then
    assert result.jobs["finish_s"].to_dict() == pytest.approx({"a": 1175.0, "b": 1175.0 + 520.0})


def test_a_shared_gpu_is_used_and_paid_once() -> None:
    trace = make_trace(job("a", "ant", 800.0), job("b", "bee", 1000.0))

    result = make_packed(trace, make_table(GOOD), "v100:2").run()
    alone = make_packed(trace, make_table(GOOD)).run()

    assert result.metrics.utilization <= 1.0
    assert alone.metrics.utilization == pytest.approx(1.0)
    assert alone.metrics.cost_usd == pytest.approx(1400.0 * 3.6 / 3600)
    assert alone.utilization["v100"].max() == pytest.approx(1.0)


def test_frames_say_who_was_beside_whom() -> None:
    trace = make_trace(job("a", "ant", 800.0), job("b", "bee", 1000.0))

    result = make_packed(trace, make_table(GOOD)).run()

    assert result.sharing.to_dict("records") == [
        {"job": "a", "partner": "b", "gpu_type": "v100", "gpus": 1, "start_s": 0.0, "end_s": pytest.approx(1000.0)}
    ]
    assert (result.leases["end_s"] - result.leases["start_s"]).sum() == pytest.approx(2400.0)
    received_s = result.shares.set_index("job")["received_s"]
    assert received_s.to_dict() == pytest.approx({"a": 1000.0, "b": 1400.0})


def test_jobs_that_were_never_measured_together_are_not_packed() -> None:
    trace = make_trace(job("a", "ant", 800.0), job("b", "crab", 1000.0))

    result = make_packed(trace, make_table(GOOD)).run()

    assert not len(result.sharing)


def test_a_table_without_pairs_is_refused() -> None:
    table = make_table(GOOD)
    bare = ThroughputTable(table.keys, table.gpu_types, table.rate_steps_per_s, table.provenance, table.source)

    with pytest.raises(InvalidInput, match="throughputs must hold rates of pairs"):
        make_packed(make_trace(job("a", "ant", 1.0)), bare).run()


# Many jobs -------------------------------------------------------------------------------------------------------


KINDS = ("ant", "bee", "crab")
MANY = {
    (one, other): (0.9 - 0.1 * i, 0.9 - 0.1 * k)
    for i, one in enumerate(KINDS)
    for k, other in enumerate(KINDS)
    if i <= k
}


def many(seed: int, jobs: int = 25) -> Trace:
    trace = random_trace(seed, jobs=jobs)
    named = tuple(
        replace(spec, job_type=KINDS[n % len(KINDS)] if spec.gpus == 1 else "gang") for n, spec in enumerate(trace.jobs)
    )
    return Trace(named, trace.arrival_s)


def make_many(seed: int, **options: Any) -> Simulation:  # Any: keyword arguments of Simulation
    return make_packed(many(seed), make_table(MANY, TYPES), "v100:4,p100:4,k80:8", Costs(), **options)


@pytest.mark.parametrize("seed", first_fast(range(4), 2))
def test_every_promise_holds_after_every_event(seed: int) -> None:
    simulation = make_many(seed)
    handle = simulation.core.handle

    def checked(event: Any, now_s: float) -> Any:
        commands = handle(event, now_s)
        check(simulation.core)
        return commands

    simulation.core.handle = checked  # type: ignore[method-assign]  # the test looks over the core's shoulder
    result = simulation.run()

    assert len(result.sharing), f"seed {seed}"
    assert result.metrics.jobs_unfinished == 0, f"seed {seed}"
    assert result.metrics.utilization <= 1.0


@pytest.mark.parametrize("seed", range(4))
def test_every_job_does_its_steps_in_the_time_it_had(seed: int) -> None:
    """Oracle: steps integrated over the frames; co-located jobs run at their fractions, and restarts cost time."""
    simulation = make_packed(many(seed), make_table(MANY, TYPES), "v100:4,p100:4,k80:8")

    result = simulation.run()

    assert steps_by_frames(result, many(seed)) == pytest.approx(
        [spec.steps_total for spec in many(seed).jobs], rel=1e-6
    )


def steps_by_frames(result: Any, trace: Trace) -> list[float]:  # Any: frames
    specs = {spec.id: spec for spec in trace.jobs}
    done = dict.fromkeys(specs, 0.0)
    for stay in result.leases.itertuples():
        done[stay.job] += (stay.end_s - stay.start_s) * specs[stay.job].rates_steps_per_s[stay.gpu_type]
    for time in result.sharing.itertuples():
        kinds = specs[time.job].job_type, specs[time.partner].job_type
        kept = MANY[kinds] if kinds in MANY else MANY[kinds[::-1]][::-1]
        for name, part in zip((time.job, time.partner), kept, strict=True):
            done[name] -= (1 - part) * (time.end_s - time.start_s) * specs[name].rates_steps_per_s[time.gpu_type]
    return [done[spec.id] for spec in trace.jobs]


def test_a_journal_of_a_packed_run_gives_the_same_state_and_history() -> None:
    records: list[bytes] = []
    simulation = make_many(5, observers=[lambda event, now_s: records.append(encode(event, now_s))])
    result = simulation.run()

    core, history = SchedulerCore(), History()
    for now_s, event in map(decode, records):
        history.apply(event, now_s)
        core.handle(event, now_s)

    assert encode_state(snapshot(core)) == encode_state(snapshot(simulation.core))
    assert decode_state(encode_state(snapshot(core)))["version"] == VERSION
    assert history.cost_usd() == result.metrics.cost_usd


def test_a_journal_of_a_packed_run_cut_anywhere_ends_the_same() -> None:
    events: list[tuple[float, Event]] = []
    whole = timeless(make_many(6, observers=[lambda event, now_s: events.append((now_s, event))]).run())

    ends = [timeless(make_many(6, recorded=events[:cut]).run()) for cut in range(0, len(events), len(events) // 5)]

    assert ends == [whole] * len(ends)


def test_packing_shortens_the_queue() -> None:
    trace, cluster, table = many(7, jobs=40), Cluster.parse("v100:2,p100:2,k80:4"), make_table(MANY, TYPES)

    packed, alone = (
        compare(trace, cluster, [PolicyRun("max_min_fairness")], settings=make_settings(packing=on), throughputs=table)
        for on in (True, False)
    )

    times = [found["max_min_fairness"].metrics.avg_jct_s for found in (packed, alone)]
    assert times[0] < 0.95 * times[1]


def test_a_scheduler_that_is_told_nothing_of_pairs_learns_what_gains() -> None:
    """bee is almost stopped when co-located with ant: after a while the pair no longer runs, and all jobs finish."""
    bad = MANY | {("ant", "bee"): (0.05, 0.05)}
    trace = make_trace(*(job(f"j{n}", KINDS[n % 2], 20_000.0) for n in range(4)))

    found = compare(
        trace,
        Cluster.parse("v100:2"),
        [PolicyRun("max_min_fairness")],
        settings=make_settings(packing=True),
        throughputs=make_table(bad),
        learning=Learning(claims_off=3.0),
    )["max_min_fairness"]

    kinds = {spec.id: spec.job_type for spec in trace.jobs}
    apart = found.sharing["job"].map(kinds) != found.sharing["partner"].map(kinds)
    assert found.metrics.jobs_unfinished == 0
    assert (found.sharing["end_s"] - found.sharing["start_s"])[apart].sum() < 0.1 * found.metrics.makespan_s


def test_a_pair_that_does_not_fit_is_given_up() -> None:
    trace = make_trace(job("a", "ant", 3000.0), job("b", "bee", 3000.0))

    found = compare(
        trace,
        Cluster.parse("v100:1"),
        [PolicyRun("max_min_fairness")],
        settings=make_settings(packing=True),
        throughputs=make_table({("ant", "bee"): (0.0, 0.0)}),
        learning=Learning(),
    )["max_min_fairness"]

    assert found.metrics.jobs_unfinished == 0
    assert (found.sharing["end_s"] - found.sharing["start_s"]).sum() <= 2 * 360.0


def test_probes_of_pairs_run_as_leases_and_are_counted() -> None:
    """The slowdowns of pairs of three kinds are unknown; the valuable ones are measured."""
    kinds = ("ant", "bee", "crab")
    names = [(one, other) for n, one in enumerate(kinds) for other in kinds[n:]]
    table = make_table(dict.fromkeys(names, (0.55, 0.5)) | {("ant", "crab"): (0.9, 0.9)}, TYPES)
    trace = make_trace(*(job(f"j{n}", kinds[n % 3], 20_000.0) for n in range(9)))
    profiled, plain = (
        compare(
            trace,
            Cluster.parse("v100:2,p100:2,k80:2"),
            [PolicyRun("max_min_fairness")],
            settings=make_settings(packing=True),
            throughputs=table,
            learning=Learning(profile_gpu_s=budget_s),
        )["max_min_fairness"]
        for budget_s in (800.0, 0.0)
    )

    assert profiled.metrics.probes_pairs > 0
    assert 0.0 < profiled.metrics.probes_gpu_s <= 800.0 * profiled.metrics.solves
    assert profiled.metrics.jobs_unfinished == 0
    assert (plain.metrics.probes_alone, plain.metrics.probes_pairs, plain.metrics.probes_gpu_s) == (0, 0, 0.0)


@pytest.mark.parametrize("budget_s", [-1.0, float("inf"), float("nan")])
def test_a_budget_that_means_nothing_is_refused(budget_s: float) -> None:
    with pytest.raises(InvalidInput, match="profile_gpu_s must be"):
        Learning(profile_gpu_s=budget_s)


@pytest.mark.parametrize("wrong", [0.5, 1e6, float("nan")])
def test_claims_that_are_off_by_no_factor_are_refused(wrong: float) -> None:
    with pytest.raises(InvalidInput, match="claims_off must be 0"):
        Learning(wrong)
