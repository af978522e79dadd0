"""The scheduler notes its own forecasts; explanations, dry runs and lists show intervals, also after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gavelpy.runtime.daemon.engine.forecast import Forecaster
from gavelpy.runtime.daemon.engine.forecast_record import ForecastRecord
from gavelpy.runtime.daemon.engine.forecasts import END
from gavelpy.runtime.daemon.queries.explain import Explainer
from gavelpy.runtime.daemon.queries.job_status import JobStatus
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.daemon.rpc.client_messages import explanation_message, job_message, planned_message
from gavelpy.runtime.daemon.rpc.client_service import JournalKeeper
from gavelpy.runtime.daemon.web.reads import job_values
from tests.runtime.daemon.harness import Agent, make_config, make_spec, running

PAST = 40  # forecasts whose outcome is known


def test_forecasts_of_the_scheduler_get_intervals_from_outcomes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster, Agent("n0").connected(cluster):
            await cluster.until(lambda: len(cluster.core.pool.node_ids) == 1, "the node is there")
            scheduler, forecaster = cluster.scheduler, Forecaster()
            record = ForecastRecord(scheduler, forecaster, JournalKeeper(scheduler))
            jobs = JobQueries(scheduler)
            explainer = Explainer(scheduler, jobs, forecaster)
            spec = make_spec(steps=1000.0)
            (job,) = await cluster.submit(spec)
            unknown = jobs.statuses([job])[0]
            await record.renew()
            noted = {(one.what, one.job) for one in record._open}
            none, listed = explanation_message(await explainer.explain(job)), jobs.statuses([job])[0]
            for other in range(PAST):  # each ended 2 to 4 times as late as expected
                model = scheduler.forecasts.models[END]
                model.happen(model.add(none.finish_in_s, 1000 + other), none.finish_in_s * (2.0 + 2.0 * other / PAST))
            some = explanation_message(await explainer.explain(job))
            (planned,) = [planned_message(one) for one in await explainer.dry_run([spec], "ann")]
            await record.renew()
            calibrated = jobs.statuses([job])[0]
            await record.close()
            forecaster.close()

            assert (END, job) in noted
            assert (none.finish_low_s, none.finish_high_s) == (-1.0, -1.0)
            assert 1.9 * some.finish_in_s < some.finish_low_s < some.finish_high_s < 4.1 * some.finish_in_s
            assert planned.forecast.finish_low_s > planned.forecast.finish_in_s
            check_lists(unknown, listed, calibrated, none.finish_in_s)
        async with running(make_config(tmp_path)) as again:
            record = ForecastRecord(again.scheduler, Forecaster(), JournalKeeper(again.scheduler))
            before = again.scheduler.forecasts.interval(END, none.finish_in_s)
            await record.load()
            after = again.scheduler.forecasts.interval(END, none.finish_in_s)

            assert before is None
            assert after is not None
            assert after.low_s == pytest.approx(some.finish_low_s, rel=0.02)

    asyncio.run(asyncio.wait_for(scenario(), 120.0))


def check_lists(unknown: JobStatus, listed: JobStatus, calibrated: JobStatus, finish_in_s: float) -> None:
    """What lists show before a forecast, without and with an interval, in messages and on the web page alike."""
    assert (unknown.forecast_at_s, unknown.expected_finish_at_s, unknown.finish_low_at_s) == (0.0, 0.0, 0.0)
    assert listed.expected_finish_at_s - listed.forecast_at_s == pytest.approx(finish_in_s, rel=0.1)
    assert (listed.finish_low_at_s, listed.finish_high_at_s) == (0.0, 0.0)
    at_s = calibrated.forecast_at_s
    assert at_s < calibrated.expected_finish_at_s < calibrated.finish_low_at_s < calibrated.finish_high_at_s
    assert calibrated.finish_high_at_s - at_s < 4.1 * finish_in_s + 10.0
    for values in (vars(calibrated), job_values(calibrated)):
        assert values["finish_low_at_s"] == job_message(calibrated).finish_low_at_s
