"""Sia's workloads as elastic jobs, by hand, and its table on a few jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.reproduction.published import FigureSize
from gavelpy.reproduction.sia import (
    GAVEL,
    JCT,
    POLICIES,
    PUBLISHED,
    RIGID,
    SIA,
    SLOWDOWN,
    START_S,
    TAIL,
    UNAWARE,
    cluster,
    sia_settings,
)
from gavelpy.reproduction.sia_goodput import elastic, rigid, segments, slowed
from gavelpy.traces.reader import read_trace
from gavelpy.traces.sia import SiaProfiles

PROFILES = {
    # 8 samples take 1 s, and 0.6 s on two GPUs; 16 take 1.5 s, and 0.8 s
    "toy-placements-aws.csv": "placement,local_bsz,step_time,sync_time\n1,8,1,0\n1,16,1.5,0\n2,4,0.6,0\n2,8,0.8,0\n",
    # a large batch is worth more at the end: 40 and 20 iterations for each half, where small ones need 50 and 50
    "toy-validation-8.csv": "progress,iteration,metric,grad_sqr,grad_var\n50,50,0,1,1\n100,100,0,1,1\n",
    "toy-validation-16.csv": "progress,iteration,metric,grad_sqr,grad_var\n50,40,0,1,1\n100,60,0,1,1\n",
}


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "workloads").mkdir()
    for name, text in PROFILES.items():
        (tmp_path / "profiles" / name).write_text(text, encoding="utf-8")
    path = tmp_path / "workloads" / "toy-workload-1.csv"
    path.write_text(
        "name,time,application,num_replicas,batch_size\ntoy-0,0,toy,2,16\ntoy-1,30,toy,2,16\n", encoding="utf-8"
    )
    return path


def test_iterations_between_points_of_progress(workload: Path) -> None:
    end, iterations = segments("toy", SiaProfiles(workload))

    assert end == 100.0
    assert {m: [float(one[:50].sum()), float(one[50:].sum())] for m, one in iterations.items()} == {
        8: pytest.approx([50.0, 50.0]),
        16: pytest.approx([40.0, 20.0]),
    }


def test_a_job_has_the_best_batch_size_at_each_point(workload: Path) -> None:
    """One GPU: 50 s with 8, then 30 s with 16. Two: 30 s with 8, then 16 s with 16."""
    job = elastic(read_trace(workload), workload).jobs[1]

    assert (job.id, job.gpus, job.sizes, job.steps_total) == ("toy-1", 1, (1, 2), 100.0)
    assert job.rates_steps_per_s == {"t4": pytest.approx(100.0 / 80.0)}
    assert job.rates_by_size == {2: {"t4": pytest.approx(100.0 / 46.0)}}


def test_a_rigid_job_has_its_own_batch_size(workload: Path) -> None:
    """60 iterations of 16 on two GPUs, at 0.8 s."""
    job = rigid(read_trace(workload)).jobs[0]

    assert (job.gpus, job.steps_total, job.job_type) == (2, 60.0, "toy")
    assert job.rates_steps_per_s == {"t4": pytest.approx(1.0 / 0.8)}


def test_a_slowdown_divides_all_rates_of_its_application(workload: Path) -> None:
    """80 s and 46 s by hand become 100 s and 57.5 s; steps stay."""
    job = slowed(elastic(read_trace(workload), workload), {"toy": 1.25, "other": 9.0}).jobs[1]

    assert job.steps_total == 100.0
    assert job.rates_steps_per_s == {"t4": pytest.approx(1.0)}
    assert job.rates_by_size == {2: {"t4": pytest.approx(100.0 / 57.5)}}


def test_an_application_without_a_slowdown_keeps_its_rates(workload: Path) -> None:
    trace = elastic(read_trace(workload), workload)

    assert slowed(trace, SLOWDOWN).jobs[0].rates_steps_per_s == trace.jobs[0].rates_steps_per_s


def test_an_application_without_profiles_is_refused(workload: Path) -> None:
    trace = read_trace(workload)
    for name in PROFILES:
        if "validation" in name:
            (workload.parent.parent / "profiles" / name).unlink()

    with pytest.raises(InvalidInput, match="profile toy-validation"):
        elastic(trace, workload)


def test_table_of_a_small_workload(workload: Path) -> None:
    found = SIA.reproduce(FigureSize(trace=workload, is_full=True))

    average_h = {row.run: row.ours for row in found.rows if row.quantity == JCT}
    assert list(average_h) == list(POLICIES)
    least_h = (46.0 + 30.0) / 3600.0  # 46 s on two GPUs, and a start
    assert min(average_h.values()) >= 0.9 * least_h
    assert all(row.published != row.published for row in found.rows)  # NaN: no such workload in the paper
    assert not found.remarks
    tail_h = {row.run: row.ours for row in found.rows if row.quantity == TAIL}
    assert all(tail_h[name] >= average_h[name] for name in POLICIES)  # of two jobs, the longer one


def test_the_setting_is_that_of_the_table() -> None:
    assert cluster().gpu_counts.tolist() == [24, 24, 16]
    assert POLICIES == ("sia", "pollux", UNAWARE, GAVEL, "max_min_fairness", "bounded_lag")
    assert [sia_settings(name).mechanism.round_s for name in POLICIES] == [60.0, 60.0, 60.0, 360.0, 360.0, 60.0]
    costs = sia_settings("sia").conditions.costs.of("imagenet", sia_settings("sia").costs)
    assert costs.start.fixed_s == START_S["imagenet"] == 250


def test_gpus_change_jobs_at_the_ends_of_rounds_only(workload: Path) -> None:
    """toy-1 arrives at 30 s; both jobs train for 80 s and start for 30 s, from a full minute on."""
    found = SIA.reproduce(FigureSize(trace=workload, is_full=True))

    average_h = {row.run: row.ours for row in found.rows if row.quantity == JCT}
    assert average_h["bounded_lag"] * 3600.0 >= 46.0 + 30.0 + 15.0  # 0 and 30 s of waiting, and a start


def test_only_sia_leaves_starting_jobs_their_gpus() -> None:
    found = {name: sia_settings(name).mechanism for name in POLICIES}

    assert {name: one.lease_min_s for name, one in found.items()} == {
        **dict.fromkeys(("pollux", UNAWARE, *RIGID), 0.0),
        "sia": 1.0,
        "bounded_lag": found["bounded_lag"].lease_min_s,
    }
    assert found["sia"].start_max_s > max(START_S.values())
    assert not any(one.fill_within_round or one.solve_within_round for one in found.values())


def test_a_workload_is_required() -> None:
    with pytest.raises(InvalidInput, match="workload must be given"):
        SIA.reproduce(FigureSize())


@pytest.mark.reference
@pytest.mark.slow
def test_order_of_the_policies_is_that_of_the_paper(reference_directory: Path) -> None:
    path = reference_directory / "data/sia/workloads/philly-workload-1.csv"

    found = SIA.reproduce(FigureSize(trace=path))

    average_h = {row.run: row.ours for row in found.rows if row.quantity == JCT}
    assert average_h["sia"] < min(average_h["pollux"], average_h[UNAWARE])
    assert max(average_h["pollux"], average_h[UNAWARE]) < min(average_h[name] for name in RIGID)
    assert average_h["bounded_lag"] < average_h[GAVEL]
    assert [row.published for row in found.rows if row.quantity == JCT][:4] == [
        PUBLISHED["philly"][name][0] for name in POLICIES[:4]
    ]
