"""Plans: against an exhaustive search, full mixes against brute force, and inputs that allow none."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.sweeps.plan import Shop, exhaustive, plan
from gavelpy.sweeps.trials import Metric, Trials
from tests.cli.commands import Gavel

RATES = ((10, 6, 1), (9, 8, 2), (4, 4, 3), (20, 5, 1), (6, 3, 2))  # steps/s on v100, p100, k80
SHOP = Shop(("v100", "p100", "k80"), (2.48, 1.46, 0.45), 1, 15.0)
METRIC = Metric.parse("average_jct_h")
TRACE = "id,arrival_s,steps_total,gpus,rate_v100,rate_k80\n" + "".join(f"{i},{i * 60},36000,1,10,4\n" for i in range(6))


@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=3), st.integers(1, 4), st.floats(1.0, 6.0))
def test_full_mixes_are_those_of_brute_force(prices: list[float], per_node: int, times: float) -> None:
    node_usd = np.array(prices) * per_node
    shop = Shop(tuple("abc"[: len(prices)]), tuple(prices), per_node, float(node_usd.min() * times))
    most = [int(shop.budget_usd_per_h / usd) + 1 for usd in node_usd]

    within = [
        mix
        for mix in itertools.product(*(range(n + 1) for n in most))
        if shop.cost(mix) <= shop.budget_usd_per_h + 1e-9
    ]
    full = {mix for mix in within if shop.cost(mix) + node_usd.min() > shop.budget_usd_per_h + 1e-9}

    assert set(shop.full_mixes()) == full


@pytest.mark.parametrize("policy", ["max_min_fairness", pytest.param("fifo", marks=pytest.mark.slow)])
def test_plan_is_close_to_the_best_of_all_mixes_with_fewer_simulations(policy: str, tmp_path: Path) -> None:
    rows = (f"{i},{60 * i},{1500 * RATES[i % 5][0]},1,{','.join(map(str, RATES[i % 5]))}\n" for i in range(15))
    path = tmp_path / "t.csv"
    path.write_text("id,arrival_s,steps_total,gpus,rate_v100,rate_p100,rate_k80\n" + "".join(rows))
    with Trials({"trace": str(path), "policy": policy}, 1, jobs=1) as trials:
        found = plan(trials, SHOP, METRIC)
        everything = exhaustive(trials, SHOP, METRIC)

    assert found.best.usd_per_h <= SHOP.budget_usd_per_h
    assert found.best.mean.mean <= 1.03 * everything[0].mean.mean
    assert found.simulations == len(found.path) < len(everything)
    assert found.best.is_taken or found.path
    assert all(difference.mean >= 0 for _, difference in found.alternatives)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["max_min_fairness", "fifo"])
@pytest.mark.parametrize("seed", range(6))
def test_plan_for_random_traces_is_close_to_the_best_of_all_mixes(seed: int, policy: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    rates = np.column_stack([rng.uniform(low, high, 5) for low, high in ((4, 12), (2, 8), (0.5, 3))])
    rng.integers(60, 400, 15)  # keeps the draws of the figures in docs/sweeps.md
    arrivals = np.sort(rng.uniform(0, 3000, 15)).astype(int)
    cells = ((i, arrivals[i], int(1500 * rates[i % 5][0]), 1, *(f"{x:.3g}" for x in rates[i % 5])) for i in range(15))
    path = tmp_path / "t.csv"
    rows = "".join(",".join(map(str, row)) + "\n" for row in cells)
    path.write_text("id,arrival_s,steps_total,gpus,rate_v100,rate_p100,rate_k80\n" + rows)

    with Trials({"trace": str(path), "policy": policy}, 1, jobs=1) as trials:
        found = plan(trials, SHOP, METRIC)
        everything = exhaustive(trials, SHOP, METRIC)

    assert found.best.mean.mean <= 1.05 * everything[0].mean.mean
    assert 2 * found.simulations < len(everything)


def test_budget_that_pays_for_no_node_is_one_line() -> None:
    with pytest.raises(InvalidInput, match=r"--budget must pay for a node of 4 GPUs, 1\.8 USD per hour or more, got 1"):
        Shop(("v100", "k80"), (2.48, 0.45), 4, 1.0)
    with pytest.raises(InvalidInput, match=r"--prices must have a price > 0 for x, got 0"):
        Shop(("x",), (0.0,), 4, 1.0)


def test_command_shows_the_search_the_answer_and_alternatives(gavel: Gavel) -> None:
    trace = gavel.file("t.csv", TRACE)
    command = (
        "plan",
        trace,
        "--budget",
        "5",
        "--gpu-types",
        "v100,k80",
        "--gpus-per-node",
        "1",
        "--seeds",
        "2",
        "--jobs",
        "1",
    )

    table, found = gavel(*command), gavel(*command, "-o", "json").json

    assert table.code == 0, table.err
    assert "USD/h" in table.out
    assert "Best of" in table.out
    assert found["best"]["usd_per_h"] <= 5
    assert set(found["best"]["gpus"]) <= {"v100", "k80"}
    assert len(found["best"]["values"]) == 2
    assert found["path"][0]["step"] == "start"
    assert found["parameters"]["options"] == {"gpus_per_node": 1, "trace": "t.csv"}
    assert list(found["parameters"]["sha256"]) == ["trace"]
    assert gavel(*command, "--gpu-types", "v100,zz").err.startswith("error: --prices must have a price > 0 for zz")


def test_types_on_which_not_all_jobs_run_are_no_answer(gavel: Gavel) -> None:
    trace = gavel.file("t.csv", TRACE + "big,400,100,2,5,\n")
    command = (
        "plan",
        trace,
        "--gpu-types",
        "v100,k80",
        "--gpus-per-node",
        "1",
        "--seeds",
        "1",
        "--jobs",
        "1",
        "-o",
        "json",
    )

    assert gavel(*command, "--budget", "5").json["best"]["gpus"]["v100"] == 2
    assert gavel(*command, "--budget", "3").code == 1
