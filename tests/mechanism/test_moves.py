"""Moves that pay: a lease ends for another job only if that one lags by `move_lag_s` more, and lags stay bounded."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AllocationSolved,
    ConfigChanged,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    Outcome,
    WakeupDue,
)
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.original_gavel import PriorityRule
from gavelpy.mechanism.settings import LAG_MAX, MechanismSettings
from gavelpy.model.arrays import Floats
from gavelpy.model.job import NodeId
from tests.mechanism.builders import make_mechanism, make_spec

ROUND_S = 60.0


class Turns:
    """Jobs with fixed shares (J, T) on instant nodes, one per type; books what is owed and received on its own."""

    def __init__(self, gpus: list[int], shares: Floats, sizes: list[int] | None = None, **settings: Any) -> None:
        self.core = SchedulerCore(make_mechanism(round_s=ROUND_S, lag_half_life_s=3600.0, **settings))
        self.types = tuple(f"t{k}" for k in range(len(gpus)))
        self.shares: Floats = np.zeros((0, len(gpus)))
        self.owed_s = self.received_s = self.shares
        self.lag_max_s = self.lag_min_s = 0.0
        self.moves, self.held = 0, list[int]()
        for k, count in enumerate(gpus):
            self.core.handle(NodeJoined(NodeId(f"n{k}"), self.types[k], count), 0.0)
        self.submit(np.asarray(shares, dtype=np.float64), sizes)

    def submit(self, shares: Floats, sizes: list[int] | None = None) -> None:
        """New jobs; the shares of the older ones stay."""
        first = len(self.shares)
        for row in range(len(shares)):
            spec = make_spec(f"j{first + row}", steps=1e12, rates=dict.fromkeys(self.types, 1.0),
                             gpus=1 if sizes is None else sizes[row])  # fmt: skip
            self.core.handle(JobSubmitted(spec), self.core.now_s)
        self.shares = np.concatenate([self.shares, shares])
        grown = np.zeros((len(shares), len(self.types)))
        self.owed_s, self.received_s = np.concatenate([self.owed_s, grown]), np.concatenate([self.received_s, grown])

    def set_shares(self, shares: list[list[float]]) -> None:
        """Other shares from now on."""
        self.shares = np.array(shares)
        self.core.disturb()

    def run(self, rounds: int) -> Turns:
        """Runs these rounds; each job starts and stops at once."""
        for _ in range(rounds):
            self._plan()
            held = [int(self.core.jobs.lease_type[row]) for row in range(len(self.shares))]
            self.moves += sum(a >= 0 and a != b for a, b in zip(self.held, held, strict=False))
            self.held = held
            running = np.array(held)[:, None] == np.arange(len(self.types))
            self.owed_s = self.owed_s + self.shares * ROUND_S
            self.received_s = self.received_s + running * ROUND_S
            lag_s = self.owed_s - self.received_s
            self.lag_max_s, self.lag_min_s = max(self.lag_max_s, lag_s.max()), min(self.lag_min_s, lag_s.min())
        check(self.core)
        return self

    def _plan(self) -> None:
        core, now_s = self.core, self.core.round_end_s if self.core.is_in_round else self.core.now_s
        core.handle(WakeupDue(), now_s)
        if core.awaiting:
            jobs, types = np.nonzero(self.shares)
            core.handle(AllocationSolved(core.question.open_epoch, jobs, types, self.shares[jobs, types]), now_s)
        jobs = core.jobs
        ending = np.flatnonzero(jobs.stopping[: jobs.count] >= 0)
        if len(ending):
            steps = jobs.steps_done[ending].copy()
            core.handle(LeaseEnded(ending, jobs.stopping[ending].copy(), steps, Outcome.STOPPED), now_s)
        new = jobs.leased[jobs.since_s[jobs.leased] < 0]
        if len(new):
            gpus = [jobs.gpus_held(row) for row in new.tolist()]
            offsets = np.cumsum([0, *map(len, gpus)])
            core.handle(LeaseStarted(new, jobs.lease[new].copy(), offsets, np.concatenate(gpus)), now_s)


def stays(held: list[int]) -> list[int]:
    """Lengths of runs of equal values, without the first and the last, which are cut off."""
    ends = [k for k, (a, b) in enumerate(pairwise(held)) if a != b]
    return [b - a for a, b in pairwise(ends)]


def runner(turns: Turns, rounds: int) -> list[int]:
    """The job on the only GPU, round by round."""
    found = []
    for _ in range(rounds):
        turns.run(1)
        found.append(next(row for row, kind in enumerate(turns.held) if kind >= 0))
    return found


def test_a_running_job_keeps_its_gpu_until_another_lags_by_the_setting_more() -> None:
    turns = Turns([1], np.array([[0.5], [0.5]]), move_lag_s=600.0)

    lengths = stays(runner(turns, 200))

    # The difference of the lags goes from -600 s to +600 s by 60 s per round; of equals, the job that lags comes first
    assert set(lengths[1:]) == {20}


def test_without_the_setting_jobs_take_turns_every_round() -> None:
    lengths = stays(runner(Turns([1], np.array([[0.5], [0.5]])), 100))

    assert set(lengths[1:]) == {1}


def test_a_job_that_never_ran_does_not_wait_for_a_lag() -> None:
    turns = Turns([1], np.array([[0.9]]), move_lag_s=3_600.0).run(100)
    turns.submit(np.array([[0.1]]))

    turns.run(2)

    assert turns.held == [-1, 0]


@pytest.mark.parametrize("share", [0.3, 0.02, 0.008])
def test_a_small_share_does_not_starve(share: float) -> None:
    turns = Turns([1], np.array([[1.0 - share], [share]]), move_lag_s=300.0)
    period = (300.0 + 2 * ROUND_S) / share / ROUND_S  # rounds in which its lag grows by the setting

    turns.run(round(4 * period))

    assert turns.received_s[1, 0] >= 2 * ROUND_S
    assert abs(turns.owed_s[1, 0] - turns.received_s[1, 0]) <= LAG_MAX * 300.0 + ROUND_S


def test_a_job_that_used_an_idle_gpu_for_long_pays_back_a_bounded_time() -> None:
    turns = Turns([1], np.array([[0.5]]), move_lag_s=600.0).run(600)
    turns.submit(np.array([[0.5]]))
    turns.core.settle()

    found = runner(turns, 300)

    away = [length for length, row in zip(stays(found), found, strict=False) if length]
    assert max(away) * ROUND_S <= 2 * (LAG_MAX + 1) * 600.0 + 2 * ROUND_S


def test_gangs_that_can_never_run_together_claim_a_bounded_time() -> None:
    """The counterexample to a bound on all lags: two gangs of 2 on 3 GPUs are owed 3/4 each, and get 1/2."""
    turns = Turns([3], np.array([[0.75], [0.75]]), [2, 2], move_lag_s=600.0).run(1_000)
    lag_s = turns.core.jobs.owed_s[:2, 0] - turns.core.jobs.received_s[:2, 0]

    assert turns.lag_max_s > 10_000.0
    assert lag_s.max() <= LAG_MAX * 600.0
    assert np.ptp(turns.received_s[:, 0]) <= 2 * 600.0 + 2 * ROUND_S


def test_a_job_without_a_share_stays_where_no_faster_gpu_is_free() -> None:
    turns = Turns([1, 1], np.array([[0.0, 1.0], [0.0, 0.0]]), move_lag_s=600.0).run(3)
    assert turns.held == [1, 0]

    turns.set_shares([[0.0, 0.0], [0.0, 0.0]])
    turns.run(20)

    assert (turns.held, turns.moves) == ([1, 0], 0)


def test_a_job_leaves_a_type_on_which_it_has_no_share_at_once() -> None:
    turns = Turns([1, 1], np.array([[1.0, 0.0]]), move_lag_s=3_600.0).run(3)

    turns.set_shares([[0.0, 1.0]])
    turns.run(2)

    assert turns.held == [1]


def test_a_smaller_setting_limits_lags_at_once() -> None:
    turns = Turns([3], np.array([[0.75], [0.75]]), [2, 2], move_lag_s=6_000.0).run(400)

    turns.core.handle(ConfigChanged(make_mechanism(round_s=ROUND_S, move_lag_s=60.0)), turns.core.now_s)

    check(turns.core)
    assert np.abs(turns.core.jobs.owed_s[:2] - turns.core.jobs.received_s[:2]).max() <= LAG_MAX * 60.0


@pytest.mark.parametrize("value", [-1.0, float("nan"), 604_801.0])
def test_the_setting_has_a_range(value: float) -> None:
    with pytest.raises(InvalidInput, match="move_lag_s must be in"):
        MechanismSettings(move_lag_s=value)


def test_the_original_rules_have_no_such_setting() -> None:
    with pytest.raises(InvalidInput, match="move_lag_s must be 0 where priority is 'osdi20', got 60"):
        make_mechanism(priority=PriorityRule.OSDI20, move_lag_s=60.0)


def random_turns(seed: int) -> Turns:
    """One-GPU jobs with random shares of all GPUs of one type, and a random setting of one to ten rounds."""
    rng = np.random.default_rng(seed)
    gpus = int(rng.integers(1, 6))
    count = gpus + int(rng.integers(1, 12))
    shares = rng.dirichlet(np.full(count, rng.choice([0.1, 0.3, 1.0, 5.0]))) * gpus
    for _ in range(50):  # at most 1 each: the excess goes to the others
        excess = np.maximum(shares - 1.0, 0.0).sum()
        shares = np.minimum(shares, 1.0)
        room = 1.0 - shares
        shares = shares + excess * room / max(room.sum(), 1e-12)
    shares = np.floor(np.minimum(shares, 1.0) * 2**20) / 2**20
    return Turns([gpus], shares[:, None], move_lag_s=float(rng.choice([1, 2, 5, 10])) * ROUND_S)


def proved_bound_s(gpus: int, jobs: int, move_lag_s: float) -> float:
    """B(1) of docs/decisions/0039, from its recurrence as a linear system; 0 for one job."""
    grown = np.minimum(np.arange(1, jobs), gpus) * ROUND_S
    bent = 2.0 * np.eye(jobs - 1) - np.eye(jobs - 1, k=1) - np.eye(jobs - 1, k=-1)
    return float(np.linalg.solve(bent, move_lag_s + 3.0 * grown)[0]) if jobs > 1 else 0.0


def assert_lags_are_bounded(seeds: range) -> None:
    for seed in seeds:
        turns = random_turns(seed).run(120)
        move_lag_s, gpus = turns.core.settings.move_lag_s, len(turns.core.pool.node_of)
        most_s = LAG_MAX * (move_lag_s + ROUND_S)
        if turns.lag_max_s <= LAG_MAX * move_lag_s:
            assert turns.lag_max_s <= proved_bound_s(gpus, len(turns.shares), move_lag_s), f"seed {seed}"
        assert -most_s <= turns.lag_min_s, f"seed {seed}: {turns.lag_min_s:g} s"
        assert turns.lag_max_s <= most_s, f"seed {seed}: {turns.lag_max_s:g} s"


def test_received_time_stays_near_what_is_owed() -> None:
    assert_lags_are_bounded(range(12))


@pytest.mark.slow
def test_received_time_stays_near_what_is_owed_in_a_thousand_simulations() -> None:
    assert_lags_are_bounded(range(1_000))
