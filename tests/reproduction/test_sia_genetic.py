"""Pollux's genetic search: its parts by hand, and its best state by brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gavelpy.reproduction.sia_genetic import NODE_GPUS, WAITING, Search, survivors


def search_of(now: list[list[int]], *, most: int = 8, factor: float = 0.5, power: float = 0.7) -> Search:
    """Jobs with a speed-up of g^power on g GPUs of one virtual node, and 0.8 of it on several."""
    state = np.array(now)
    speedup = np.zeros((len(now), 9, 9))
    for j, nodes, gpus in itertools.product(range(len(now)), range(1, 9), range(1, 9)):
        speedup[j, nodes, gpus] = gpus ** (power / (j + 1)) * (0.8 if nodes > 1 else 1.0)
    return Search(speedup, state, np.full(len(now), factor), np.full(len(now), most))


def test_fitness_is_the_harmonic_mean_of_speedups_and_a_change_costs_a_part() -> None:
    """a keeps one GPU: 1. b has 4 GPUs in place of none: 4^0.35 times 0.5."""
    search = search_of([[1, 0], [0, 0]])

    fitness, by_gpus = search.values(np.array([[[1, 0], [0, 4]]]))[0]

    changed = 0.5 * 4**0.35
    assert fitness == pytest.approx(2 / (1 / (1 / NODE_GPUS + WAITING) + 1 / (changed / NODE_GPUS + WAITING)))
    assert by_gpus == pytest.approx((1 + 4**0.35) / 8)


def test_a_virtual_node_has_one_spread_job_and_later_jobs_lose_it() -> None:
    """b is spread, too, so b and c behind it lose node 0; then a and b have 2 + 1 GPUs of node 1."""
    search = search_of([[0, 0], [0, 0], [0, 0]])
    state = np.array([[[1, 2], [1, 1], [1, 0]]])

    found = search.repaired(state, np.random.default_rng(0))

    assert found.tolist() == [[[1, 2], [0, 0], [0, 0]]]


def test_a_full_node_and_the_limit_of_a_job_cut_what_comes_last() -> None:
    search = search_of([[0, 0], [0, 0]], most=3)
    rng = np.random.default_rng(0)

    assert search.repaired(np.array([[[3, 0], [2, 0]]]), rng).tolist() == [[[3, 0], [1, 0]]]
    assert search.repaired(np.array([[[4, 0], [0, 0]]]), rng).sum() == 3


@pytest.mark.parametrize("seed", range(4))
def test_mutated_and_repaired_states_are_within_all_limits(seed: int) -> None:
    search, rng = search_of([[4, 0, 0], [0, 2, 0], [0, 2, 4]], most=5), np.random.default_rng(seed)
    states = np.tile(search.now, (50, 1, 1))

    found = search.repaired(search.mutated(states, rng), rng)

    assert (found.sum(axis=1) <= NODE_GPUS).all()
    assert (found >= 0).all()
    assert (found.sum(axis=2) <= 5).all()
    spread = (found > 0) & (np.count_nonzero(found, axis=2) > 1)[..., None]
    assert (spread.sum(axis=1) <= 1).all()


@pytest.mark.parametrize("power", [0.3, 0.6, 0.9])
def test_the_search_finds_the_best_of_all_states_of_two_jobs(power: float) -> None:
    search, rng = search_of([[1, 0], [0, 1]], factor=0.9, power=power), np.random.default_rng(1)
    every = np.array(list(itertools.product(range(NODE_GPUS + 1), repeat=4))).reshape(-1, 2, 2)
    legal = every[(search.repaired(every, rng) == every).all(axis=(1, 2))]

    found = search.best(search.now[None], rng)

    assert search.values(found[:1])[0, 0] == pytest.approx(search.values(legal)[:, 0].max())


def test_survivors_are_whole_fronts_and_then_the_most_distant() -> None:
    """Three states form the first front; of the second, the one in the middle has the nearest neighbours."""
    values = np.array([[3.0, 1.0], [2.0, 2.0], [1.0, 3.0], [2.0, 0.5], [1.0, 1.0], [0.5, 2.0]])

    kept, distance = survivors(values, 5)

    assert sorted(kept.tolist()) == [0, 1, 2, 3, 5]
    assert np.isinf(distance[[0, 2, 3, 5]]).all()
