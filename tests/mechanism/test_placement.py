"""Placement against brute force over nodes: fewest nodes for a gang, whole nodes left for the next one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.placement import place
from gavelpy.model.arrays import Bools, Ints
from tests.mechanism.builders import answer, make_core, make_pool, make_spec, plans, running_core, start, wake


def servers_of(pool: GpuPool, gpus: Ints) -> list[int]:
    """The nodes of these GPUs, each once."""
    return sorted({int(node) for node in pool.node_of[gpus]})


def fewest_servers(free_by_server: Ints, size: int) -> int:
    """The fewest nodes that can run a gang, by trying every set of nodes, smallest first."""
    counts = range(1, len(free_by_server) + 1)
    return next(n for n in counts if any(sum(s) >= size for s in combinations(free_by_server.tolist(), n)))


def placed(pool: GpuPool, free: Bools, *wanted: tuple[int, int]) -> list[Ints]:
    """GPUs of each job; `wanted` is (type, GPUs)."""
    types, gpus = (np.array(column) for column in zip(*wanted, strict=True))
    offsets, flat = place(pool, free, types, gpus)
    return np.split(flat, offsets[1:-1])


def all_free(pool: GpuPool) -> Bools:
    return np.ones(len(pool.job), dtype=np.bool_)


@st.composite
def pools(draw: st.DrawFn) -> tuple[GpuPool, Bools]:
    """Up to 6 nodes with up to 5 GPUs of two types, some of the GPUs in use."""
    servers = draw(st.lists(st.tuples(st.sampled_from(["v100", "k80"]), st.integers(1, 5)), min_size=1, max_size=6))
    pool = make_pool(*servers)
    free = draw(st.lists(st.booleans(), min_size=len(pool.job), max_size=len(pool.job)))
    return pool, np.array(free)


@given(given_pool=pools(), data=st.data())
def test_a_gang_gets_the_fewest_servers_there_can_be(given_pool: tuple[GpuPool, Bools], data: st.DataObject) -> None:
    pool, free = given_pool
    usable = free & (pool.type_of == 0)
    assume(usable.any())
    size = data.draw(st.integers(1, int(usable.sum())))

    [gpus] = placed(pool, free, (0, size))

    assert len(servers_of(pool, gpus)) == fewest_servers(np.bincount(pool.node_of[usable]), size)


@given(given_pool=pools(), data=st.data())
def test_everybody_gets_what_was_asked_for_and_nobody_twice(
    given_pool: tuple[GpuPool, Bools], data: st.DataObject
) -> None:
    pool, free = given_pool
    left = np.bincount(pool.type_of[free], minlength=len(pool.gpu_types)).tolist()
    wanted: list[tuple[int, int]] = []
    while any(left) and data.draw(st.booleans()):
        kind = data.draw(st.sampled_from([k for k, n in enumerate(left) if n]))
        wanted.append((kind, data.draw(st.integers(1, left[kind]))))
        left[kind] -= wanted[-1][1]
    types, gpus = (np.array([w[k] for w in wanted], dtype=np.int64) for k in (0, 1))

    offsets, flat = place(pool, free, types, gpus)

    assert np.diff(offsets).tolist() == gpus.tolist()
    assert len(np.unique(flat)) == len(flat)
    assert free[flat].all()
    assert pool.type_of[flat].tolist() == np.repeat(types, gpus).tolist()


@given(given_pool=pools())
def test_one_gpu_jobs_empty_the_tightest_servers_first(given_pool: tuple[GpuPool, Bools]) -> None:
    pool, free = given_pool
    usable = free & (pool.type_of == 0)
    free_by_server = np.bincount(pool.node_of[usable], minlength=len(pool.node_ids))
    order = sorted((int(n), server) for server, n in enumerate(free_by_server) if n)
    expected = [server for n, server in order for _ in range(n)]

    flat = place(pool, usable, np.zeros(len(expected), dtype=np.int64), np.ones(len(expected), dtype=np.int64))[1]

    assert pool.node_of[flat].tolist() == expected


def test_a_gang_takes_the_tightest_server_that_holds_it() -> None:
    pool = make_pool(("v100", 4), ("v100", 2), ("v100", 3))

    [gpus] = placed(pool, all_free(pool), (0, 2))

    assert servers_of(pool, gpus) == [1]


def test_a_gang_over_several_servers_ends_on_the_tightest_that_suffices() -> None:
    pool = make_pool(("v100", 3), ("v100", 4), ("v100", 1), ("v100", 2))

    [gpus] = placed(pool, all_free(pool), (0, 5))

    assert servers_of(pool, gpus) == [1, 2]


def test_large_gangs_go_first_whatever_the_order_of_jobs() -> None:
    pool = make_pool(("v100", 4), ("v100", 2))

    one, four = placed(pool, all_free(pool), (0, 1), (0, 4))

    assert servers_of(pool, four) == [0]
    assert servers_of(pool, one) == [1]


def test_equal_gangs_are_placed_in_the_order_of_jobs() -> None:
    pool = make_pool(("v100", 2), ("v100", 2))

    first, second = placed(pool, all_free(pool), (0, 2), (0, 2))

    assert (servers_of(pool, first), servers_of(pool, second)) == ([0], [1])


def test_nobody_wants_anything() -> None:
    pool = make_pool(("v100", 2))
    nothing: Ints = np.zeros(0, dtype=np.int64)

    offsets, flat = place(pool, all_free(pool), nothing, nothing)

    assert (offsets.tolist(), flat.tolist()) == ([0], [])


@pytest.mark.parametrize("wanted", [[(0, 3)], [(0, 1)] * 3, [(0, 1)] * 3 + [(1, 1)], [(0, 2), (0, 1)]])
def test_more_than_there_is_is_a_bug(wanted: list[tuple[int, int]]) -> None:
    pool = make_pool(("v100", 2), ("k80", 1))

    with pytest.raises(AssertionError, match="more GPUs than are free"):
        placed(pool, all_free(pool), *wanted)


@pytest.mark.parametrize("seed", range(50))
def test_jobs_of_a_domain_get_the_same_gpus_whatever_runs_in_other_domains(seed: int) -> None:
    """Nodes with directories of their own are domains of their own; also where their GPUs did not join in order."""
    rng = np.random.default_rng(seed)
    pool = make_pool(*[("v100", int(rng.integers(1, 9))) for _ in range(12)])
    for node in range(1, 12):
        pool.set_directory(node, int(rng.integers(0, len(pool.directories))) or pool.add_directory(f"d{node}"))
    pool.join(pool.node_ids[3], "v100", 9, pool.node_directory[3])
    free = rng.random(len(pool.job)) < 0.8
    left, domains, gpus = pool.domain_counts(free), [], []
    for domain, size in zip(
        rng.integers(len(left), size=40).tolist(), rng.choice([1, 1, 2, 4], 40).tolist(), strict=True
    ):
        if size <= left[domain]:
            left[domain] -= size
            domains.append(domain)
            gpus.append(size)

    offsets, flat = place(pool, free, np.array(domains), np.array(gpus))

    for domain in set(domains):
        mine = np.flatnonzero(np.array(domains) == domain)
        alone = place(pool, free & (pool.domain_of == domain), np.array(domains)[mine], np.array(gpus)[mine])[1]
        assert np.concatenate([flat[offsets[k] : offsets[k + 1]] for k in mine]).tolist() == alone.tolist()
    assert len(set(flat.tolist())) == len(flat)
    assert free[flat].all()


@pytest.mark.parametrize("seed", range(50))
def test_one_gang_is_placed_as_next_to_a_job_of_another_type(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pool = make_pool(*[("v100", int(count)) for count in rng.integers(2, 9, 8)], ("k80", 1))
    free = rng.random(len(pool.job)) < 0.5
    free[[0, 1, -1]] = True
    size = int(rng.integers(2, free[:-1].sum() + 1))

    _, alone = place(pool, free, np.array([0]), np.array([size]))
    _, both = place(pool, free, np.array([0, 1]), np.array([size, 1]))

    assert alone.tolist() == both[:size].tolist()


def test_a_job_that_stays_on_its_type_keeps_its_gpus_though_others_would_fit_better() -> None:
    core = running_core(make_spec("a", gpus=2), make_spec("b"), servers=[("v100", 3), ("v100", 2)])
    before = core.jobs.gpus_held(0).tolist()
    wake(core, 360.0)

    plan = plans(wake(core, 720.0))[0]

    assert plan.extend_jobs.tolist() == [0, 1]
    assert core.jobs.gpus_held(0).tolist() == before


def test_gpus_of_a_lease_that_ends_are_given_out_in_the_same_plan() -> None:
    core = make_core(make_spec("a"), make_spec("b"))
    wake(core, 0.0)
    answer(core, (0, 0, 0.5), (1, 0, 0.5))
    start(core, 0)

    plan = plans(wake(core, 360.0))[0]

    assert (plan.revoke_jobs.tolist(), plan.grant_jobs.tolist()) == ([0], [1])
    assert plan.grant_gpus.tolist() == [0]


@given(given_pool=pools(), data=st.data())
def test_a_single_job_gets_the_gpus_of_a_plan_for_one_job(
    given_pool: tuple[GpuPool, Bools], data: st.DataObject
) -> None:
    pool, free = given_pool
    pool.hold(np.flatnonzero(~free), 7)
    counts = pool.free_counts  # computed once, and updated from then on
    changed = data.draw(st.lists(st.tuples(st.integers(0, len(free) - 1), st.booleans()), max_size=6))
    for gpu, is_leased in changed:
        pool.hold(np.array([gpu]), 3 if is_leased else -1)
    usable = (pool.job == -1) & (pool.type_of == 0)
    assume(usable.any() and counts.any())
    size = data.draw(st.integers(1, int(usable.sum())))

    gpus = pool.free.best_fit(0, size)

    [expected] = placed(pool, pool.job == -1, (0, size))
    assert gpus.tolist() == expected.tolist()
    assert pool.free_counts.tolist() == [np.sum((pool.job == -1) & (pool.type_of == k)) for k in range(len(counts))]
