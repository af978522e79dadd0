"""FIFO and shortest job first: which jobs get which GPUs, and which wait."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Policy
from gavelpy.policies.fifo import Fifo
from gavelpy.policies.queue import _take_gpus, whole_shares
from gavelpy.policies.shortest_job_first import ShortestJobFirst


def runs_on(policy: Policy, problem: AllocationProblem) -> list[str]:
    """For each job the type that it runs on, or "-"."""
    share = policy.allocate(problem).job_share
    return [problem.gpu_types[int(row.argmax())] if row.any() else "-" for row in share]


def jobs(*gpus: int, v100: int, k80: int, steps: tuple[float, ...] = ()) -> AllocationProblem:
    """Jobs twice as fast on a V100 as on a K80."""
    ids = [f"job-{i}" for i in range(len(gpus))]
    rates = np.full((len(gpus), 2), [2.0, 1.0])
    return AllocationProblem.of(
        ids, ["v100", "k80"], [v100, k80], rates, gpus=list(gpus), steps_remaining=steps or 1.0, steps_total=9.0
    )


def test_fifo_gives_the_fastest_type_that_is_left() -> None:
    assert runs_on(Fifo(), jobs(1, 1, 1, v100=1, k80=1)) == ["v100", "k80", "-"]


def test_fifo_head_blocks_those_behind_it() -> None:
    assert runs_on(Fifo(), jobs(1, 2, 1, v100=2, k80=1)) == ["v100", "-", "-"]


def test_fifo_passes_over_a_gang_larger_than_the_cluster() -> None:
    assert runs_on(Fifo(), jobs(8, 1, v100=2, k80=1).with_whole_gangs()) == ["-", "v100"]


def test_a_gang_larger_than_the_cluster_blocks_fifo_when_gangs_are_taken_as_the_papers_do() -> None:
    assert runs_on(Fifo(), jobs(8, 1, v100=2, k80=1)) == ["-", "-"]


def test_equally_fast_types_are_no_reason_to_move() -> None:
    problem = replace(jobs(1, 1, v100=1, k80=3).blind_to_type(), gpu_type_held=np.array([0, -1]))

    assert runs_on(Fifo(), problem) == ["v100", "k80"]


def test_fifo_passes_over_a_job_while_only_types_it_cannot_use_are_free() -> None:
    rates = [[2.0, 0.0], [2.0, 0.0], [2.0, 1.0]]
    problem = AllocationProblem.of("abc", ["v100", "k80"], [1, 1], rates)

    assert runs_on(Fifo(), problem) == ["v100", "-", "k80"]


def test_blind_fifo_takes_the_type_with_most_gpus_left() -> None:
    problem = jobs(1, 1, 1, 1, v100=1, k80=3).blind_to_type()

    assert runs_on(Fifo(), problem) == ["k80", "k80", "v100", "k80"]


def test_fifo_runs_no_jobs_together_that_gain_nothing() -> None:
    problem = jobs(1, 1, v100=1, k80=0).with_pairs([(0, 1)], np.ones((1, 2, 2)))

    assert Fifo().allocate(problem).share.tolist() == [[1, 0], [0, 0], [0, 0]]


def test_certificate_of_fifo_counts_the_jobs_that_run() -> None:
    assert Fifo().allocate(jobs(1, 1, 1, v100=1, k80=1)).certificate.objective == 2


def test_shortest_job_goes_first() -> None:
    assert runs_on(ShortestJobFirst(), jobs(1, 1, 1, v100=1, k80=1, steps=(9.0, 1.0, 5.0))) == ["-", "v100", "k80"]


def test_equally_short_jobs_keep_their_order() -> None:
    assert runs_on(ShortestJobFirst(), jobs(1, 1, 1, v100=1, k80=1, steps=(5.0, 5.0, 5.0))) == ["v100", "k80", "-"]


def test_shortest_job_first_by_total_forgets_what_is_done() -> None:
    problem = jobs(1, 1, v100=1, k80=0, steps=(9.0, 1.0))

    assert runs_on(ShortestJobFirst(by="remaining"), problem) == ["-", "v100"]
    assert runs_on(ShortestJobFirst(by="total"), problem) == ["v100", "-"]


def test_time_is_that_on_the_best_type_with_enough_gpus() -> None:
    rates = [[100.0, 1.0], [2.0, 2.0]]  # the first is fast only on a type too small for it
    problem = AllocationProblem.of("ab", ["v100", "k80"], [1, 2], rates, gpus=[2, 1], steps_remaining=6.0)

    assert runs_on(ShortestJobFirst(), problem.with_whole_gangs()) == ["-", "k80"]


def test_shortest_job_first_lets_longer_jobs_past_a_gang_that_must_wait() -> None:
    assert runs_on(ShortestJobFirst(), jobs(1, 2, 1, v100=2, k80=1, steps=(1.0, 2.0, 3.0))) == ["v100", "-", "v100"]


@pytest.mark.parametrize("policy", [Fifo(), ShortestJobFirst()], ids=lambda policy: policy.name)
def test_a_full_cluster_ends_the_search(policy: Policy) -> None:
    count = 20_000
    problem = AllocationProblem.of([str(i) for i in range(count)], ["v100"], [3], np.ones((count, 1)))

    assert policy.allocate(problem).share.sum() == 3


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("seed", range(100))
def test_queue_of_jobs_alone_is_that_of_any_configurations(seed: int, blocks: bool) -> None:
    """Small whole rates, so that many types are equally fast; in every second problem large ones, so that few are."""
    rng = np.random.default_rng(seed)
    J, T = int(rng.integers(1, 30)), int(rng.integers(1, 5))
    problem = AllocationProblem.of(
        [f"job-{i}" for i in range(J)],
        [f"type-{t}" for t in range(T)],
        rng.integers(0, 12 + 30 * (seed % 3), T),
        rng.integers(0, 3 if seed % 2 else 100, (J, T)),
        gpus=rng.integers(1, 5, J),
        gpu_type_held=rng.integers(-1, T, J),
    )
    order, expected = rng.permutation(J), np.zeros((J, T))
    _take_gpus(problem, order, expected, blocks=blocks)

    np.testing.assert_array_equal(whole_shares(problem, order, blocks=blocks), expected)
