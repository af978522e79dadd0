"""The placement study: FGD's formula against a dumb computation, and what every placement keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Ints
from gavelpy.model.fractional import GPU_MILLI, FractionalNodes, FractionalTasks
from gavelpy.simulator.fragmentation import (
    StudyRoom,
    StudyStrategy,
    TaskKinds,
    fragmentation,
    inflated,
    rounded_score,
    study,
)


def random_nodes(rng: np.random.Generator, count: int = 6) -> FractionalNodes:
    gpus, model = rng.integers(0, 5, count), rng.integers(2, size=count)
    gpus[0] = 4
    names = tuple(f"n{row}" for row in range(count))
    return FractionalNodes(
        names, ("a", "b"), model, gpus, rng.integers(4, 40, count) * 1000, rng.integers(8, 64, count)
    )


def random_tasks(rng: np.random.Generator, count: int = 40) -> FractionalTasks:
    gpus = rng.choice([0, 1, 1, 1, 2, 4], size=count)
    shared = rng.choice([160, 320, 470, 810, GPU_MILLI], size=count)
    milli = np.where(gpus > 1, GPU_MILLI, np.where(gpus == 1, shared, 0))
    may_use = rng.random((count, 2)) < 0.8
    may_use[~may_use.any(axis=1)] = True
    return FractionalTasks(gpus, milli, rng.choice([1000, 3000, 8000], size=count), rng.integers(0, 16, count), may_use)


def dumb_fragmentation(left: Ints, cpu_left: int, model: int, kinds: TaskKinds) -> float:
    """F_n of one node, kind by kind and GPU by GPU, as in the paper's text."""
    total = 0.0
    for share, cpu, gpus, milli, may_use in zip(
        kinds.share, kinds.cpu_milli, kinds.gpus, kinds.gpu_milli, kinds.may_use, strict=True
    ):
        with_room = [free for free in left.tolist() if free >= milli]
        runs = gpus > 0 and len(with_room) >= gpus and cpu_left >= cpu and may_use[model]
        total += share * (sum(free for free in left.tolist() if free < milli) if runs else sum(left.tolist()))
    return total


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_fragmentation_equals_a_dumb_computation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = TaskKinds.of(random_tasks(rng))
    left, cpu, model = rng.integers(0, 1001, (5, 4)), rng.integers(0, 10_000, 5), rng.integers(2, size=5)

    found = fragmentation(left, cpu, model, kinds)

    expected = [dumb_fragmentation(left[n], int(cpu[n]), int(model[n]), kinds) for n in range(5)]
    assert found == pytest.approx(expected)


def dumb_choice(room: StudyRoom, tasks: FractionalTasks, task: int, nodes: FractionalNodes, kinds: TaskKinds) -> int:
    """The first node with the best rounded score, every node computed again; -1 = none fits."""
    scores = []
    for node in range(len(nodes.node_ids)):
        left, cpu, milli = room.left[node], int(room.cpu[node]) - int(tasks.cpu_milli[task]), int(tasks.gpu_milli[task])
        fitting = [gpu for gpu in range(len(left)) if left[gpu] >= max(milli, 1)]
        fits = cpu >= 0 and room.memory[node] >= tasks.memory_mib[task] and len(fitting) >= tasks.gpus[task]
        fits = fits and (tasks.gpus[task] == 0 or tasks.may_use[task, nodes.model[node]])
        if not fits:
            continue
        before = dumb_fragmentation(left, int(room.cpu[node]), int(nodes.model[node]), kinds)
        choices = [[gpu] for gpu in fitting] if tasks.gpus[task] == 1 else [fitting[: int(tasks.gpus[task])]]
        after = [left.copy() for _ in choices]
        for one, gpus in zip(after, choices, strict=True):
            one[gpus] -= milli
        least = min(dumb_fragmentation(one, cpu, int(nodes.model[node]), kinds) for one in after)
        scores.append((-float(rounded_score(np.array([least - before]))[0]), node))
    return min(scores)[1] if scores else -1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_fgd_chooses_as_a_dumb_computation_after_each_task(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, tasks = random_nodes(rng), random_tasks(rng)
    kinds = TaskKinds.of(tasks)
    room = StudyRoom(nodes, tasks, kinds, StudyStrategy.FGD, rng)

    expected, found = [], []
    for task in range(len(tasks)):
        expected.append(dumb_choice(room, tasks, task, nodes, kinds))
        found.append(room.place(task))

    assert found == expected


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(StudyStrategy))
def test_no_gpu_core_or_memory_is_given_twice(seed: int, strategy: StudyStrategy) -> None:
    rng = np.random.default_rng(seed)
    nodes, tasks = random_nodes(rng), random_tasks(rng)
    room = StudyRoom(nodes, tasks, TaskKinds.of(tasks), strategy, rng)

    found = np.array([room.place(task) for task in range(len(tasks))])

    placed = found >= 0
    assert (room.left >= 0).all()
    assert (room.cpu >= 0).all()
    assert (room.memory >= 0).all()
    assert room.left.sum() + tasks.total_milli[placed].sum() == nodes.capacity_milli
    assert room.cpu.sum() + tasks.cpu_milli[placed].sum() == nodes.cpu_milli.sum()
    with_gpus = placed & (tasks.gpus > 0)
    assert tasks.may_use[with_gpus, nodes.model[found[with_gpus]]].all()


def test_fgd_leaves_fewer_fragments_than_random() -> None:
    rng = np.random.default_rng(7)
    count = 40
    gpus = np.full(count, 8)
    nodes = FractionalNodes(
        tuple(map(str, range(count))), ("a",), np.zeros(count), gpus, np.full(count, 96_000), np.full(count, 10**6)
    )
    sizes = rng.choice([1, 1, 1, 1, 8], size=300)
    milli = np.where(sizes == 8, GPU_MILLI, rng.choice([320, 470, 810, GPU_MILLI], size=300))
    tasks = FractionalTasks(sizes, milli, sizes * 8000, np.ones(300), np.ones((300, 1)))
    arrivals = inflated(tasks, nodes.capacity_milli, 1.3, np.random.default_rng(1))

    allocated = {
        strategy: study(nodes, tasks, arrivals, strategy, np.random.default_rng(2)).allocated
        for strategy in StudyStrategy
    }

    assert allocated[StudyStrategy.FGD] > allocated[StudyStrategy.RANDOM] + 0.05


def test_inflation_reaches_the_load_with_tasks_of_the_workload() -> None:
    rng = np.random.default_rng(3)
    tasks = random_tasks(rng)

    arrivals = inflated(tasks, 100_000, 1.3, rng)

    assert 130_000 - 4 * GPU_MILLI < arrivals.total_milli.sum() <= 130_000
    assert set(arrivals.cpu_milli.tolist()) <= set(tasks.cpu_milli.tolist())


def test_a_load_of_nothing_is_refused() -> None:
    tasks = random_tasks(np.random.default_rng(0))

    with pytest.raises(InvalidInput, match=r"load must be in \(0, 100\], got 0"):
        inflated(tasks, 1000, 0.0, np.random.default_rng(0))
