"""Past jobs leave a running scheduler for the archive, stay known, and are archived once however it ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from gavelpy.errors import InvalidInput, NotFound
from gavelpy.journal.archive_reader import Selection
from gavelpy.runtime.daemon.config_sections import PriceSettings
from gavelpy.runtime.daemon.queries.usage import usage
from gavelpy.runtime.daemon.rpc.client_service import SchedulerService
from gavelpy.runtime.local_cluster import wait_until
from gavelpy.runtime.security.identity import Caller, set_caller
from gavelpy.runtime.security.tokens import Role
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.daemon.harness import Agent, Running, make_config, make_spec, running

ALICE, BOB, ADMIN = Caller("alice", Role.USER), Caller("bob", Role.USER), Caller("root", Role.ADMIN)
USD_PER_GPU_H = 3_600_000.0


async def finish(cluster: Running, agent: Agent, job: int) -> None:
    """Runs a job and reports that it has finished."""
    jobs = cluster.core.jobs
    await cluster.until(lambda: any(order.job == job for order in agent.orders.values()), "it has a lease")
    await cluster.until(lambda: bool(agent.leases), "it runs")
    await cluster.until(lambda: cluster.scheduler.history.starts(job) > 0, "its start is known")
    agent.finish(next(lease for lease, order in agent.orders.items() if order.job == job))
    await cluster.until(lambda: job not in jobs.by_serial.active.tolist(), "it ends")


async def archive(cluster: Running, *jobs: int) -> None:
    """Lets all jobs that are over leave now."""
    archivist: Any = cluster.scheduler.driver.archivist
    archivist._retention_s, archivist._allowed_s = 0.001, 0.0
    cluster.scheduler.driver.wake()
    ids = cluster.core.jobs.ids

    def has_left() -> bool:
        archivist._allowed_s = 0.0
        cluster.scheduler.driver.wake()
        return all(ids.row(job) < 0 for job in jobs)

    await cluster.until(has_left, "they leave")
    archivist._retention_s = 1e9


async def called(cluster: Running, caller: Caller, method: str, request: Any) -> Any:
    """Calls a method of the service for clients."""
    service = SchedulerService(cluster.scheduler)

    async def call() -> Any:
        set_caller(caller)
        return await getattr(service, method)(request, SimpleNamespace())

    try:
        return await asyncio.create_task(call())
    finally:
        await service.close()


async def names(cluster: Running, caller: Caller, **request: Any) -> Sequence[str]:
    found: list[str] = []
    after = None
    while after != -1:
        page = pb.ListJobsRequest(
            all_states=True, page_size=1, **request, **({} if after is None else {"after": after})
        )
        answer = await called(cluster, caller, "ListJobs", page)
        found += [f"{job.job} {job.name}" for job in answer.jobs]
        after = answer.next_after
    return found


async def live(directory: Path) -> None:
    prices, agent = PriceSettings(usd_per_gpu_h={"v100": USD_PER_GPU_H}), Agent("n0")
    config = msgspec.structs.replace(make_config(directory), prices=prices)
    async with running(config, in_good_order=False) as cluster, agent.connected(cluster):
        assert await cluster.submit(make_spec("train"), key="k1") == [0]
        await finish(cluster, agent, 0)
        assert await cluster.submit(make_spec("later", rates_steps_per_s={"k80": 1.0})) == [1]
        await archive(cluster, 0)

        assert cluster.core.jobs.count == 1
        assert await cluster.submit(make_spec("train"), key="k1") == [0]  # the answer to a repeated request
        assert await cluster.submit(make_spec("train")) == [2]
        await check_past(cluster)

    async with running(config, in_good_order=False) as cluster:
        assert cluster.core.jobs.ids.serials.tolist() == [2]
        reader = cluster.scheduler.past
        assert [job.job for job in await reader.read(lambda archived: archived.jobs(Selection(), 9))] == [0, 1, 3]
        assert await names(cluster, ALICE) == ["0 train", "1 later", "2 train", "3 next"]
        state, entries = await reader.read(lambda archived: archived.replay(0.0))
        assert state is None
        assert "JobsArchived" in [type(event).__name__ for _, _, event in entries]


async def check_past(cluster: Running) -> None:
    """Job 0 is in the archive, job 1 lives, and job 2 has the name of job 0."""
    explained = await called(cluster, ALICE, "GetJob", pb.GetJobRequest(job="0"))
    assert explained.job.name == "train"
    assert explained.job.state == pb.JOB_STATE_FINISHED
    assert explained.job.gpu_s > 0
    assert explained.description.rates_steps_per_s == {"v100": 10.0}
    assert any("finished lease 0" in line for line in explained.history)
    assert "archive" in explained.notes[0]
    assert (await called(cluster, ALICE, "GetJob", pb.GetJobRequest(job="train"))).job.job == 2
    with pytest.raises(NotFound):
        await called(cluster, BOB, "GetJob", pb.GetJobRequest(job="0"))

    assert await names(cluster, ALICE) == ["0 train", "1 later", "2 train"]
    assert await names(cluster, BOB) == []
    assert await names(cluster, ADMIN, owner="alice", ended_since_s=1e12) == ["1 later", "2 train"]
    waited = await called(cluster, ALICE, "WaitJobs", pb.WaitJobsRequest(jobs=["0"], wait_s=0.0))
    assert waited.all_over
    assert [job.job for job in waited.jobs] == [0]
    cancelled = await called(cluster, ALICE, "CancelJobs", pb.CancelJobsRequest(jobs=["0"]))
    assert [job.state for job in cancelled.jobs] == [pb.JOB_STATE_FINISHED]
    with pytest.raises(InvalidInput, match="jobs must be not over"):
        await called(cluster, ALICE, "ChangeJobs", pb.ChangeJobsRequest(jobs=["0"], change=pb.JOB_CHANGE_REQUEUE))

    next_one = pb.JobDescription(name="next", steps_total=1.0, command="true", after=["0:ok"])
    submitted = await called(cluster, ALICE, "SubmitJobs", pb.SubmitJobsRequest(jobs=[next_one]))
    assert [job.job for job in submitted.jobs] == [3]
    assert cluster.core.jobs.by_serial.unmet[3] == 0
    await called(cluster, ALICE, "CancelJobs", pb.CancelJobsRequest(jobs=["3", "1"]))
    await archive(cluster, 3, 1)
    never = pb.JobDescription(steps_total=1.0, command="true", after=["1:ok"])
    with pytest.raises(InvalidInput, match="got job 1, which is cancelled"):
        await called(cluster, ALICE, "SubmitJobs", pb.SubmitJobsRequest(jobs=[never]))

    (row,) = (await usage(cluster.scheduler, ADMIN)).rows
    assert row.gpu_s >= explained.job.gpu_s  # job 2 has run as well
    assert row.cost_usd == pytest.approx(row.gpu_s * USD_PER_GPU_H / 3600, rel=1e-9)
    assert row.leases >= 1
    assert row.preemptions == 0


def test_what_the_core_would_refuse_is_not_journaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> int:
        async with running(make_config(tmp_path)) as cluster:
            archivist: Any = cluster.scheduler.driver.archivist
            monkeypatch.setattr(archivist, "_lost_nodes", lambda _: ("nowhere",))
            archivist._allowed_s, before = 0.0, cluster.scheduler.driver.sequence
            assert await archivist.next(cluster.scheduler.now_s()) is None
            return cluster.scheduler.driver.sequence - before

    assert asyncio.run(scenario()) == 0


def test_past_jobs_leave_stay_known_and_are_archived_once(tmp_path: Path) -> None:
    asyncio.run(live(tmp_path))


@pytest.mark.slow  # a minute: 40 starts
def test_each_past_job_is_archived_once_however_often_the_scheduler_is_killed(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    command = [sys.executable, "-m", "tests.runtime.daemon.archiving_worker", str(tmp_path)]
    for _ in range(40):
        (tmp_path / "acknowledged").touch()
        before = (tmp_path / "acknowledged").stat().st_size
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            wait_until(lambda: (tmp_path / "acknowledged").stat().st_size > before, "jobs are acknowledged")  # noqa: B023
            time.sleep(float(rng.uniform(0.0, 0.5)))
            process.kill()

    acknowledged = [int(line) for line in (tmp_path / "acknowledged").read_text().split()]
    here, archived = asyncio.run(kept(tmp_path))
    assert len(archived) > 200
    assert len(archived) == len(set(archived))
    assert not set(here) & set(archived)
    assert len(acknowledged) == len(set(acknowledged))
    assert set(acknowledged) <= {*here, *archived}


async def kept(directory: Path) -> tuple[list[int], list[int]]:
    """The jobs in the scheduler's tables, and those in the archive."""
    async with running(make_config(directory)) as cluster:
        reader = cluster.scheduler.past
        found = await reader.read(lambda archived: archived.jobs(Selection(), 1_000_000))
        return cluster.core.jobs.ids.serials.tolist(), [job.job for job in found]
