"""Strategies of placement, and gangs that wait for GPUs in one place: brute force, bounds and scripts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.consolidation import fragmentation_delays_s
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import ConfigChanged, JobSubmitted, NodeJoined, Outcome
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.placement import place
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.mechanism.strategies import STRATEGIES, PlacementRule, fragments, place_by
from gavelpy.mechanism.topology import PlaceLevel, groups, level_of
from gavelpy.model.arrays import Bools, Ints
from gavelpy.model.job import NodeId
from tests.mechanism.builders import answer, end, make_pool, make_spec, start, tell, wake

Servers = list[tuple[int, str, str]]  # GPUs, rack and zone of each node


def pool_of(servers: Servers) -> GpuPool:
    pool = make_pool(*(("v100", count) for count, _, _ in servers))
    pool.node_place = [(rack, zone, "") for _, rack, zone in servers]
    return pool


@st.composite
def places(draw: st.DrawFn) -> tuple[GpuPool, Bools]:
    """Up to 8 nodes in racks and zones, some of the GPUs in use."""
    node = st.tuples(st.integers(1, 4), st.sampled_from(["", "r1", "r2"]), st.sampled_from(["", "z1", "z2"]))
    pool = pool_of(draw(st.lists(node, min_size=1, max_size=8)))
    free = draw(st.lists(st.booleans(), min_size=len(pool.job), max_size=len(pool.job)))
    return pool, np.array(free)


def dumb_level(pool: GpuPool, free: Bools, size: int) -> PlaceLevel:
    """The best level at which that many GPUs are free, by counting them group by group."""
    for level, group in groups(pool).items():
        counts: dict[int, int] = {}
        for gpu in np.flatnonzero(free).tolist():
            where = int(group[pool.node_of[gpu]])
            counts[where] = counts.get(where, 0) + 1
        if max(counts.values(), default=0) >= size:
            return level
    raise AssertionError("there are not enough GPUs")


@given(given_pool=places(), strategy=st.sampled_from(STRATEGIES), data=st.data())
def test_one_job_gets_the_best_level_that_is_free(
    given_pool: tuple[GpuPool, Bools], strategy: str, data: st.DataObject
) -> None:
    pool, free = given_pool
    assume(free.any())
    size = data.draw(st.integers(1, int(free.sum())))

    _, gpus = place_by(pool, free, np.array([0]), np.array([size]), PlacementRule(strategy, np.array([1, 2, 4])))

    assert level_of(pool, gpus) == dumb_level(pool, free, size)
    assert free[gpus].all()
    assert len(np.unique(gpus)) == size


@given(given_pool=places(), strategy=st.sampled_from(STRATEGIES), data=st.data())
def test_no_gpu_is_given_twice(given_pool: tuple[GpuPool, Bools], strategy: str, data: st.DataObject) -> None:
    pool, free = given_pool
    sizes: list[int] = []
    while (left := int(free.sum()) - sum(sizes)) and data.draw(st.booleans()):
        sizes.append(data.draw(st.integers(1, left)))
    worst = np.array([data.draw(st.sampled_from(PlaceLevel)) for _ in sizes], dtype=np.int64)
    rule = PlacementRule(strategy, np.array([1, 1, 2, 4]), data.draw(st.integers(0, 100)))

    offsets, gpus = place_by(pool, free, np.zeros(len(sizes), np.int64), np.array(sizes, np.int64), rule, worst)

    assert np.diff(offsets).tolist() == sizes
    assert len(np.unique(gpus)) == sum(sizes)
    assert free[gpus].all()


@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=8), data=st.data())
def test_best_fit_without_racks_is_the_default(counts: list[int], data: st.DataObject) -> None:
    pool = pool_of([(count, "", "") for count in counts])
    free = np.array(data.draw(st.lists(st.booleans(), min_size=len(pool.job), max_size=len(pool.job))))
    sizes: list[int] = []
    while (left := int(free.sum()) - sum(sizes)) and data.draw(st.booleans()):
        sizes.append(data.draw(st.integers(1, left)))
    domains, gpus = np.zeros(len(sizes), dtype=np.int64), np.array(sizes, dtype=np.int64)

    found = place_by(pool, free, domains, gpus, PlacementRule())[1]

    assert found.tolist() == place(pool, free, domains, gpus)[1].tolist()


def dumb_fragments(free: int, sizes: list[int], most: int) -> float:
    return sum(free for size in sizes if min(size, most) > free) / len(sizes)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=20), st.integers(1, 8))
def test_the_fragmentation_of_a_node_is_that_of_the_paper(sizes: list[int], most: int) -> None:
    found = fragments(np.array(sizes), most)

    assert found == pytest.approx([dumb_fragments(free, sizes, most) for free in range(most + 1)])


@settings(max_examples=50)
@given(
    counts=st.lists(st.integers(1, 8), min_size=2, max_size=6),
    sizes=st.lists(st.integers(1, 8), min_size=1),
    data=st.data(),
)
def test_fgd_takes_the_node_with_the_least_rise(counts: list[int], sizes: list[int], data: st.DataObject) -> None:
    pool, size = pool_of([(count, "", "") for count in counts]), data.draw(st.integers(1, max(counts)))
    most, free = max(counts), np.ones(sum(counts), dtype=np.bool_)

    _, gpus = place_by(pool, free, np.array([0]), np.array([size]), PlacementRule("fgd", np.array(sizes)))

    rise = {
        node: dumb_fragments(count - size, sizes, most) - dumb_fragments(count, sizes, most)
        for node, count in enumerate(counts)
        if count >= size
    }
    assert rise[int(pool.node_of[gpus[0]])] == pytest.approx(min(rise.values()))


def test_random_places_follow_from_the_lease() -> None:
    pool = pool_of([(4, "", "")] * 8)
    free, one = np.ones(32, dtype=np.bool_), (np.array([0]), np.array([2]))

    found = [place_by(pool, free, *one, PlacementRule("random", seed=seed))[1].tolist() for seed in range(40)]

    assert found == [place_by(pool, free, *one, PlacementRule("random", seed=seed))[1].tolist() for seed in range(40)]
    assert len({tuple(gpus) for gpus in found}) > 4


def core_of(*servers: tuple[int, str], **options: object) -> SchedulerCore:
    core = SchedulerCore(MechanismSettings(round_s=100.0, fill_leftover=True, **options))  # type: ignore[arg-type]
    for i, (count, rack) in enumerate(servers):
        tell(core, NodeJoined(NodeId(f"n{i}"), "v100", count, rack=rack))
    return core


def submit(core: SchedulerCore, name: str, gpus: int, now_s: float) -> None:
    tell(core, JobSubmitted(make_spec(name, gpus=gpus)), now_s)


def shared(core: SchedulerCore, now_s: float) -> None:
    """A wake-up, and full shares for all jobs."""
    wake(core, now_s)
    if core.question.open_epoch >= 0:
        answer(core, *((row, 0, 1.0) for row in core.jobs.active.tolist()), now_s=now_s)


def split_core(**options: object) -> SchedulerCore:
    """Two nodes of 2 GPUs in one rack and one in another; a one-GPU job on each, and a waiting gang of two."""
    core = core_of((2, "r1"), (2, "r1"), (2, "r2"), **options)
    for k in range(6):
        submit(core, f"single-{k}", 1, 0.0)
    shared(core, 0.0)
    start(core, *range(6))
    for job in (0, 2, 4):
        end(core, job, int(core.jobs.lease[job]), Outcome.FINISHED, now_s=10.0)
    submit(core, "gang", 2, 10.0)
    shared(core, 10.0)
    return core


def test_without_patience_a_gang_is_split_at_once() -> None:
    core = split_core()

    assert core.jobs.state[6] == JobState.GRANTED


def test_a_gang_waits_for_a_node_then_accepts_a_rack() -> None:
    core = split_core(consolidate_s=30.0)
    free = core.pool.node_of[core.pool.job < 0].tolist()
    assert free == [0, 1, 2]
    assert core.jobs.lease[6] < 0
    assert core.wakeup_s == 40.0
    assert reasons(core)[6].kind is ReasonKind.FRAGMENTED
    assert "2 GPUs are free, but not on one node; it waits for that until 40 s" in reasons(core)[6].text

    shared(core, core.wakeup_s)

    assert core.now_s == 40.0
    assert level_of(core.pool, core.jobs.gpus_held(6)) is PlaceLevel.RACK
    assert core.jobs.apart[6].until(40.0) == 30.0


def test_a_gang_starts_on_a_node_as_soon_as_one_is_free() -> None:
    core = split_core(consolidate_s=30.0)

    end(core, 5, int(core.jobs.lease[5]), Outcome.FINISHED, now_s=20.0)
    shared(core, 20.0)

    assert level_of(core.pool, core.jobs.gpus_held(6)) is PlaceLevel.NODE
    assert core.jobs.apart[6].until(99.0) == 10.0


def test_others_use_the_gpus_meanwhile() -> None:
    core = split_core(consolidate_s=30.0)

    submit(core, "small", 1, 12.0)
    shared(core, 12.0)

    assert core.jobs.lease[7] >= 0
    assert core.jobs.lease[6] < 0


def test_a_core_from_a_snapshot_relaxes_at_the_same_time() -> None:
    core = split_core(consolidate_s=30.0)

    copy = restore(decode_state(encode_state(snapshot(core))))
    shared(core, 40.0)
    shared(copy, 40.0)

    assert copy.jobs.gpus_held(6).tolist() == core.jobs.gpus_held(6).tolist()
    assert snapshot(copy)["apart"] == snapshot(core)["apart"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"placement": "best"}, "placement must be one of best_fit, first_fit, random, fgd, got 'best'"),
        ({"consolidate_s": -1.0}, r"consolidate_s must be in \[0, 604800\], got -1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(options: dict[str, object], what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        MechanismSettings(**options)  # type: ignore[arg-type]


def test_settings_pass_through_the_journal() -> None:
    wanted = MechanismSettings(placement="fgd", consolidate_s=60.0)

    event = decode(encode(ConfigChanged(wanted), 1.0))[1]

    assert isinstance(event, ConfigChanged)
    assert event.settings == wanted


def free_now(core: SchedulerCore) -> Ints:
    return np.flatnonzero(core.pool.usable & (core.pool.job < 0))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(STRATEGIES))
def test_patience_is_bounded_and_no_gang_is_split_before_its_time(seed: int, strategy: str) -> None:
    rng = np.random.default_rng(seed)
    core = core_of(*((4, f"r{k // 2}") for k in range(4)), consolidate_s=40.0, placement=strategy)
    now_s = 0.0
    for step in range(40):
        now_s = min(now_s + float(rng.exponential(15.0)), max(core.wakeup_s, now_s))
        before = {row: one for row, one in core.jobs.apart.items() if one.held_s >= 0}
        running = [row for row in core.jobs.leased.tolist() if core.jobs.state[row] == JobState.RUNNING]
        if running and rng.random() < 0.4:
            job = int(rng.choice(running))
            end(core, job, int(core.jobs.lease[job]), Outcome.FINISHED, now_s=now_s)
        if rng.random() < 0.6:
            submit(core, f"j{step}", int(rng.choice([1, 1, 2, 3, 4, 6])), now_s)
        had = set(core.jobs.leased.tolist())
        shared(core, now_s)
        granted = [row for row in core.jobs.leased.tolist() if row not in had]
        for row in granted:
            _check_granted(core, row, granted, before, now_s)
        for row, one in core.jobs.apart.items():
            is_over = one.held_s >= 0 and now_s - one.held_s >= 80.0  # two levels beyond one node
            assert not (is_over and core.jobs.lease[row] < 0 and core.jobs.gpus[row] <= len(free_now(core)))
        if starting := [row for row in granted if core.jobs.state[row] == JobState.GRANTED]:
            start(core, *starting)


def _check_granted(core: SchedulerCore, row: int, granted: list[int], before: dict[int, object], now_s: float) -> None:
    """A new lease is at the best level that was free, or later gangs have taken it; and not split before its time."""
    gpus = core.jobs.gpus_held(row)
    level, best = level_of(core.pool, gpus), PlaceLevel.NODE if len(gpus) <= 4 else PlaceLevel.RACK
    waited_s = now_s - before[row].held_s if row in before else 0.0  # type: ignore[attr-defined]
    levels = [one for one in groups(core.pool) if one >= best]
    assert level <= levels[min(int(waited_s / 40.0 + 1e-9), len(levels) - 1)]
    free = np.zeros(len(core.pool.job), dtype=np.bool_)
    free[free_now(core)] = True
    free[gpus] = True
    if len(granted) == 1:
        assert level == dumb_level(core.pool, free, len(gpus))


def test_the_delay_ends_when_too_few_gpus_are_free() -> None:
    core = split_core(consolidate_s=600.0)
    submit(core, "small", 1, 20.0)
    submit(core, "another", 1, 20.0)
    shared(core, 20.0)  # they take two of the three free GPUs
    assert core.jobs.apart[6].until(25.0) == 15.0

    submit(core, "third", 1, 30.0)
    shared(core, 30.0)  # the gang is not next any more

    assert core.jobs.apart[6].until(1e6) == 20.0
    assert fragmentation_delays_s(core).tolist() == [0.0] * 6 + [20.0] + [0.0] * 3


def test_the_delay_ends_when_gangs_do_not_wait_any_more() -> None:
    core = split_core(consolidate_s=600.0)
    submit(core, "small", 1, 20.0)
    submit(core, "another", 1, 20.0)
    shared(core, 20.0)

    tell(core, ConfigChanged(MechanismSettings(round_s=100.0)), 30.0)

    assert core.jobs.apart[6].until(1e6) == 20.0
    assert core.jobs.relax_s == np.inf


def test_many_gangs_that_wait_leave_the_gpus_to_others() -> None:
    core = split_core(consolidate_s=600.0)
    for k in range(8):
        submit(core, f"gang-{k}", 2, 11.0)
    for k in range(3):
        submit(core, f"small-{k}", 1, 12.0)

    shared(core, 12.0)

    assert (core.jobs.lease[15:18] >= 0).all()
    assert (core.jobs.lease[6:15] < 0).all()


def test_a_snapshot_with_plans_is_refused_by_older_versions() -> None:
    core = core_of((2, ""))
    before = snapshot(core)["version"]

    tell(core, JobSubmitted(make_spec("planned", plans={1: "tp1"})))

    assert before < snapshot(core)["version"] == 14
