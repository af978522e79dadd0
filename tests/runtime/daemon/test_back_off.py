"""A node that cannot start jobs costs a few leases, not thousands, and the reason is visible."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.runtime.daemon.config import parse_config
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.wire import agent_pb2
from tests.runtime.daemon.harness import Agent, make_config, make_spec, running

LEAST = '[scheduler]\nstate_directory = "/tmp/x"\n'


class Unable(Agent):
    """A node that cannot start any lease."""

    def _follow(self, order: agent_pb2.LeaseOrder) -> None:
        self.leases[order.lease] = agent_pb2.LeaseReport(
            lease=order.lease, job=order.job, phase=agent_pb2.LEASE_PHASE_ENDED,
            outcome=agent_pb2.LEASE_OUTCOME_LOST, detail="the disk is read-only",
        )  # fmt: skip


class Dying(Agent):
    """A node that receives orders and ignores them."""

    def _follow(self, order: agent_pb2.LeaseOrder) -> None:
        pass


def test_a_job_that_no_node_can_start_waits_and_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path, mechanism={"retry_s": 0.1, "retry_max_s": 60.0})
        async with running(config) as cluster, Unable("n0").connected(cluster):
            (job,) = await cluster.submit(make_spec())
            jobs = cluster.core.jobs

            await cluster.until(lambda: bool(jobs.misses[job] == 4))

            (seen,) = JobQueries(cluster.scheduler).statuses([job])
            assert seen.reason_kind == "backing-off"
            assert seen.reason.startswith("failed 4 times (last: ")
            assert "the disk is read-only), tried again in " in seen.reason
            assert cluster.core.leases.next_lease == 1 + 4
            assert seen.failures == 0

    asyncio.run(asyncio.wait_for(scenario(), 120.0))


def test_a_job_whose_node_dies_before_it_began_is_not_put_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path, mechanism={"retry_s": 60.0, "retry_max_s": 60.0})
        async with running(config) as cluster:
            async with Dying("n0").connected(cluster) as dying:
                (job,) = await cluster.submit(make_spec())
                await cluster.until(lambda: bool(dying.orders), "it is granted")
            async with Agent("n1").connected(cluster), Agent("n0", confirmed_dead=True).connected(cluster):
                await cluster.until(lambda: cluster.core.jobs.state[job] == JobState.RUNNING, "it runs")

            assert cluster.core.jobs.losses[job] == 1

    asyncio.run(asyncio.wait_for(scenario(), 60.0))


def test_a_scheduler_of_real_jobs_keeps_leases_for_half_a_round_and_lets_failures_wait() -> None:
    default, short = (parse_config(LEAST + more).mechanism for more in ("", "[mechanism]\nround_s = 30\n"))

    assert (default.lease_min_s, default.retry_s, default.retry_max_s) == (180.0, 10.0, 300.0)
    assert default.losses_free == 1
    assert short.lease_min_s == 15.0


def test_a_running_job_is_moved_for_a_lag_of_five_rounds_unless_the_file_says_otherwise() -> None:
    texts = ("", "round_s = 30", "move_lag_s = 7", "lag_half_life_s = 3600", "priority = 'osdi20'", "move_lag_s = 0")

    found = [parse_config(f"{LEAST}[mechanism]\n{text}\n").mechanism.move_lag_s for text in texts]

    assert found == [1800.0, 150.0, 7.0, 0.0, 0.0, 0.0]


def test_a_half_life_without_effect_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"mechanism\.move_lag_s must be 0 where lag_half_life_s") as raised:
        parse_config(f"{LEAST}[mechanism]\nlag_half_life_s = 60\nmove_lag_s = 90\n")

    assert raised.value.line == len(LEAST.splitlines()) + 3


def test_what_the_file_says_of_it_counts() -> None:
    given = parse_config(LEAST + "[mechanism]\nlease_min_s = 0\nretry_s = 900\n").mechanism

    assert (given.lease_min_s, given.retry_s, given.retry_max_s) == (0.0, 900.0, 900.0)
