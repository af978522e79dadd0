"""Themis' auction against all combinations and against false bids; leases, filter and leftovers of the policy."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.cluster import Cluster
from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.policies import partial_allocation as module
from gavelpy.policies.base import PolicyRun
from gavelpy.policies.partial_allocation import Bids, Sale, partial_allocation
from gavelpy.policies.themis import Themis
from gavelpy.simulator.compare import compare
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs

FEW = 40
AUCTIONS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(1_000)]
LIES = 20


def random_bids(seed: int) -> Bids:
    """Two to four bidders with one to four bundles each, on two types with few GPUs; some cannot all be served."""
    rng = np.random.default_rng(seed)
    rows = []
    for bidder in range(int(rng.integers(2, 5))):
        bundles = list(itertools.product(range(2), (1, 2, 4)))
        chosen = rng.choice(len(bundles), int(rng.integers(1, 5)), replace=False)
        rows += [(bidder, *bundles[k]) for k in np.sort(chosen).tolist()]
    bidder, gpu_type, units = np.array(rows).T
    return Bids(bidder, gpu_type, units, rng.uniform(0.1, 3.0, len(rows)) * units**0.7, rng.integers(1, 5, 2))


def outcomes(bids: Bids, without: int = -1) -> list[tuple[int, ...]]:
    """All ways to serve the bidders, with the place of each one's bid or -1."""
    of = [[-1, *np.flatnonzero(bids.bidder == b).tolist()] if b != without else [-1] for b in range(bids.bidders)]
    found = []
    for chosen in itertools.product(*of):
        used = np.zeros(len(bids.offered))
        for k in chosen:
            if k >= 0:
                used[bids.gpu_type[k]] += bids.units[k]
        if (used <= bids.offered).all():
            found.append(chosen)
    return found


def worth(bids: Bids, chosen: tuple[int, ...], without: int = -1) -> tuple[int, float]:
    """How many are served, and the product of their values."""
    values = [bids.value[k] for b, k in enumerate(chosen) if k >= 0 and b != without]
    return len(values), math.prod(values)


def by_all_combinations(bids: Bids) -> Sale:
    best = max(outcomes(bids), key=lambda chosen: worth(bids, chosen))
    kept = []
    for b in range(bids.bidders):
        count, product = max(worth(bids, chosen) for chosen in outcomes(bids, b))
        mine = worth(bids, best, b)
        kept.append(mine[1] / product if best[b] >= 0 and mine[0] == count else 0.0)
    return Sale(np.array(best), np.array(kept))


@pytest.mark.parametrize("seed", AUCTIONS)
def test_auction_is_that_of_all_combinations(seed: int) -> None:
    bids = random_bids(seed)

    sale, expected = partial_allocation(bids), by_all_combinations(bids)

    assert sale.bid.tolist() == expected.bid.tolist()
    assert sale.kept == pytest.approx(expected.kept, abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_integer_programs_find_the_same_as_states(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bids = random_bids(seed)
    by_states = partial_allocation(bids)
    monkeypatch.setattr(module, "STATES_MAX", 0)

    by_programs = partial_allocation(bids)

    assert by_programs.bid.tolist() == by_states.bid.tolist()
    assert by_programs.kept == pytest.approx(by_states.kept, abs=1e-4)


def gains(bids: Bids, sale: Sale, truth: Floats) -> Floats:
    """The true value that each bidder gets."""
    return np.where(sale.bid >= 0, sale.kept * truth[sale.bid], 0.0)


@pytest.mark.parametrize("seed", AUCTIONS)
def test_no_single_false_bid_gains(seed: int) -> None:
    bids, rng = random_bids(seed), np.random.default_rng(seed)
    honest = gains(bids, partial_allocation(bids), bids.value)
    excess = []
    for _ in range(LIES):
        liar = int(rng.integers(bids.bidders))
        own = bids.bidder == liar
        stated = np.where(own, bids.value * np.exp(rng.normal(0.0, rng.choice([0.3, 2.0, 8.0]), len(own))), bids.value)
        excess.append(gains(bids, partial_allocation(replace(bids, value=stated)), bids.value)[liar] - honest[liar])

    assert max(excess) <= 1e-8  # sums of logarithms next to 1e6 for each bidder that is not served


def test_without_payments_a_false_bid_gains() -> None:
    """a and b compete for two types; a states little for its second best, so that it gets the best one."""
    bids = Bids(
        np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), np.ones(4, np.int64), np.array([2.0, 1.9, 2.0, 1.0]), np.ones(2)
    )
    bids = replace(bids, offered=np.ones(2, np.int64))
    false = replace(bids, value=np.array([2.0, 0.1, 2.0, 1.0]))
    honest, lying = partial_allocation(bids), partial_allocation(false)

    assert (bids.value[honest.bid[0]], bids.value[lying.bid[0]]) == (1.9, 2.0)
    assert lying.kept[0] * 2.0 < honest.kept[0] * 1.9


def test_a_bidder_that_takes_the_only_bundle_of_another_keeps_nothing() -> None:
    bids = Bids(np.arange(2), np.zeros(2, np.int64), np.ones(2, np.int64), np.array([2.0, 3.0]), np.ones(1, np.int64))

    assert partial_allocation(bids).kept.tolist() == [0.0, 0.0]


def leased(answer_share: Floats) -> list[bool]:
    return (answer_share.sum(axis=1) > 0).tolist()


def test_the_jobs_with_the_worst_ratios_bid_and_others_get_what_is_left() -> None:
    problem = AllocationProblem.of(
        "abcde", ["v100"], [2], np.ones((5, 1)), steps_remaining=1e4, age_s=[0.0, 9e5, 10.0, 5e4, 20.0]
    )
    answer = Themis().allocate(problem)

    assert leased(answer.share) == [False, True, False, True, False]  # b bids alone; d gets the GPU that is left
    assert answer.next_round is not None
    assert answer.next_round[:, 0].tolist() == [1, 3, 4, 2, 0]  # then, for GPUs that become free, by ratio


def test_leases_last_until_their_ends_and_then_go_to_the_worst() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], np.ones((2, 1)), steps_remaining=1e4, age_s=[100.0, 0.0])
    first = Themis(lease_s=600.0).allocate(problem)
    within = replace(problem, age_s=np.array([600.0, 9e5]), memory=first.memory)
    over = replace(problem, age_s=np.array([700.0, 9e5]), memory=first.memory)

    assert first.again_s == 600.0
    assert leased(first.share) == leased(Themis(lease_s=600.0).allocate(within).share) == [True, False]
    assert leased(Themis(lease_s=600.0).allocate(over).share) == [False, True]


