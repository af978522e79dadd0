"""Shadow prices over time: equal to a second computation, exact over snapshots and restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import numpy as np
import pytest

from gavelpy.errors import InvalidInput, JournalCorrupt
from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.events import NO_INTS, AllocationSolved
from gavelpy.runtime.daemon.queries.shadow_prices import ShadowPrice, shadow_prices
from gavelpy.runtime.daemon.shadow_prices import GPU, Priced, PriceRow, ShadowPrices
from gavelpy.runtime.daemon.usage import DAY_S, HOUR_S, HOURLY_S
from tests.runtime.daemon.harness import Agent, make_config, make_spec, running

TYPES = ("v100", "k80")
V100 = Priced("max_min_fairness", "v100", GPU)


def answer(*values: float, cpus: tuple[float, ...] = ()) -> AllocationSolved:
    """An allocation with these marginal values of GPUs, and of CPU cores."""
    resources = ("cpus",) if cpus else ()
    return AllocationSolved(
        1, NO_INTS, NO_INTS, np.empty(0), marginal_value=np.array(values), resources=resources,
        resource_value=np.array([cpus]) if cpus else np.empty(0),
    )  # fmt: skip


def solved(history: ShadowPrices, event: AllocationSolved, now_s: float, policy: str = "max_min_fairness") -> None:
    history.solved(event, TYPES, policy, now_s)


def test_a_price_holds_until_the_next_allocation() -> None:
    history = ShadowPrices()

    solved(history, answer(0.5, 0.0), 600.0)
    solved(history, answer(0.1, 0.0), 1_800.0)

    assert history.rows(0.0, HOUR_S, 3_000.0)[1] == PriceRow(0, HOUR_S, V100, 2_400.0, 0.5 * 1_200 + 0.1 * 1_200, 0.5)


def test_an_allocation_of_a_rule_states_no_price() -> None:
    history = ShadowPrices()

    solved(history, answer(0.5, 0.0), 0.0)
    solved(history, answer(), 100.0, "fifo")

    assert [row.known_s for row in history.rows(0.0, HOUR_S, 3_000.0)] == [100.0, 100.0]


def test_a_price_that_is_not_a_number_is_not_known() -> None:
    history = ShadowPrices()

    solved(history, answer(float("nan"), 0.25), 0.0)

    assert [row.priced.gpu_type for row in history.rows(0.0, HOUR_S, 10.0)] == ["k80"]


def test_other_resources_count_where_they_limit_jobs() -> None:
    history = ShadowPrices()

    solved(history, answer(0.5, 0.5, cpus=(0.03, 0.0)), 0.0)

    rows = [row for row in history.rows(0.0, HOUR_S, 10.0) if row.priced.resource == "cpus"]
    assert rows == [PriceRow(0, HOUR_S, V100._replace(resource="cpus"), 10.0, pytest.approx(0.3), 0.03)]


def test_rows_equal_a_sum_over_intervals_over_two_months() -> None:
    rng, history, now_s = Random(5), ShadowPrices(), 0.0
    intervals: list[tuple[str, float, float, float]] = []  # policy, value of a V100, start, end

    while now_s < 62 * DAY_S:
        policy, value = rng.choice(["max_min_fairness", "min_cost"]), rng.random()
        solved(history, answer(value, 0.0), now_s, policy)
        until_s = now_s + rng.expovariate(1 / 9_000)
        intervals.append((policy, value, now_s, until_s))
        now_s = until_s
        if rng.random() < 0.1:
            history = ShadowPrices.restore(decode_state(encode_state(history.snapshot())))

    rows = [row for row in history.rows(0.0, now_s, now_s) if row.priced.gpu_type == "v100"]
    assert {row.length_s for row in rows} == {HOUR_S, DAY_S}
    assert min(row.start_s for row in rows if row.length_s == HOUR_S) >= now_s - HOURLY_S - 2 * DAY_S
    for row in rows:
        overlaps = [
            value * max(min(ended_s, row.end_s) - max(began_s, row.start_s), 0.0)
            for policy, value, began_s, ended_s in intervals
            if policy == row.priced.policy
        ]
        assert row.price_s == pytest.approx(sum(overlaps))
    assert sum(row.known_s for row in rows) == pytest.approx(now_s)


def test_a_corrupt_snapshot_is_refused() -> None:
    with pytest.raises(JournalCorrupt, match="prices in the snapshot are corrupt"):
        ShadowPrices.restore({"rows": {"0": [1.0]}, "now": {}, "since_s": 0.0, "daily_s": 0.0})


def test_an_older_snapshot_has_no_prices() -> None:
    assert ShadowPrices.restore(None).rows(0.0, DAY_S, DAY_S) == []


def test_prices_outlive_a_scheduler_that_is_killed(tmp_path: Path) -> None:
    before, after = asyncio.run(_over_a_kill(tmp_path))

    assert [(row.policy, row.gpu_type, row.resource) for row in before] == [("max_min_fairness", "v100", GPU)]
    assert before[0].mean > 0  # two jobs of two GPUs, on two GPUs
    assert after[0].known_s > before[0].known_s
    assert after[0].mean > 0


async def _over_a_kill(directory: Path) -> tuple[list[ShadowPrice], list[ShadowPrice]]:
    config = make_config(directory)
    agent = Agent("n0", gpus=2)
    async with running(config, in_good_order=False) as cluster, agent.connected(cluster):
        # Otherwise the first job could be exempt from preemption before a problem has both: no GPU would have a price.
        await cluster.submit(*(make_spec(name, gpus=2, preemptible=True) for name in ("one", "two")))
        await cluster.until(lambda: any(row.mean > 0 for row in shadow_prices(cluster.scheduler)), "GPUs are scarce")
        before = list(shadow_prices(cluster.scheduler))
        with pytest.raises(InvalidInput, match="until_s must be later than since_s"):
            shadow_prices(cluster.scheduler, 2_000.0, 1_000.0)
    async with running(config) as cluster:
        await cluster.until(lambda: bool(shadow_prices(cluster.scheduler)), "prices are known")
        await asyncio.sleep(0.05)
        return before, list(shadow_prices(cluster.scheduler))
