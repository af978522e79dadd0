"""Submissions are acknowledged once: keys, names and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gavelpy.errors import InvalidInput, LimitReached
from gavelpy.model.job import JobId, JobKind, JobSpec
from gavelpy.model.software import Software
from gavelpy.runtime.daemon.submissions import digest_of
from tests.runtime.daemon.harness import make_config, make_spec, running


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120.0))


def test_the_same_key_is_answered_the_same_also_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        config, spec = make_config(tmp_path), make_spec()
        async with running(config) as cluster:
            first, second = await asyncio.gather(*(cluster.scheduler.submit([spec], "k", "alice") for _ in range(2)))
            other = await cluster.scheduler.submit([spec], "k", "bob")
            with pytest.raises(InvalidInput, match="'k' must be repeated with the same jobs"):
                await cluster.scheduler.submit([make_spec(gpus=2)], "k", "alice")
        async with running(config) as cluster:
            third = await cluster.scheduler.submit([spec], "k", "alice")

            assert (first.first_job, second.first_job, third.first_job) == (0, 0, 0)
            assert sorted([first.repeated, second.repeated]) == [False, True]
            assert third.repeated
            assert (other.first_job, other.repeated) == (1, False)
            assert cluster.core.jobs.count == 2

    run(scenario())


def test_names_are_unique_among_living_jobs_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            (job,) = await cluster.submit(make_spec("a"))
            with pytest.raises(InvalidInput, match="name must be unique among the living jobs of 'alice', got 'a'"):
                await cluster.submit(make_spec("a"))
            with pytest.raises(InvalidInput, match="got 'b' twice"):
                await cluster.submit(make_spec("b"), make_spec("b"))
            await cluster.scheduler.cancel([job])
            (again,) = await cluster.submit(make_spec("a"))

            assert cluster.scheduler.job_named("alice", "a") == again

    run(scenario())


def test_the_error_has_the_name_that_a_large_request_gives_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            specs = [make_spec(f"job-of-{k}") for k in range(5_000)]
            with pytest.raises(InvalidInput, match="got 'job-of-4999' twice"):
                await cluster.submit(*specs, make_spec("job-of-4999"))

    run(scenario())


def test_limits_are_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path, limits={"jobs_a_request_max": 2, "jobs_living_max": 3})
        async with running(config) as cluster:
            with pytest.raises(InvalidInput, match="jobs must be 1 to 2 in a request, got 3"):
                await cluster.submit(*[make_spec()] * 3)
            await cluster.submit(*[make_spec()] * 2)
            with pytest.raises(LimitReached, match="jobs_living_max is 3: 2 jobs are living, 2 more exceed it"):
                await cluster.submit(*[make_spec()] * 2)

    run(scenario())


def test_a_submission_is_answered_again_though_nothing_more_fits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path, limits={"jobs_living_max": 2})) as cluster:
            first = await cluster.submit(make_spec(), make_spec(), key="k")

            assert await cluster.submit(make_spec(), make_spec(), key="k") == first

    run(scenario())


def test_a_priority_class_must_exist_and_be_open_to_the_owner(tmp_path: Path) -> None:
    async def scenario() -> None:
        classes = {"priorities.high": {"value": 1, "owners": ["bob"]}, "priorities.low": {"value": -1}}
        async with running(make_config(tmp_path, **classes)) as cluster:
            with pytest.raises(InvalidInput, match="priority must be one of normal, low, which 'alice' may use"):
                await cluster.submit(make_spec(priority="high"), make_spec(priority="low"))
            with pytest.raises(InvalidInput, match="got 'urgent'"):
                await cluster.scheduler.submit([make_spec(priority="urgent")], "", "bob")
            await cluster.scheduler.submit([make_spec(priority="high"), make_spec()], "", "bob")

            assert cluster.core.jobs.rank[:2].tolist() == [0, 1]

    run(scenario())


def test_a_job_gets_a_team_that_is_open_to_its_owner(tmp_path: Path) -> None:
    async def scenario() -> None:
        teams = {"teams.vision": {"members": ["alice"]}, "teams.sales": {"members": ["bob", "cid"], "weight": 2.0}}
        async with running(make_config(tmp_path, **teams)) as cluster:
            with pytest.raises(InvalidInput, match="team must be one of vision, which 'alice' may use, got 'sales'"):
                await cluster.submit(make_spec(entity="sales"))
            with pytest.raises(InvalidInput, match="team must be one that is open to 'dan', but none is"):
                await cluster.scheduler.submit([make_spec()], "", "dan")
            await cluster.submit(make_spec(), make_spec(entity="vision"), key="k")
            await cluster.scheduler.submit([make_spec()], "", "bob")

            assert [spec.entity for spec in cluster.core.jobs.specs] == ["vision", "vision", "sales"]
            assert (await cluster.submit(make_spec(), make_spec(entity="vision"), key="k")) == [0, 1]

    run(scenario())


def test_a_user_at_the_limit_is_refused_and_others_are_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path, limits={"jobs_living_a_user_max": 2, "weight_max": 5.0})) as cluster:
            await cluster.submit(make_spec(), make_spec(weight=5.0))
            with pytest.raises(
                LimitReached, match="jobs_living_a_user_max is 2: 2 jobs of 'alice' wait or run, 1 more"
            ):
                await cluster.submit(make_spec())
            await cluster.scheduler.submit([make_spec()], "", "bob")
            with pytest.raises(InvalidInput, match=r"weight must be at most 5 here \(weight_max .*\), got 1000"):
                await cluster.scheduler.submit([make_spec(weight=1000.0)], "", "cid")
            await cluster.scheduler.cancel([0])
            await cluster.submit(make_spec())

    run(scenario())


def test_a_gang_of_more_gpus_than_a_user_may_have_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path, mechanism={"gpus_a_user_max": 4})) as cluster:
            await cluster.submit(make_spec(gpus=4))
            with pytest.raises(InvalidInput, match=r"gpus must be at most 4 here \(gpus_a_user_max .*\), got 5"):
                await cluster.submit(make_spec(gpus=5))

    run(scenario())


def test_jobs_get_the_limits_of_the_scheduler_and_keep_them_over_a_reload(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = {"time_s": 60.0, "time_max_s": 90.0, "stall_max_s": 30.0}
        async with running(make_config(tmp_path, jobs=limits)) as cluster:
            shell = make_spec(kind=JobKind.INTERACTIVE, one_process_a_node=True)
            await cluster.submit(make_spec(), make_spec(time_s=90.0, stall_s=5.0), shell, key="k")
            assert await cluster.scheduler.reload(make_config(tmp_path, jobs={"time_s": 7.0})) == []
            await cluster.submit(make_spec(), make_spec(time_s=1e6))
            again = await cluster.scheduler.submit(
                [make_spec(), make_spec(time_s=90.0, stall_s=5.0), shell], "k", "alice"
            )

            assert (again.first_job, again.repeated) == (0, True), "what was requested is the same"
            limited = [(spec.time_s, spec.stall_s) for spec in cluster.core.jobs.specs[:5]]
            assert limited == [(60.0, 30.0), (90.0, 5.0), (60.0, 0.0), (7.0, 0.0), (1e6, 0.0)]

    run(scenario())


@pytest.mark.parametrize(("limit", "most"), [("time_s", "time_max_s"), ("stall_s", "stall_max_s")])
def test_a_job_with_a_limit_above_the_largest_is_refused_with_all_of_its_request(
    tmp_path: Path, limit: str, most: str
) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path, jobs={most: 90.0})) as cluster:
            with pytest.raises(InvalidInput, match=rf"{limit} must be at most 90 here \({most} in .* got 91"):
                await cluster.submit(make_spec(), make_spec(**{limit: 91.0}))
            assert cluster.core.jobs.count == 0

    run(scenario())


def test_the_digest_of_jobs_is_the_same_after_an_upgrade_that_brings_new_fields() -> None:
    """The digest of two jobs as it was first written down; a new field of a job must not change it."""
    jobs = [
        JobSpec(JobId("a"), 10.0, rates_steps_per_s={"v100": 1.0}, environment={"B": "1", "A": "2"}),
        JobSpec(JobId("b"), 1.0),
    ]

    assert digest_of(jobs) == "ee10d52fcba3a0915d83a95e8ec90626dbec256a89dae3bbe156aa59bed957e8"
    with_software = [JobSpec(JobId("c"), 1.0, software=Software(conda="/opt/c"))]
    assert digest_of(with_software) == "74ee24a5f8c414bc303300bb2aa71328dc5f4212bf8083d8c09cb65f0a02f9b9"
    assert digest_of([replace(with_software[0], software=Software(image="c"))]) != digest_of(with_software)
    assert digest_of([jobs[1], jobs[0]]) != digest_of(jobs) != digest_of([jobs[0], replace(jobs[1], hold=True)])
