"""Moves of running jobs that make a place for a gang: hand-computed cases, and all moves of small nodes."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.defragmentation import moved_in_words, relocation
from gavelpy.mechanism.events import ConfigChanged, JobCancelled, JobSubmitted, NodeJoined, Outcome, TurnMeasured
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.reasons import reasons
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.mechanism.taking import NONE_CHOSEN
from gavelpy.mechanism.topology import PlaceLevel, level_of
from gavelpy.model.job import NodeId
from tests.mechanism.builders import answer, end, make_spec, start, tell, wake

GANG = 4


def core_of(*servers: int, **options: object) -> SchedulerCore:
    given_options: dict[str, object] = {"consolidate_s": 60.0, "defragment": True} | options
    core = SchedulerCore(MechanismSettings(round_s=1000.0, **given_options))  # type: ignore[arg-type]
    for i, count in enumerate(servers):
        tell(core, NodeJoined(NodeId(f"n{i}"), "v100", count))
    return core


def submit(core: SchedulerCore, name: str, gpus: int, now_s: float = 0.0, steps: float = 1e6) -> None:
    tell(core, JobSubmitted(make_spec(name, gpus=gpus, steps=steps)), now_s)


def shared(core: SchedulerCore, now_s: float, share: float = 1.0) -> None:
    """A wake-up, and these shares for all jobs."""
    wake(core, now_s)
    if core.question.open_epoch >= 0:
        answer(core, *((row, 0, share) for row in core.jobs.active.tolist()), now_s=now_s)


def halves(restart_s: float = 0.0, *, share: float = 1.0, **options: object) -> SchedulerCore:
    """Two nodes of 4 GPUs with a job on 2 GPUs of each, and a gang of 4 that is submitted at 10 s.

    A move costs 2 x `restart_s` GPU s (2 x 25 if it was not measured); the gang's patience is worth 4 x 60 GPU s.
    """
    core = core_of(4, 4, **options)
    for k in range(4):
        submit(core, f"pair-{k}", 2)
    shared(core, 0.0)
    start(core, 0, 1, 2, 3)
    first, second = (int(core.pool.job[node * 4]) for node in (0, 1))
    if restart_s:
        rows = np.arange(4)
        tell(core, TurnMeasured(rows, core.jobs.lease[rows], np.full(4, restart_s), np.zeros(4)), 5.0)
    for job in (first, second):
        end(core, job, int(core.jobs.lease[job]), Outcome.FINISHED, now_s=10.0)
    submit(core, "gang", 4, 10.0)
    shared(core, 10.0, share)
    return core


def movers(core: SchedulerCore) -> list[int]:
    return sorted(core.jobs.moved)


def test_a_job_moves_where_that_costs_less_than_the_gang_would_wait() -> None:
    core = halves(restart_s=119.0)  # 2 x 119 < 4 x 60

    (mover,) = movers(core)
    assert level_of(core.pool, core.jobs.gpus_held(GANG)) is PlaceLevel.NODE
    assert core.jobs.state[GANG] == JobState.GRANTED
    assert core.jobs.lease[mover] >= 0
    assert core.jobs.stopping[mover] >= 0
    assert core.jobs.moved[mover].cost_gpu_s == 238.0
    assert core.jobs.moved[mover].worth_gpu_s == 240.0
    text = (
        "moved at 10 s to free 4 GPUs in one place for job 4, worth 240 GPU s less of waiting, at a cost of 238 GPU s"
    )
    assert moved_in_words(core, mover) == [text]
    assert moved_in_words(core, GANG) == [f"moved to free GPUs in one place for this job: job {mover}"]


@pytest.mark.parametrize(
    ("core", "why"),
    [
        (halves(restart_s=121.0), "worth 240 GPU s less of waiting, at a cost of 242 GPU s"),
        (halves(restart_s=1.0, share=0.0), "worth 0 GPU s less of waiting, at a cost of 2 GPU s"),
        (halves(lease_min_s=500.0), "no moves of running jobs would free them"),
    ],
    ids=["the move costs more", "the gang is owed nothing", "leases are protected"],
)
def test_no_job_moves(core: SchedulerCore, why: str) -> None:
    assert movers(core) == []
    assert core.jobs.lease[GANG] < 0
    assert reasons(core)[GANG].text.endswith(why)


def test_a_gang_waits_for_jobs_that_end_soon() -> None:
    core = core_of(4, 4)
    for k in range(4):
        submit(core, f"pair-{k}", 2, steps=120.0 if k == 3 else 1e6)  # 12 s
    shared(core, 0.0)
    start(core, 0, 1, 2, 3)
    beside = [int(job) for job in core.pool.job[core.pool.node_of == core.pool.node_of[core.jobs.gpu_first[3]]]]
    other = next(job for job in range(3) if job not in beside)
    for job in (next(job for job in beside if job != 3), other):
        end(core, job, int(core.jobs.lease[job]), Outcome.FINISHED, now_s=10.0)
    submit(core, "gang", 4, 10.0)
    shared(core, 10.0)

    assert movers(core) == []
    assert core.jobs.lease[GANG] < 0
    assert reasons(core)[GANG].text.endswith("worth 48 GPU s less of waiting, at a cost of 50 GPU s")


def test_without_the_setting_no_job_moves() -> None:
    core = halves(restart_s=1.0, defragment=False)

    assert movers(core) == []
    assert core.jobs.lease[GANG] < 0


def test_the_setting_needs_patience() -> None:
    with pytest.raises(InvalidInput, match="defragment must be false without consolidate_s"):
        MechanismSettings(defragment=True)


def test_moves_pass_through_journal_and_snapshot() -> None:
    core = halves(restart_s=1.0)

    copy = restore(decode_state(encode_state(snapshot(core))))
    event = decode(encode(ConfigChanged(core.settings), 1.0))[1]

    assert copy.jobs.moved == core.jobs.moved
    assert snapshot(core)["version"] == 15
    assert isinstance(event, ConfigChanged)
    assert event.settings == core.settings


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_the_cheapest_moves_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    servers = [4] * int(rng.integers(2, 4))
    core = core_of(*servers, consolidate_s=1e4)
    for k in range(sum(servers)):
        submit(core, f"j{k}", int(rng.choice([1, 1, 2])))
    shared(core, 0.0)
    rows = core.jobs.leased
    start(core, *rows.tolist())
    restart_s = rng.integers(1, 90, len(rows)).astype(float)
    tell(core, TurnMeasured(rows, core.jobs.lease[rows], restart_s, np.zeros(len(rows))), 1.0)
    for row in core.jobs.active[core.jobs.lease[core.jobs.active] < 0].tolist():
        tell(core, JobCancelled(row), 1.0)
    for row in rng.permutation(rows)[: len(rows) // 2].tolist():
        end(core, row, int(core.jobs.lease[row]), Outcome.FINISHED, now_s=2.0)
    submit(core, "gang", 4, 2.0)
    gang = core.jobs.count - 1
    held = {row: int(core.pool.node_of[core.jobs.gpu_first[row]]) for row in core.jobs.leased.tolist()}
    core.jobs.target[gang] = 1.0
    assume(set(held.values()) == set(range(len(servers))))  # else a node is free

    found = relocation(core.planner, gang, core.planner.free_gpus, core.jobs.leased, NONE_CHOSEN)

    least = dumb_cost(core, held, servers)
    assert (found.cost_gpu_s if found is not None else np.inf) == pytest.approx(least)


def dumb_cost(core: SchedulerCore, held: dict[int, int], servers: list[int]) -> float:
    """The least cost of moves that empty a node, by all sets of jobs, in all orders, on all nodes that have room."""
    jobs, least = core.jobs, np.inf
    used = [sum(int(jobs.gpus[row]) for row, at in held.items() if at == node) for node in range(len(servers))]
    if sum(servers) - sum(used) < 4:
        return np.inf
    for node, count in enumerate(used):
        inside = [row for row, at in held.items() if at == node]
        for some in (some for k in range(1, len(inside) + 1) for some in combinations(inside, k)):
            if servers[node] - count + sum(int(jobs.gpus[row]) for row in some) < 4:
                continue
            room = [size - n for size, n in zip(servers, used, strict=True)]
            room[node] = 0
            if any(_fits(room, [int(jobs.gpus[row]) for row in order]) for order in permutations(some)):
                least = min(least, sum(float(jobs.restart_s[row]) * int(jobs.gpus[row]) for row in some))
    return least


def _fits(room: list[int], sizes: list[int]) -> bool:
    if not sizes:
        return True
    places = [k for k, left in enumerate(room) if left >= sizes[0]]
    return any(_fits([left - sizes[0] * (k == at) for k, left in enumerate(room)], sizes[1:]) for at in places)
