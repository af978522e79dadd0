"""Capacity: against a scan of loads, on curves with noise, and where the target is met nowhere or everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.sweeps.capacity import Capacity, capacity, first_missed, full_load
from gavelpy.sweeps.questions import capacity_sentences
from gavelpy.sweeps.trials import NEVER, Metric, Target, Trials, at_load, resampled_trace
from tests.cli.commands import Gavel

BASE: dict[str, Any] = {"generate": 12, "cluster": "v100:2,k80:2", "policy": "fifo"}
TARGET = Target.parse("average_jct_h<=10")


class CurveTrials(Trials):
    """Trials whose metric is a function of load and seed, instead of simulations."""

    def __init__(self, curve: Callable[[float, int], float], seeds: int = 6) -> None:
        super().__init__({"trace": "none"}, seeds)
        self.curve = curve

    def values(self, metric: Metric, changes: Sequence[Mapping[str, Any]]) -> Any:
        return np.array([[self.curve(change["rate_per_h"], seed) for seed in self.seeds] for change in changes])


def search(curve: Callable[[float, int], float], **options: Any) -> Capacity:
    return capacity({}, TARGET, rates=(1.0, 64.0), trials=CurveTrials(curve), **options)


def test_capacity_is_that_of_a_scan_over_loads() -> None:
    target = Target.parse("average_jct_h<=20")
    found = capacity(BASE, target, seeds=2, trials=Trials(BASE, 2, jobs=1))

    with Trials(BASE, 2, jobs=1) as trials:
        loads = np.geomspace(found.points[0].rate_per_h, found.points[-1].rate_per_h, 16)
        means = trials.values(target.metric, [{"rate_per_h": load} for load in loads.tolist()]).mean(axis=1)
    scanned = first_missed(loads, means[None], target)[0]
    assert found.highest_met == pytest.approx(scanned, rel=0.1)
    assert found.lowest_missed == pytest.approx(scanned, rel=0.1)
    assert found.highest_met < found.lowest_missed <= 1.05 * found.highest_met


def test_search_ends_within_the_tolerance_of_a_known_curve() -> None:
    found = search(lambda rate, seed: rate / 2, tolerance=0.01)

    assert found.highest_met <= 20 < found.lowest_missed < 1.01 * found.highest_met
    assert (found.low, found.high) == (pytest.approx(20, rel=0.01), pytest.approx(20, rel=0.01))


def test_interval_covers_the_seeds() -> None:
    found = search(lambda rate, seed: rate / (2 + 0.2 * (seed - 2.5)))

    assert 15 < found.low < 19 < 20 < found.high < 25


def test_target_that_is_met_nowhere_or_everywhere_is_named_with_the_end() -> None:
    nowhere, everywhere = search(lambda rate, seed: 50.0 + seed), search(lambda rate, seed: 1.0)

    assert math.isnan(nowhere.highest_met)
    assert capacity_sentences(nowhere) == [
        "average_jct_h <= 10 is met nowhere from 1 to 64 jobs/h: at the lowest load it is 52.5 [50.67, 54.33]."
    ]
    assert math.isnan(everywhere.lowest_missed)
    assert "met everywhere from 1 to 64 jobs/h" in capacity_sentences(everywhere)[0]


def test_noise_that_is_not_monotone_is_named_as_noise() -> None:
    def noisy(rate: float, seed: int) -> float:
        return 10.1 + (seed - 2.5) if 7 < rate < 9 else 9.9 + (2.5 - seed) if 10 < rate < 20 else rate

    found = search(noisy)

    assert found.exceptions == () or all(is_noise for *_, is_noise in found.exceptions)
    assert found.highest_met < 9


def test_metric_that_falls_with_load_beyond_noise_is_named() -> None:
    found = search(lambda rate, seed: 5.0 if rate < 5 or 10 < rate < 20 else 20.0 + seed, tolerance=0.5)

    assert [(missed < met, is_noise) for missed, met, is_noise in found.exceptions] in ([], [(True, False)])
    assert found.highest_met < 20


def test_jobs_that_never_finish_miss_any_target() -> None:
    metric = Metric.parse("average_jct_h")

    assert metric.of({"avg_jct_s": 3600.0, "jobs_unfinished": 0}) == 1.0
    assert metric.of({"avg_jct_s": 3600.0, "jobs_unfinished": 1}) == NEVER
    assert Metric.parse("utilization").of({"utilization": 0.9, "jobs_unfinished": 1}) == -NEVER


@pytest.mark.parametrize(
    "text", ["average_jct_h", "average_jct_h<10", "average_jct_h<=x", "speed<=1", "rounds<=1", "<=1"]
)
def test_target_that_is_none_is_one_line(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^--target must "):
        Target.parse(text)


def test_trace_at_another_load_keeps_its_jobs_and_its_rhythm() -> None:
    jobs = tuple(JobSpec(JobId(str(i)), 10.0 + i) for i in range(4))
    trace = Trace(jobs, np.array([100.0, 130.0, 130.0, 190.0]), cancelled_s=np.array([np.inf, 150.0, np.inf, np.inf]))

    scaled = at_load(trace, 60.0)

    assert scaled.jobs == jobs
    assert scaled.arrival_s.tolist() == [0.0, 60.0, 60.0, 180.0]
    assert scaled.cancelled_s.tolist() == [np.inf, 80.0, np.inf, np.inf]
    with pytest.raises(InvalidInput, match="must have arrivals at several times"):
        at_load(Trace(jobs[:1], np.zeros(1)), 60.0)


def test_resampled_trace_has_jobs_of_the_trace_at_its_times() -> None:
    jobs = tuple(JobSpec(JobId(str(i)), 10.0 + i) for i in range(50))
    trace = Trace(jobs, np.arange(50.0))

    drawn = resampled_trace(trace, 3)

    assert drawn.arrival_s.tolist() == trace.arrival_s.tolist()
    assert {job.steps_total for job in drawn.jobs} < {job.steps_total for job in jobs}
    assert drawn.jobs == resampled_trace(trace, 3).jobs != resampled_trace(trace, 4).jobs


def test_full_load_fills_the_cluster() -> None:
    base = {**BASE, "generate": 200, "cluster": "v100:4"}
    with Trials(base, 1) as trials:
        trace, load = trials.trace(), full_load(trials)

    hours = sum(job.steps_total / job.rates_steps_per_s["v100"] for job in trace.jobs) / 3600
    assert load == pytest.approx(4 * 200 / hours)


def test_command_answers_for_a_trace(gavel: Gavel) -> None:
    rows = "".join(f"{i},{i * 100},36000,1,10,5\n" for i in range(6))
    trace = gavel.file("t.csv", "id,arrival_s,steps_total,gpus,rate_v100,rate_k80\n" + rows)
    command = ("capacity", trace, "--cluster", "v100:1,k80:1", "--policy", "fifo", "--seeds", "2", "--jobs", "1")

    table = gavel(*command, "--target", "average_jct_h<=2")
    found = gavel(*command, "--target", "average_jct_h<=2", "-o", "json").json

    assert table.code == 0
    assert "The cluster sustains" in table.out
    assert found["state"] == "found"
    assert found["points"][0]["is_met"]
    assert found["parameters"]["sha256"] == {"trace": sha256(Path(trace).read_bytes()).hexdigest()}
    assert found["parameters"]["trace_provenance"]["format"] == "csv"
    assert found["parameters"]["seeds"] == [0, 1]
    assert gavel(*command, "--target", "x").code == 2
    assert gavel(*command[:-4], "--policy", "fifo,las", "--target", "average_jct_h<=2").code == 2
    assert gavel(*command, "--target", "average_jct_h<=2", "--rates", "5:1").err.startswith(
        "error: --rates must be LOW:"
    )


def test_a_metric_that_needs_a_second_run_gets_it(tmp_path: Path) -> None:
    assert Metric.parse("ftf_worst").options == {"fairness": True}
