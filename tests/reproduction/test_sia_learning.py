"""Agents that learn in Sia's simulator: the model of step times, a job's time by hand, and Pollux on a few jobs."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.reproduction.published import FigureSize
from gavelpy.reproduction.sia import JCT
from gavelpy.reproduction.sia_agents import LearningJob
from gavelpy.reproduction.sia_applications import Application
from gavelpy.reproduction.sia_genetic import Search
from gavelpy.reproduction.sia_learning import (
    OF_NODE,
    POLLUX,
    TYPES,
    VARIANTS,
    best_numbers,
    completion_h,
    learning_jobs,
    on_fewest_nodes,
    placement_of,
)
from gavelpy.reproduction.sia_speed_model import best_batches, efficiency, fitted, loss, step_s
from gavelpy.traces.sia import SiaProfiles

TRUE = np.array([0.1, 0.02, 0.2, 0.01, 0.05, 0.005, 2.0])  # parameters of a made-up application
LOCALS, CLUSTERS = (8, 16, 32), ("aws", "dgx-ext", "rtx")


def seconds(nodes: int, gpus: int, local: int) -> tuple[float, float]:
    """The step time by the true parameters, and the part that is not computing."""
    at = (np.array([float(one)]) for one in (nodes, gpus, local))
    step = float(step_s(TRUE, *at, np.zeros(1))[0])
    return step, max(step - float(TRUE[0] + TRUE[1] * local), 0.0)


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """Two jobs of an application on which larger batches are worth no more: 8 samples make one of 50 steps."""
    (tmp_path / "profiles").mkdir()
    (tmp_path / "workloads").mkdir()
    placed = [("1", 1, 1), ("2", 1, 2), ("4", 1, 4), ("44", 2, 8)]
    for cluster in CLUSTERS:
        rows = ["placement,local_bsz,step_time,sync_time"]
        rows += [f"{text},{m},{t!r},{y!r}" for text, n, g in placed for m in LOCALS for t, y in [seconds(n, g, m)]]
        (tmp_path / f"profiles/toy-placements-{cluster}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        rows = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
        pairs = [(n, g) for n, g in itertools.product((2, 3, 4), (4, 8, 16)) if g >= n]
        rows += [f"{n},{g},{m},{t!r},{y!r}" for n, g in pairs for m in LOCALS for t, y in [seconds(n, g, m)]]
        (tmp_path / f"profiles/toy-scalability-{cluster}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    for batch in (8, 512):
        text = "progress,iteration,metric,grad_sqr,grad_var\n50,50,0,1,0\n100,100,0,1,0\n"
        (tmp_path / f"profiles/toy-validation-{batch}.csv").write_text(text, encoding="utf-8")
    path = tmp_path / "workloads" / "toy-workload-1.csv"
    path.write_text(
        "name,time,application,num_replicas,batch_size\ntoy-0,0,toy,2,16\ntoy-1,30,toy,2,16\n", encoding="utf-8"
    )
    return path


def application(workload: Path) -> Application:
    return Application(SiaProfiles(workload), "toy", "t4")


def test_step_times_are_those_of_the_profile_and_placements_turn(workload: Path) -> None:
    found = application(workload)

    assert found.step_s((4, 4), 16) == pytest.approx(seconds(2, 8, 16))
    assert found.step_s((1,), 12)[0] == pytest.approx((seconds(1, 1, 8)[0] + seconds(1, 1, 16)[0]) / 2)
    assert found.step_s((4, 4, 4, 4), 16)[0] == pytest.approx(seconds(4, 16, 16)[0])  # interpolated in all three
    assert (found.local_most((4,)), found.batch_min, found.batch_max, found.progress.tolist()) == (
        32, 8, 512, [0.0, 50.0, 100.0],
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_the_gradient_of_the_loss_is_that_of_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, gpus = np.append(rng.uniform(0.01, 0.3, 6), rng.uniform(1.1, 5.0)), rng.integers(1, 9, 12).astype(float)
    nodes, local = np.minimum(rng.integers(1, 3, 12), gpus), rng.integers(4, 64, 12).astype(float)
    measured = (nodes, gpus, local, rng.normal(size=12), rng.normal(size=12))

    _, gradient = loss(x, *measured)

    moved = [(loss(x + step, *measured)[0] - loss(x - step, *measured)[0]) / 2e-6 for step in 1e-6 * np.eye(7)]
    assert gradient == pytest.approx(np.array(moved), rel=1e-4, abs=1e-6)


def test_the_model_predicts_placements_that_were_not_measured() -> None:
    at = [(1, 1), (1, 2), (1, 4), (2, 4), (2, 8)]
    found = fitted({(n, g, m): seconds(n, g, m) for n, g in at for m in LOCALS})

    unseen = (np.array([3.0]), np.array([12.0]), np.array([24.0]), np.zeros(1))
    assert step_s(found, *unseen)[0] == pytest.approx(seconds(3, 12, 24)[0], rel=0.05)


def test_several_gpus_take_no_time_for_the_network_before_they_are_measured() -> None:
    found = fitted({(1, 1, 8): seconds(1, 1, 8)})

    eight = (np.array([2.0]), np.array([8.0]), np.array([8.0]), np.zeros(1))
    assert step_s(found, *eight)[0] == pytest.approx(seconds(1, 1, 8)[0], rel=1e-3)


@pytest.mark.parametrize("variance", [0.0, 1.0, 30.0])
def test_the_best_batch_is_that_of_a_loop(workload: Path, variance: float) -> None:
    found, gradients = application(workload), (1.0, variance)
    nodes, gpus = np.array([1, 2]), np.array([2, 8])

    goodput, local, parts = best_batches(TRUE, gradients, found, nodes, gpus, 32)

    for k, (n, g) in enumerate(zip(nodes.tolist(), gpus.tolist(), strict=True)):
        best = 0.0
        for batch in np.geomspace(max(8, 8 * g), 512, 50).tolist():
            more = math.ceil(batch / g / 32 - 1e-8) - 1
            each = math.ceil(batch / g / (more + 1) - 1e-8)
            samples = g * each * (more + 1)
            spent_s = seconds(n, g, each)[0] + more * (TRUE[0] + TRUE[1] * each)
            noise = (variance + 1) / (variance / (samples / 8) + 1) / (samples / 8)
            best = max(best, samples / spent_s * noise)
        assert goodput[k] == pytest.approx(best)
        assert 8 <= local[k] <= 32
        assert parts[k] >= 0


def test_a_large_batch_is_worth_as_much_as_its_noise() -> None:
    scale = np.array([1.0, 4.0])

    assert efficiency((1.0, 0.0), scale).tolist() == [1.0, 0.25]  # no noise: one step is one step
    assert efficiency((0.0, 1.0), scale).tolist() == [1.0, 1.0]  # noise only: each sample counts


def test_a_job_starts_trains_and_ends_by_hand(workload: Path) -> None:
    """30 s of a start, then 100 steps of 8 samples, 0.26 s each: one epoch ends after 43 s, the other at 56 s."""
    job = LearningJob({kind: application(workload) for kind in TYPES}, 0.0, 30.0, 1.0)
    step = seconds(1, 1, 8)[0]

    job.place("t4", (1,))
    job.step(60.0)

    assert job.finish_s == 30.0 + 2 * round(50 * step)
    assert job.attained_gpu_s == job.finish_s
    assert job.gpus_max() == 2  # one was measured


def test_only_another_type_or_shape_is_a_start(workload: Path) -> None:
    job = LearningJob({kind: application(workload) for kind in TYPES}, 0.0, 30.0, 1.0)

    for gpu_type, placement in [("t4", (1,)), ("t4", (1,)), ("t4", (2,)), ("a100", (2,)), ("", ()), ("a100", (2,))]:
        job.place(gpu_type, placement)

    assert job.starts == 4


def test_virtual_nodes_of_a_node_are_one_node() -> None:
    nodes = np.zeros(len(OF_NODE), dtype=np.int64)
    nodes[6:9] = [4, 3, 2]  # the first A100 node has two virtual nodes

    assert placement_of(nodes) == ("a100", (7, 2))
    assert placement_of(np.zeros(len(OF_NODE), dtype=np.int64)) == ("", ())


def test_the_fewest_nodes_are_whole_but_one() -> None:
    assert [on_fewest_nodes("t4", gpus) for gpus in (0, 3, 4, 9)] == [(), (3,), (4,), (4, 4, 1)]
    assert on_fewest_nodes("rtx2080ti", 9) == (8, 1)


def test_the_best_numbers_have_the_highest_fitness_of_all_and_jobs_that_keep_theirs_stay() -> None:
    speedup = np.zeros((2, 17, 17))
    for j, nodes, gpus in itertools.product(range(2), range(1, 17), range(1, 17)):
        speedup[j, nodes, gpus] = gpus ** (0.9, 0.2)[j]
    now = np.zeros((2, len(OF_NODE)), dtype=np.int64)
    now[1, 3] = 1
    search = Search(speedup, now, np.array([0.9, 0.3]), np.array([6, 6]))

    found = best_numbers(search, np.random.default_rng(0))

    totals = {}
    for a, b in itertools.product(range(7), repeat=2):
        state = np.zeros_like(now)
        state[0, 4], state[0, 5] = min(a, 4), max(a - 4, 0)
        state[1, 3], state[1, 7] = min(b, 4), max(b - 4, 0)
        totals[a, b] = search.values(state[None])[0, 0]
    assert tuple(found.sum(axis=1).tolist()) == max(totals, key=lambda key: totals[key]) == (6, 1)
    assert found[1, 3] == 1


def test_all_variants_end_all_jobs(workload: Path) -> None:
    found = POLLUX.reproduce(FigureSize(trace=workload))

    average_s = {row.run: 3600 * row.ours for row in found.rows if row.quantity == JCT}
    assert tuple(average_s) == tuple(VARIANTS)
    start_and_round_s = 30.0 + (60.0 + 30.0) / 2  # toy-0 arrives at 0 and toy-1 at 30 s; GPUs come at 60 s
    assert all(start_and_round_s < one < start_and_round_s + 2 * 60.0 for one in average_s.values())


def test_a_workload_is_required() -> None:
    with pytest.raises(InvalidInput, match="workload must be given"):
        POLLUX.reproduce(FigureSize())


@pytest.mark.reference
@pytest.mark.slow
def test_learning_and_the_search_of_pollux_make_jobs_take_longer(reference_directory: Path) -> None:
    """Sia, table 3: 1.0 h (+- 0.1) for Pollux on average; `pollux_unaware` has 0.67 h on this workload."""
    path = reference_directory / "data/sia/workloads/philly-workload-1.csv"

    mean_h = {
        name: float(completion_h(learning_jobs(path, learned=VARIANTS[name].learned), VARIANTS[name])[0].mean())
        for name in ("best numbers, learned goodput", "best numbers, known goodput")
    }

    assert 0.67 < mean_h["best numbers, known goodput"] < mean_h["best numbers, learned goodput"] < 1.1
