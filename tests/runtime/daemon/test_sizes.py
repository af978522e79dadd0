"""Jobs of several sizes in the scheduler: grants of each size, restarts of the scheduler, refusals, keys."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.model.job import JobSpec
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from tests.runtime.daemon.harness import Agent, Running, make_config, make_spec, running

QUICK: dict[str, Any] = {
    "throughputs": {"estimate": False},
    "mechanism": {"round_s": 1.0, "solve_interval_s": 0.2, "start_max_s": 0.0},
}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120.0))


def make_elastic(name: str = "-", **fields: Any) -> JobSpec:
    """A job on 1 or 2 V100s, with rates of 10 and 18 steps/s."""
    return make_spec(name, sizes=(1, 2), rates_by_size={2: {"v100": 18.0}}, preemptible=True, **fields)


async def until_held(cluster: Running, job: int, gpus: int) -> None:
    """Waits until a job runs on this many GPUs."""
    jobs = cluster.core.jobs
    await cluster.until(
        lambda: jobs.state[job] == JobState.RUNNING and jobs.gpus[job] == gpus, f"job {job} runs on {gpus} GPUs"
    )


def test_ranks_and_world_size_are_those_of_the_size_held(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            running(make_config(tmp_path, **QUICK)) as cluster,
            Agent("n0").connected(cluster) as one,
            Agent("n1").connected(cluster) as two,
        ):
            await cluster.until(lambda: len(cluster.core.pool.node_ids) == 2, "both nodes are there")
            (job,) = await cluster.submit(make_elastic(plans={1: "alone", 2: "dp2"}))
            await until_held(cluster, job, 2)
            (other,) = await cluster.submit(make_spec())
            await until_held(cluster, other, 1)
            await until_held(cluster, job, 1)
            await cluster.scheduler.cancel([other])
            await until_held(cluster, job, 2)

            found = [(lease, launch) for agent in (one, two) for lease, launch in agent.launches]
            assert {launch.plan for _, launch in found if launch.world_size == 2} == {"dp2"}
            assert {launch.plan for _, launch in found if launch.world_size == 1} == {"", "alone"}
            mine = sorted((lease, launch.first_rank, launch.world_size, launch.node_count, launch.rate_steps_per_s)
                          for lease, launch in found if launch.job_name == f"job-{job}")  # fmt: skip
            (status,) = JobQueries(cluster.scheduler).statuses([job])
            history = [entry.text for entry in cluster.scheduler.history.entries(job) if entry.kind == "started"]

            assert [each[1:] for each in mine] == [
                (0, 2, 2, 18.0), (1, 2, 2, 18.0), (0, 1, 1, 10.0), (0, 2, 2, 18.0), (1, 2, 2, 18.0)
            ]  # fmt: skip
            assert (status.gpus, status.sizes, status.rate_steps_per_s) == (2, (1, 2), 18.0)
            assert history == ["2 GPUs", "1 GPU", "2 GPUs"]

    run(scenario())


def test_lease_keeps_its_size_through_a_crash_of_the_scheduler(tmp_path: Path) -> None:
    async def scenario() -> None:
        config, agent = make_config(tmp_path, **QUICK), Agent("n0", gpus=2)
        async with running(config, in_good_order=False) as cluster, agent.connected(cluster):
            (job,) = await cluster.submit(make_elastic())
            await until_held(cluster, job, 2)
            lease = int(cluster.core.jobs.lease[job])
        async with running(config) as cluster, agent.connected(cluster):
            await cluster.until(lambda: cluster.scheduler.leases.leases[lease].is_started, "the node has reported")
            await until_held(cluster, job, 2)

            assert (int(cluster.core.jobs.lease[job]), len(agent.launches)) == (lease, 1)
            assert cluster.scheduler.leases.leases[lease].rate_steps_per_s == 18.0

    run(scenario())


def test_a_policy_that_does_not_use_sizes_refuses_them_and_is_refused_while_such_jobs_live(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path, policy={"name": "gandiva"})) as cluster:
            with pytest.raises(InvalidInput, match=r"policy 'gandiva' does not use sizes.*got 1, 2 for job"):
                await cluster.submit(make_elastic())
            await cluster.scheduler.set_policy("max_min_fairness")
            (job,) = await cluster.submit(make_elastic())
            with pytest.raises(InvalidInput, match="policy 'gandiva' does not use sizes"):
                await cluster.scheduler.set_policy("gandiva")
            await cluster.scheduler.cancel([job])
            await cluster.scheduler.set_policy("gandiva")

            assert cluster.scheduler.choice.name == "gandiva"

    run(scenario())


def test_a_key_stands_for_the_same_sizes_and_rates(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            (first,) = await cluster.submit(make_elastic(), key="k")
            (again,) = await cluster.submit(make_elastic(), key="k")
            with pytest.raises(InvalidInput, match="'k' must be repeated with the same jobs"):
                await cluster.submit(make_spec(sizes=(1, 2), rates_by_size={2: {"v100": 19.0}}), key="k")

            assert first == again

    run(scenario())