def test_hidden_payments_shorten_leases() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [2], [[1.0], [1.0]], steps_remaining=600.0)
    problem = problem.with_sizes({"a": [Size(2, efficiency=0.75)], "b": [Size(2, efficiency=1.0)]})

    assert Themis(filtered=0.0).allocate(problem).memory == b'{"a":[0,1000,600.0],"b":[0,1000,800.0]}'


def with_a_waiting_gang() -> AllocationProblem:
    """a and b hold GPUs for another 300 and 500 s, gang wants 4 of the 4 and has the worst ratio, and d waits."""
    problem = AllocationProblem.of(
        ["a", "b", "gang", "d"], ["v100"], [4], np.ones((4, 1)), steps_remaining=1e4, age_s=[100.0, 100.0, 9e5, 0.0],
        gpus=[1, 1, 4, 1],
    )  # fmt: skip
    return replace(problem, memory=b'{"a":[0,1000,400.0],"b":[0,1000,600.0]}')


@pytest.mark.parametrize(("reserves", "end"), [(False, 1200.0), (True, 500.0)])
def test_with_reserve_new_leases_end_when_a_waiting_gang_has_room(reserves: bool, end: float) -> None:
    answer = Themis(reserve=reserves).allocate(with_a_waiting_gang())

    assert leased(answer.share) == [True, True, False, True]
    assert json.loads(answer.memory)["d"] == [0, 1000, end]


def test_with_reserve_a_lease_is_as_usual_if_no_job_that_may_bid_lacks_room() -> None:
    problem = replace(with_a_waiting_gang(), age_s=np.array([100.0, 100.0, 0.0, 9e5]))

    answer = Themis(reserve=True).allocate(problem)

    assert json.loads(answer.memory)["d"] == [0, 1000, 9e5 + 1200.0]  # d bids, with the worst ratio


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"filtered": 1.0}, "filtered must be in"),
        ({"lease_s": 0.0}, "lease_s must be finite and at least 1"),
        ({"reserve": 2.0}, "reserve must be true"),
    ],
)
def test_refuses_parameters(parameters: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Themis(**parameters)  # type: ignore[arg-type]  # a number for a Boolean is refused


def test_simulates_a_trace() -> None:
    table = published_throughputs()
    trace = generate(GeneratorOptions(6, rate_jobs_per_h=6.0), table, np.random.default_rng(0))
    found = compare(trace, Cluster.parse("v100:4,k80:4"), [PolicyRun("themis")], throughputs=table)["themis"]

    assert found.metrics.jobs_unfinished == 0
