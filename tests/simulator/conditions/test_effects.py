"""The effects of single conditions against computations by hand, and common random numbers of ablations."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.mechanism.events import LeaseEnded, NodeLost, Outcome
from gavelpy.simulator.conditions import causes
from gavelpy.simulator.conditions.draws import Duration
from gavelpy.simulator.conditions.job_costs import JobCosts
from gavelpy.simulator.conditions.rate_factors import RateFactors
from gavelpy.simulator.conditions.spec import Conditions
from tests.simulator.builders import make_job, make_simulation, make_trace
from tests.simulator.conditions.builders import under

FREE = JobCosts(0.0, 0.0, 0.0, 0.0)


def finishes(conditions: Conditions, trace, cluster: str, seed: int = 0) -> list[float]:
    result = make_simulation(trace, cluster, "fifo", under(conditions), seed=seed).run()
    return [float(each) for each in result.jobs["finish_s"]]


def test_failures_and_repairs_cost_what_renewal_theory_says() -> None:
    mtbf_s, repair_s, start_s, save_s, every_s, work_s = 3600.0, 600.0, 30.0, 20.0, 300.0, 6e5
    conditions = Conditions(
        costs=JobCosts(start_s, 0.0, save_s, 0.0),
        checkpoints=causes.Checkpoints(every_s=every_s),
        nodes=causes.NodeFailures(1.0, Duration(median_s=repair_s / math.exp(0.125), sigma=0.5)),
    )
    trace = make_trace(make_job("a", steps=work_s))

    settings = under(conditions)
    seldom = replace(settings, mechanism=replace(settings.mechanism, round_s=86_400.0))
    result = make_simulation(trace, "v100:1", "fifo", seldom).run()

    cycle_s = every_s + save_s  # must pass without a failure; after one: repair, start, and the cycle again
    again_s = (mtbf_s + repair_s) * math.expm1((start_s + cycle_s) / mtbf_s)
    fails = -math.expm1(-cycle_s / mtbf_s)
    expected_s = work_s / every_s * fails * (mtbf_s + repair_s + again_s)
    hours = result.metrics.gpu_hours
    assert result.jobs["finish_s"].iloc[0] == pytest.approx(expected_s, rel=0.03)
    assert hours["down"] / hours["capacity"] == pytest.approx(repair_s / (mtbf_s + repair_s), rel=0.1)


def test_interference_begins_and_ends_with_each_neighbor() -> None:
    trace = make_trace(*(make_job(name, steps=steps) for name, steps in (("a", 600.0), ("b", 1000.0), ("c", 1500.0))))

    found = finishes(Conditions(FREE, interference=causes.Interference(node_factor=0.8)), trace, "v100:4")

    first_s = 600.0 / 0.8
    second_s = first_s + 400.0 / 0.8  # b still has a neighbor, c
    assert found == pytest.approx([first_s, second_s, second_s + 500.0])  # c is alone at the end


def test_neighbors_are_those_of_a_comparison_of_all_pairs_of_gpus() -> None:
    rng = np.random.default_rng(4)
    conditions = Conditions(interference=causes.Interference(node_factor=0.5))
    factors = RateFactors(conditions, 0, np.zeros(5, dtype=np.int64), [False] * 5, None)
    node_of, rows = rng.permutation(np.repeat(np.arange(5), 3)), np.arange(8)
    cases = [(rng.integers(-1, 8, 15), np.where(rng.random(15) < 0.1, rng.integers(0, 8, 15), -1)) for _ in range(200)]

    found = [factors.of_neighbors(first, second, node_of, rows).tolist() for first, second in cases]

    assert found == [dumb_neighbors(first.tolist(), second.tolist(), node_of.tolist()) for first, second in cases]


def dumb_neighbors(first: list[int], second: list[int], node_of: list[int]) -> list[float]:
    """The factor of each of 8 jobs: 0.5 if another job holds a GPU of one of its nodes."""
    held = [(job, node) for jobs in (first, second) for job, node in zip(jobs, node_of, strict=True) if job >= 0]
    crowded = {job for job, node in held for other, there in held if there == node and other != job}
    return [0.5 if job in crowded else 1.0 for job in range(8)]


def test_jobs_on_different_nodes_do_not_interfere() -> None:
    trace = make_trace(*(make_job(name, gpus=4, steps=900.0) for name in ("a", "b")))

    found = finishes(Conditions(FREE, interference=causes.Interference(node_factor=0.5)), trace, "v100:8")

    assert found == pytest.approx([900.0, 900.0])


def test_a_gang_is_as_slow_as_its_slowest_node_and_factors_multiply() -> None:
    slow = causes.Stragglers(nodes_share=0.5, nodes_factor=0.6, leases_share=1.0, leases_factor=0.5)
    simulation = make_simulation(
        make_trace(make_job("wide", gpus=16, steps=900.0)), "v100:16", "fifo",
        under(Conditions(FREE, stragglers=slow, locality=causes.Locality(nodes_factor=0.9))), seed=1,
    )  # fmt: skip

    finish_s = float(simulation.run().jobs["finish_s"].iloc[0])

    assert finish_s == pytest.approx(900.0 / (0.6 * 0.5 * 0.9))


def test_slow_leases_take_their_share_of_jobs() -> None:
    trace = make_trace(*(make_job(f"j{k}", steps=900.0) for k in range(1000)))

    found = np.array(
        finishes(
            Conditions(FREE, stragglers=causes.Stragglers(leases_share=0.2, leases_factor=0.5)), trace, "v100:1000"
        )
    )

    is_slow = np.isclose(found, 1800.0)
    assert np.isclose(found[~is_slow], 900.0).all()
    assert is_slow.mean() == pytest.approx(0.2, abs=0.04)  # three standard deviations


def outcomes(conditions: Conditions) -> tuple[dict[int, float], list[tuple[float, str]]]:
    """When each job failed for the first time, and when nodes were lost."""
    failed, lost = dict[int, float](), list[tuple[float, str]]()

    def note(event, now_s: float) -> None:
        match event:
            case LeaseEnded(outcome=Outcome.FAILED):
                failed.update({job: failed.get(job, now_s) for job in event.jobs.tolist()})
            case NodeLost():
                lost.append((now_s, str(event.node_id)))

    trace = make_trace(*(make_job(f"j{k}", steps=20_000.0) for k in range(40)))
    make_simulation(trace, "v100:40", "fifo", under(conditions), observers=[note], seed=4).run()
    return failed, lost


def test_ablations_keep_the_random_numbers_of_all_other_causes() -> None:
    failing = causes.JobFailures(early_share=0.5, early=Duration(median_s=600.0, sigma=1.0))
    nodes = causes.NodeFailures(mtbf_h=5.0, repair=Duration(median_s=600.0, sigma=1.0))
    noise = causes.Cancellations(share=0.3, after=15_000.0)
    everything = Conditions(FREE, nodes=nodes, job_failures=failing, cancellations=noise)

    all_failed, all_lost = outcomes(everything)
    failed, _ = outcomes(everything.without("nodes").without("cancellations"))
    _, lost = outcomes(everything.without("job_failures").without("cancellations"))

    both = min(len(all_lost), len(lost))
    assert both > 10
    assert all_lost[:both] == lost[:both]
    assert set(failed) == set(all_failed)  # the same jobs fail
    assert all(all_failed[job] >= failed[job] - 1e-6 for job in failed)  # at the same work, so not earlier
    assert sum(all_failed[job] == failed[job] for job in failed) > 10


def test_free_gpus_under_maintenance_are_closed() -> None:
    conditions = Conditions(FREE, maintenance=(causes.Maintenance(begin_s=1800.0, length_s=900.0),))
    trace = make_trace(make_job("a", steps=3600.0))

    hours = make_simulation(trace, "v100:2", "fifo", under(conditions)).run().metrics.gpu_hours

    assert hours["closed"] == pytest.approx(2 * 900.0 / 3600.0)
    assert hours["idle"] == pytest.approx(1.0)  # the second GPU


def test_fast_leases_are_no_more_useful_than_their_time() -> None:
    conditions = Conditions(FREE, rates=causes.RateVariation(noise_sigma=0.4))
    trace = make_trace(*(make_job(f"j{k}", steps=3600.0) for k in range(20)))

    result = make_simulation(trace, "v100:20", "fifo", under(conditions)).run()

    runs_s = result.jobs["finish_s"].to_numpy(dtype=float)
    useful_s = np.minimum(runs_s, 3600.0)  # at the stated rate, or as fast as it was
    assert (runs_s < 3600.0).any()
    assert result.metrics.efficiency == pytest.approx(useful_s.sum() / runs_s.sum())
    assert result.metrics.gpu_hours["slowdown"] == pytest.approx((runs_s - useful_s).sum() / 3600.0)
