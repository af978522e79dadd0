"""The preset gavel-osdi20 against the measurements of the original's simulator (reference/gavel_simulations.csv).

Which of many optimal shares a solver returns moves the average JCT by up to 3 % (measured on the original with three
solvers: 14,623 to 15,026 s), hence 4 %. Ours spends all slack on the jobs' rates and lies on the better side.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gavelpy.engine import Engine
from gavelpy.model.allocation import Allocation
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import equal_share_rate, ruled
from gavelpy.simulator.compare import simulate
from gavelpy.simulator.metrics import RunMetrics
from gavelpy.simulator.settings import preset
from gavelpy.simulator.simulate import Simulation
from gavelpy.solve.solver import Solver
from gavelpy.traces.reader import read_throughputs, read_trace

pytestmark = pytest.mark.reference
CLUSTERS = {"debug.trace": "v100:3,p100:3,k80:3", "max_min_fairness.trace": "v100:8,p100:16,k80:24"}
THEIR_NAME = {
    "fifo": "fifo_perf",
    "max_min_fairness": "max_min_fairness_perf",
    "min_makespan": "min_total_duration_perf",
}
SMALL_AND_LARGE = ["debug.trace", pytest.param("max_min_fairness.trace", marks=pytest.mark.slow)]
few_and_many_seeds = pytest.mark.parametrize("seeds", [5, pytest.param(30, marks=pytest.mark.slow)])


def reference(folder: Path, trace: str, policy: str) -> pd.Series:
    table = pd.read_csv(folder / "reference" / "gavel_simulations.csv")
    return table[(table["trace"] == trace) & (table["policy"] == policy)].iloc[0]


def ours(folder: Path, trace: str, policy: str, *, blind: bool = False, seed: int = 0) -> RunMetrics:
    cluster = Cluster.parse(CLUSTERS[trace], gpus_per_node=1)
    return simulate(
        read(folder, trace), cluster, policy, blind=blind, settings=preset("gavel-osdi20"), seed=seed
    ).metrics


def read(folder: Path, trace: str) -> Trace:
    table = read_throughputs(folder / "data" / "gavel" / "simulation_throughputs.json")
    return read_trace(folder / "data" / "gavel" / "traces" / trace, throughputs=table)


@pytest.mark.parametrize("trace", CLUSTERS)
def test_fifo_is_the_original_to_the_second(reference_directory: Path, trace: str) -> None:
    """No choice depends on a solver here: the only difference is the rounding of a step."""
    theirs = reference(reference_directory, trace, "fifo_perf")

    found = ours(reference_directory, trace, "fifo")

    assert found.avg_jct_s == pytest.approx(theirs["avg_jct_s"], rel=1e-4)
    assert found.makespan_s == pytest.approx(theirs["makespan_s"], rel=1e-4)


@pytest.mark.parametrize("trace", CLUSTERS)
def test_max_min_fairness_is_within_four_percent(reference_directory: Path, trace: str) -> None:
    theirs = reference(reference_directory, trace, "max_min_fairness_perf")

    found = ours(reference_directory, trace, "max_min_fairness")

    assert found.avg_jct_s == pytest.approx(theirs["avg_jct_s"], rel=0.04)
    assert found.makespan_s == pytest.approx(theirs["makespan_s"], rel=0.04)


@pytest.mark.parametrize("trace", CLUSTERS)
def test_makespan_is_within_the_five_percent_that_the_original_leaves(reference_directory: Path, trace: str) -> None:
    theirs = reference(reference_directory, trace, "min_total_duration_perf")

    found = ours(reference_directory, trace, "min_makespan")

    assert found.makespan_s == pytest.approx(theirs["makespan_s"], rel=0.05)


@few_and_many_seeds
@pytest.mark.parametrize("trace", SMALL_AND_LARGE)
@pytest.mark.parametrize(
    ("policy", "blind", "theirs"),
    [
        ("isolated", False, "isolated"),
        ("max_min_fairness", True, "max_min_fairness"),
    ],
)
def test_shuffled_runs_spread_around_the_original(
    reference_directory: Path, trace: str, policy: str, blind: bool, theirs: str, seeds: int
) -> None:
    """The original shuffles the types in each round: its one run must lie within ours of many seeds, ± 3 %."""
    measured = reference(reference_directory, trace, theirs)

    runs = [ours(reference_directory, trace, policy, blind=blind, seed=seed) for seed in range(seeds)]

    averages = np.array([found.avg_jct_s for found in runs])
    makespans = np.array([found.makespan_s for found in runs])
    assert averages.min() * 0.97 <= measured["avg_jct_s"] <= averages.max() * 1.03
    assert makespans.min() * 0.97 <= measured["makespan_s"] <= makespans.max() * 1.03


@few_and_many_seeds
@pytest.mark.parametrize("trace", SMALL_AND_LARGE)
def test_blind_makespan_spreads_around_the_original_makespan(reference_directory: Path, trace: str, seeds: int) -> None:
    """The average JCT is not compared: the original maximises a constant and returns an arbitrary point."""
    measured = reference(reference_directory, trace, "min_total_duration")

    runs = [ours(reference_directory, trace, "min_makespan", blind=True, seed=seed) for seed in range(seeds)]

    makespans = np.array([found.makespan_s for found in runs])
    assert makespans.min() * 0.97 <= measured["makespan_s"] <= makespans.max() * 1.03


@pytest.mark.slow
def test_default_settings_beat_the_original_on_its_generated_trace(reference_directory: Path) -> None:
    """36 GPUs of each type, the first 300 jobs, no costs: the original's average JCT is 49,917 s."""
    from gavelpy.mechanism.settings import MechanismSettings
    from gavelpy.simulator.settings import Costs, SimulationSettings

    free = SimulationSettings(MechanismSettings(), Costs(checkpoint_s=0.0, restart_s=0.0, migration_s=0.0))
    trace = read(reference_directory, "gen_single_lam900_seed0.trace")

    found = simulate(
        trace, Cluster.parse("v100:36,p100:36,k80:36"), "max_min_fairness", settings=free, window=(0, 300)
    ).metrics

    assert found.avg_jct_s < 49_917.0
    assert found.jobs_measured == 300


