"""Pollux by the rules of Sia's simulator, by hand: which virtual nodes a job gets, and which GPUs it keeps."""

from __future__ import annotations

import numpy as np

from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.reproduction.sia_pollux import PolluxUnaware, drawn, kept_of_one_type

OF_NODE = np.array([0, 0, 1])  # types of three virtual nodes
TYPES = ("t4", "a100")


def test_a_job_is_on_one_virtual_node_that_has_room() -> None:
    free, shared = np.array([1, 4, 2]), np.zeros(3, dtype=np.bool_)

    nodes = drawn(3, free, shared, np.random.default_rng(0))

    assert nodes.tolist() == [0, 3, 0]
    assert free.tolist() == [1, 1, 2]
    assert not shared.any()


def test_a_spread_job_takes_the_nodes_with_the_most_free_gpus_and_none_of_another_spread_job() -> None:
    free, shared = np.array([4, 3, 4]), np.array([False, False, True])

    nodes = drawn(6, free, shared, np.random.default_rng(0))

    assert nodes.tolist() == [4, 2, 0]
    assert shared.tolist() == [True, True, True]


def test_a_job_keeps_the_gpus_of_the_type_of_which_it_has_most_and_the_faster_ones_of_as_many() -> None:
    assert kept_of_one_type(np.array([2, 1, 2]), OF_NODE, TYPES).tolist() == [2, 1, 0]
    assert kept_of_one_type(np.array([1, 1, 2]), OF_NODE, TYPES).tolist() == [0, 0, 2]


def test_gpus_of_another_type_stay_idle() -> None:
    """A job that gains by 8 GPUs takes two virtual nodes of four: 8 GPUs of one type, or 4 of the faster one."""
    p = AllocationProblem.of("a", TYPES, [8, 8], [[1.0, 2.0]], age_s=1e6, gpu_type_held=0, gpus_held=4)
    sizes = [Size(gpus, {"t4": rate, "a100": 2 * rate}) for gpus, rate in ((4, 3.0), (8, 5.0))]
    p = p.with_sizes({"a": sizes})

    answers = [PolluxUnaware(seed=seed).allocate(p) for seed in range(30)]

    taken = [one.by_size().query("a100 > 0 or t4 > 0") for one in answers]
    assert {tuple(one[["gpus", "t4", "a100"]].iloc[0].tolist()) for one in taken} == {
        (8.0, 1.0, 0.0), (8.0, 0.0, 1.0), (4.0, 0.0, 1.0),
    }  # fmt: skip


def test_a_job_that_keeps_its_number_of_gpus_keeps_its_virtual_nodes() -> None:
    p = AllocationProblem.of("a", TYPES, [16, 16], [[1.0, 1.0]])
    policy = PolluxUnaware(seed=3)
    first = policy.allocate(p)
    gpu_type = int(np.flatnonzero(first.share[0])[0])

    later = [policy.allocate(AllocationProblem.of(
        "a", TYPES, [16, 16], [[1.0, 1.0]], gpu_type_held=gpu_type, gpus_held=1, memory=first.memory
    )) for _ in range(10)]  # fmt: skip

    assert {int(np.flatnonzero(one.share[0])[0]) for one in later} == {gpu_type}
