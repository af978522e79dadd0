"""Histories with nodes that are lost or change, and with price changes."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.journal.history import History
from gavelpy.mechanism.events import AgentRejoined, JobSubmitted, NodeJoined, NodeLost, PriceChanged, WakeupDue
from gavelpy.model.job import NodeId
from tests.journal.test_history import ended, make_history, started, stays_of
from tests.mechanism.builders import make_spec

N0, N1 = NodeId("n0"), NodeId("n1")


def rejoined(node: NodeId, *leases: int) -> AgentRejoined:
    rows = np.array(leases, dtype=np.int64)
    return AgentRejoined(node, np.zeros(len(leases), dtype=np.int64), rows, np.zeros(len(leases)))


def test_a_stay_ends_with_its_server() -> None:
    history = make_history()
    history.apply(started(0, 2), 10.0)

    history.apply(NodeLost(N1), 40.0)
    history.apply(ended(0), 90.0)

    assert stays_of(history) == [(1, 10.0, 40.0)]
    assert history.preemptions[0] == 1


def test_the_stay_of_a_gang_ends_with_any_of_its_servers() -> None:
    history = make_history(gpus=2)
    history.apply(NodeJoined(NodeId("n2"), "k80", 1), 0.0)
    history.apply(started(0, 3, 4), 10.0)

    history.apply(NodeLost(N1), 40.0)

    assert stays_of(history) == [(1, 10.0, 40.0)]


def test_a_stay_elsewhere_goes_on_when_a_server_dies() -> None:
    history = make_history()
    history.apply(started(0, 2), 10.0)
    history.apply(ended(0), 20.0)
    history.apply(started(1, 0), 20.0)

    history.apply(NodeLost(N1), 40.0)
    history.apply(WakeupDue(), 50.0)

    assert stays_of(history) == [(1, 10.0, 20.0), (0, 20.0, 50.0)]


def test_a_server_that_died_before_anything_ran_ends_nothing() -> None:
    history = make_history()

    history.apply(NodeLost(N1), 40.0)

    assert stays_of(history) == []


def test_a_stay_ends_when_its_server_comes_back_without_it() -> None:
    history = make_history()
    history.apply(started(0, 0), 10.0)

    history.apply(rejoined(N0, 0), 30.0)
    history.apply(rejoined(N0), 40.0)

    assert stays_of(history) == [(0, 10.0, 40.0)]


def test_a_server_that_comes_back_with_other_gpus_is_counted_anew() -> None:
    history = make_history()
    history.apply(started(0, 1), 10.0)

    history.apply(NodeJoined(N0, "v100", 1), 30.0)
    history.apply(NodeJoined(N1, "a100", 3), 40.0)
    history.apply(started(1, 4), 50.0)
    history.apply(WakeupDue(), 60.0)

    assert dict(zip(history.gpu_types, history.gpu_counts, strict=True)) == {"v100": 1, "k80": 0, "a100": 3}
    assert stays_of(history) == [(0, 10.0, 30.0), (2, 50.0, 60.0)]


def priced_history() -> History:
    """Job 0 on two V100s from 1800 s to 5400 s."""
    history = make_history(gpus=2)
    history.apply(PriceChanged("v100", 3.0), 0.0)
    history.apply(PriceChanged("k80", 1.0), 0.0)
    history.apply(started(0, 0, 1), 1800.0)
    return history


def test_time_costs_what_its_moment_cost() -> None:
    history = priced_history()
    history.apply(PriceChanged("v100", 6.0), 3600.0)
    history.apply(PriceChanged("k80", 9.0), 3600.0)
    history.apply(PriceChanged("v100", 100.0), 5400.0)

    history.apply(ended(0), 5400.0)

    assert history.cost_usd() == pytest.approx(2 * (0.5 * 3.0 + 0.5 * 6.0))


def test_time_before_the_first_price_costs_nothing() -> None:
    history = make_history()
    history.apply(started(0, 0), 0.0)
    history.apply(PriceChanged("v100", 2.0), 1800.0)

    history.apply(ended(0), 3600.0)

    assert history.cost_usd() == pytest.approx(1.0)


@pytest.mark.parametrize("stays", [1, 7])
def test_a_price_that_never_changes_costs_the_same_by_both_ways(stays: int) -> None:
    plain, changed = priced_history(), priced_history()
    changed.apply(PriceChanged("v100", 3.0), 2000.0)

    plain.apply(ended(0), 1800.0 + 100.0 * stays)
    changed.apply(ended(0), 1800.0 + 100.0 * stays)

    assert changed.cost_usd() == pytest.approx(plain.cost_usd(), rel=1e-12)


def test_a_job_that_never_ran_costs_nothing() -> None:
    history = priced_history()
    history.apply(JobSubmitted(make_spec("b")), 1900.0)

    history.apply(ended(0), 1800.0)

    assert history.cost_usd() == 0.0