class InteriorPoint:
    """Max-min fairness by cvxpy and ECOS, as in the original: slack remains where the interior point leaves it."""

    name = "max_min_fairness"
    summary = "the original's"
    fills_leftover = True

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        import cvxpy

        rates, gpus = problem.member_rate_steps_per_s, problem.gpus_asked
        share = cvxpy.Variable(rates.shape, nonneg=True)
        levels = cvxpy.multiply(
            gpus / (problem.weight * equal_share_rate(problem)), cvxpy.sum(cvxpy.multiply(rates, share), axis=1)
        )
        limits = [cvxpy.sum(share, axis=1) <= 1, gpus @ share <= problem.gpu_counts]
        cvxpy.Problem(cvxpy.Maximize(cvxpy.min(levels)), limits).solve(solver="ECOS")
        return ruled(problem, np.clip(share.value, 0.0, 1.0), 0.0)


def test_with_the_solver_of_the_original_its_makespan_comes_out(reference_directory: Path) -> None:
    """Equal to the second where this was written; a last bit elsewhere may shift a round, hence 0.5 %.

    Without newcomers_wait it is 1.6 % shorter. So our own shares change only the slack.
    """
    trace = "max_min_fairness.trace"
    theirs = reference(reference_directory, trace, "max_min_fairness_perf")
    cluster = Cluster.parse(CLUSTERS[trace], gpus_per_node=1)

    simulation = Simulation(read(reference_directory, trace), cluster, Engine(InteriorPoint()), preset("gavel-osdi20"))
    found = simulation.run().metrics

    assert found.makespan_s == pytest.approx(theirs["makespan_s"], rel=0.005)
    assert found.avg_jct_s == pytest.approx(theirs["avg_jct_s"], rel=0.01)
