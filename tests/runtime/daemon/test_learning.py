"""Rates of running jobs: measured by the scheduler, learned by the estimator, reported to the core and to owners."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gavelpy.mechanism.lifecycle import JobState
from gavelpy.runtime.daemon.engine.forecast import Forecaster
from gavelpy.runtime.daemon.engine.throughput_files import believable_table
from gavelpy.runtime.daemon.queries.explain import Explainer
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from tests.runtime.daemon.harness import Agent, Running, make_config, make_spec, running

TYPES = ("v100", "k80")
QUICK: dict[str, Any] = {"throughputs": {"warm_up_s": 0.0}, "mechanism": {"round_s": 1.0, "solve_interval_s": 0.2}}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120.0))


async def run_at(cluster: Running, agent: Agent, job: int, rate: float) -> None:
    """The job runs, and its node reports steps and this rate, until the core has adopted it."""
    await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, "it runs")
    (report,) = (report for report in agent.leases.values() if report.job == job)
    report.rate_steps_per_s = rate

    def is_believed() -> bool:
        report.steps_done += 1.0
        return bool(cluster.core.jobs.rate[job, 0] == pytest.approx(rate, rel=0.05))

    await cluster.until(is_believed, "the core believes what was measured")


def test_a_job_without_rates_runs_and_the_core_learns_how_fast(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path, **QUICK)) as cluster, Agent("n0").connected(cluster) as agent:
            (job,) = await cluster.submit(make_spec(rates_steps_per_s={}, job_type="resnet"))

            await run_at(cluster, agent, job, 5.0)

            assert cluster.scheduler.measuring.notes.get(job, ()) == ()

    run(scenario())


def test_figures_of_an_owner_are_outvoted_and_what_was_learned_survives_a_crash(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path, **QUICK)
        async with running(config, in_good_order=False) as cluster, Agent("n0").connected(cluster) as agent:
            (job,) = await cluster.submit(make_spec(rates_steps_per_s={"v100": 10.0}))
            await run_at(cluster, agent, job, 4.0)
            believed = float(cluster.core.jobs.rate[job, 0])
            board, forecaster = JobQueries(cluster.scheduler), Forecaster()
            explained = await Explainer(cluster.scheduler, board, forecaster).explain(job)
            forecaster.close()
            submitted = dict(cluster.core.jobs.specs[job].rates_steps_per_s)
        async with running(config) as cluster:
            kept = float(cluster.core.jobs.rate[job, 0])

        assert explained.notes[0].startswith("claimed 10 steps/s on v100; measured 4 ± ")
        assert (submitted, kept) == ({"v100": 10.0}, believed)

    run(scenario())


def test_where_estimates_are_not_wanted_a_job_without_rates_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path, throughputs={"estimate": False})
        async with running(config) as cluster, Agent("n0").connected(cluster) as agent:
            (job,) = await cluster.submit(make_spec(rates_steps_per_s={}))
            (other,) = await cluster.submit(make_spec())
            await cluster.until(lambda: cluster.core.jobs.state[other] == JobState.RUNNING, "the other runs")

            assert np.isnan(cluster.core.jobs.rate[job]).all()
            assert {report.job for report in agent.leases.values()} == {other}

    run(scenario())


def test_absurd_rates_of_the_file_are_named_with_their_line_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rates.csv"
    rows = [
        f"net {n},1,{gpu_type},{rate}" for n in range(4) for gpu_type, rate in (("k80", 2), ("p100", 6), ("v100", 10))
    ]
    file.write_text(
        "\n".join(["job_type,gpus,gpu_type,rate_steps_per_s", *rows, "odd,1,k80,1e7", "odd,1,p100,6", "odd,1,v100,10"])
    )

    found = believable_table(str(file))

    assert [note.split(": ")[0] for note in found.notes] == [f"{file}:14"]
    assert found.table.rates("odd", 1) == {"p100": 6.0, "v100": 10.0}
