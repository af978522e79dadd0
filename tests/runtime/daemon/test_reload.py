"""Changes at run time, by reloading the configuration or by hand: what can change, and what persists."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.store import open_store
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.policies.min_cost import MinCost
from gavelpy.runtime.daemon.config import Config
from gavelpy.runtime.daemon.engine.policy_choice import TURN_S
from gavelpy.runtime.daemon.recovery import CONFIGURED
from tests.runtime.daemon.harness import Agent, make_config, make_spec, running


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120.0))


def test_a_policy_that_was_changed_stays_changed_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path)
        async with running(config) as cluster:
            await cluster.scheduler.set_policy("shortest_job_first", '{"by": "total"}', round_s=77.0)
            with pytest.raises(InvalidInput, match="policy must be one of"):
                await cluster.scheduler.set_policy("nonsense")
        async with running(config) as cluster:
            assert cluster.scheduler.choice.name == "shortest_job_first"
            assert cluster.scheduler.choice.arguments == {"by": "total"}
            assert cluster.core.settings.round_s == cluster.scheduler.engine.choice.round_s == 77.0

    run(scenario())


def test_a_configuration_that_was_changed_counts_at_the_next_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            await cluster.scheduler.set_policy("fifo")
        async with running(make_config(tmp_path, mechanism={"round_s": 9.0})) as cluster:
            assert cluster.scheduler.choice.name == "max_min_fairness"
            assert cluster.core.settings.round_s == 9.0

    run(scenario())


def test_a_reload_changes_what_may_change_and_names_the_rest(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            changed = make_config(tmp_path, policy={"name": "fifo"}, mechanism={"round_s": 9.0}, nodes={"grace_s": 5.0})

            ignored = await cluster.scheduler.reload(changed)

            assert (cluster.scheduler.choice.name, cluster.core.settings.round_s) == ("fifo", 9.0)
            assert cluster.scheduler.engine.choice.round_s == 9.0
            assert ignored == ["nodes.grace_s"]

    run(scenario())


TABLE = "job_type,gpus,gpu_type,rate_steps_per_s,provenance,source\nresnet,1,v100,{rate},measured,here\n"


def rate_of(core: SchedulerCore, job: int) -> float:
    """The rate on the first GPU type; NaN = unknown."""
    return float(core.jobs.rate[job, 0]) if core.jobs.rate.shape[1] else math.nan


@pytest.mark.parametrize("estimate", [True, False])
def test_a_reload_reads_the_throughputs_again_and_journals_what_has_changed(tmp_path: Path, estimate: bool) -> None:
    table = tmp_path / "table.csv"
    config = make_config(tmp_path, throughputs={"file": str(table), "estimate": estimate})

    async def scenario() -> None:
        async with running(config, in_good_order=False) as cluster, Agent("n0").connected(cluster):
            core = cluster.core
            await cluster.submit(make_spec(job_type="resnet", rates_steps_per_s={}), make_spec())
            await cluster.until(lambda: rate_of(core, 0) == pytest.approx(5.0, rel=0.02), "it is told")

            table.write_text(TABLE.format(rate=8.0))
            assert await cluster.scheduler.reload(config) == []
            await cluster.until(lambda: rate_of(core, 0) == pytest.approx(8.0, rel=0.02), "it is told again")

            assert core.jobs.rate[1, 0] == 10.0, "what an owner says stays"
            await cluster.scheduler.reload(config)
            (late,) = await cluster.submit(make_spec(job_type="resnet", rates_steps_per_s={}))
            await cluster.until(lambda: rate_of(core, late) == pytest.approx(8.0, rel=0.02), "later jobs get the same")
        async with running(config) as cluster:
            assert rate_of(cluster.core, 0) == pytest.approx(8.0, rel=0.02)

    table.write_text(TABLE.format(rate=5.0))
    run(scenario())


def test_a_reload_takes_over_another_file_of_throughputs_and_refuses_a_wrong_one(tmp_path: Path) -> None:
    table, wrong = tmp_path / "table.csv", tmp_path / "wrong.csv"
    table.write_text(TABLE.format(rate=8.0))
    wrong.write_text(TABLE.format(rate="fast"))

    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster, Agent("n0").connected(cluster):
            (job,) = await cluster.submit(make_spec(job_type="resnet", rates_steps_per_s={}))
            with pytest.raises(InvalidInput, match=r"wrong\.csv:2"):
                await cluster.scheduler.reload(
                    make_config(tmp_path, throughputs={"file": str(wrong)}, policy={"name": "fifo"})
                )
            assert cluster.scheduler.choice.name == "max_min_fairness"

            assert await cluster.scheduler.reload(make_config(tmp_path, throughputs={"file": str(table)})) == []
            await cluster.until(lambda: rate_of(cluster.core, job) == pytest.approx(8.0, rel=0.02), "it is told")

    run(scenario())


def test_an_upgrade_takes_up_settings_that_were_unknown_and_keeps_the_policy_in_force(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path, mechanism={"lease_min_s": 0.0})
        async with running(config) as cluster:
            await cluster.scheduler.set_policy("fifo", round_s=77.0)
        _forget_in_configured(config, "lease_min_s")
        async with running(make_config(tmp_path, mechanism={"lease_min_s": 5.0})) as cluster:
            assert cluster.scheduler.choice.name == "fifo"
            assert (cluster.core.settings.lease_min_s, cluster.core.settings.round_s) == (5.0, 77.0)

    run(scenario())


def test_what_a_lease_is_kept_for_follows_the_round_unless_the_file_names_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster:
            await cluster.scheduler.set_policy(round_s=60.0)
            assert cluster.core.settings.lease_min_s == 30.0
            await cluster.scheduler.reload(make_config(tmp_path, mechanism={"round_s": 9.0}))
            assert cluster.core.settings.lease_min_s == 4.5
            await cluster.scheduler.reload(make_config(tmp_path, mechanism={"lease_min_s": 7.0}))
            await cluster.scheduler.set_policy(round_s=60.0)
            assert cluster.core.settings.lease_min_s == 7.0

    run(scenario())


def test_an_upgrade_keeps_leases_for_half_of_the_round_that_is_in_force(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path)
        async with running(config) as cluster:
            await cluster.scheduler.set_policy(round_s=60.0)
        _forget_in_configured(config, "lease_min_s")
        async with running(config) as cluster:
            assert (cluster.core.settings.lease_min_s, cluster.core.settings.round_s) == (30.0, 60.0)
            assert cluster.core.settings.move_lag_s == 300.0
        _forget_in_configured(config, "move_lag_s")
        async with running(config) as cluster:
            assert (cluster.core.settings.move_lag_s, cluster.core.settings.round_s) == (300.0, 60.0)

    run(scenario())


def test_policies_with_deadlines_move_jobs_for_a_lag_of_one_round_unless_the_file_says_otherwise(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path)
        async with running(config) as cluster:
            settings, set_policy = cluster.core.settings, cluster.scheduler.set_policy
            assert (settings.move_lag_s, settings.round_s) == (10.0, 2.0)
            await set_policy("min_cost", '{"deadlines": 1}')
            assert cluster.core.settings.move_lag_s == 2.0
            await set_policy(round_s=60.0)
            assert cluster.core.settings.move_lag_s == 60.0
            assert cluster.scheduler.engine.choice.policy == MinCost(
                deadlines=True, slack_s=60.0 + TURN_S + 60.0, work=1.0 - TURN_S / 60.0
            )
            await set_policy(parameters='{"deadlines": 0}')
            assert cluster.core.settings.move_lag_s == 300.0
            await set_policy("min_cost", '{"deadlines": 1}')
        _forget_in_configured(config, "move_lag_s")
        async with running(config) as cluster:
            assert (cluster.core.settings.move_lag_s, cluster.core.settings.round_s) == (60.0, 60.0)
            await cluster.scheduler.reload(make_config(tmp_path, mechanism={"move_lag_s": 77.0}))
            await cluster.scheduler.set_policy("min_cost", '{"deadlines": 1}')
            assert cluster.core.settings.move_lag_s == 77.0
            assert isinstance(planned := cluster.scheduler.engine.choice.policy, MinCost)
            assert planned.slack_s == 2.0 + TURN_S + 2.0  # a round of the lag at most
            await cluster.scheduler.reload(make_config(tmp_path, mechanism={"lag_half_life_s": 60.0}))
            await cluster.scheduler.set_policy("min_cost", '{"deadlines": 1}')
            assert cluster.core.settings.move_lag_s == 0.0

    run(scenario())


def test_policies_that_vary_with_time_are_asked_again_after_five_rounds(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = make_config(tmp_path)
        async with running(config) as cluster:
            assert cluster.core.settings.solve_at_least_every_s == 0.0
            await cluster.scheduler.set_policy("min_makespan", round_s=60.0)
            assert cluster.core.settings.solve_at_least_every_s == 300.0
            await cluster.scheduler.set_policy("fifo")
            assert cluster.core.settings.solve_at_least_every_s == 0.0
            await cluster.scheduler.set_policy("min_makespan")
        _forget_in_configured(config, "solve_at_least_every_s")
        async with running(config) as cluster:
            assert cluster.core.settings.solve_at_least_every_s == 300.0
            await cluster.scheduler.reload(make_config(tmp_path, mechanism={"solve_at_least_every_s": 7.0}))
            await cluster.scheduler.set_policy("fifo", round_s=90.0)
            assert cluster.core.settings.solve_at_least_every_s == 7.0

    run(scenario())


def _forget_in_configured(config: Config, setting: str) -> None:
    """Removes a setting, as if stored by an earlier version that did not have it."""
    with closing(open_store(f"sqlite:///{config.scheduler.state_directory}/journal.sqlite")) as store:
        choice, mechanism = json.loads(store.meta(CONFIGURED))
        del mechanism[setting]
        store.set_meta(CONFIGURED, json.dumps([choice, mechanism], sort_keys=True))
