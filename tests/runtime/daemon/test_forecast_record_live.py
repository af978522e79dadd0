"""The scheduler notes its own forecasts, and explanations and dry runs show intervals from them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gavelpy.runtime.daemon.engine.forecast import Forecaster
from gavelpy.runtime.daemon.engine.forecast_record import END, ForecastRecord
from gavelpy.runtime.daemon.queries.explain import Explainer
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.daemon.rpc.client_messages import explanation_message, planned_message
from tests.runtime.daemon.harness import Agent, make_config, make_spec, running

PAST = 40  # forecasts whose outcome is known


def test_forecasts_of_the_scheduler_get_intervals_from_outcomes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(make_config(tmp_path)) as cluster, Agent("n0").connected(cluster):
            await cluster.until(lambda: len(cluster.core.pool.node_ids) == 1, "the node is there")
            forecaster = Forecaster()
            record = ForecastRecord(cluster.scheduler, forecaster)
            explainer = Explainer(cluster.scheduler, JobQueries(cluster.scheduler), forecaster, record)
            spec = make_spec(steps=1000.0)
            (job,) = await cluster.submit(spec)
            await record.renew()
            noted = {(one.what, one.job) for one in record._open}
            none = explanation_message(await explainer.explain(job))
            for other in range(PAST):  # each ended 2 to 4 times as late as expected
                model = record._models[END]
                model.happen(model.add(none.finish_in_s, 1000 + other), none.finish_in_s * (2.0 + 2.0 * other / PAST))
            some = explanation_message(await explainer.explain(job))
            (planned,) = [planned_message(one) for one in await explainer.dry_run([spec], "ann")]
            await record.close()
            forecaster.close()

            assert (END, job) in noted
            assert (none.finish_low_s, none.finish_high_s) == (-1.0, -1.0)
            assert 1.9 * some.finish_in_s < some.finish_low_s < some.finish_high_s < 4.1 * some.finish_in_s
            assert planned.forecast.finish_low_s > planned.forecast.finish_in_s

    asyncio.run(asyncio.wait_for(scenario(), 120.0))
