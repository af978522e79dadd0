"""Intervals of forecasts survive SIGKILL of the scheduler, and lists show the forecast of the scheduler itself."""

from __future__ import annotations

import time

import pytest

from gavelpy.journal.store import open_store
from gavelpy.runtime.daemon.engine.forecast_record import FIRST_S
from gavelpy.runtime.daemon.engine.forecasts import END, of_text, text_of
from gavelpy.runtime.daemon.rpc.client_service import FORECASTS
from gavelpy.runtime.local_cluster import SCHEDULER, LocalNode, wait_until
from tests.runtime.live.stage import Stage, StartStage


def restart(stage: Stage) -> None:
    stage.cluster.kill("scheduler")
    stage.cluster.start_scheduler()


@pytest.mark.slow
def test_intervals_survive_the_death_of_the_scheduler(start: StartStage) -> None:
    """The scheduler notes a forecast and is killed; outcomes are added to its record, as if days had passed."""
    stage = start(LocalNode("n0", "v100:1"))
    job = stage.submit("long", "sleep 3600", 36_000.0, {"v100": 10.0})
    wait_until(lambda: stage.job(job).forecast_at_s > 0, "a list shows a forecast", FIRST_S + 120.0)
    listed = stage.job(job)
    time.sleep(3.0)  # the record is stored
    stage.cluster.kill("scheduler")

    store = open_store(f"sqlite:///{stage.cluster.directory / SCHEDULER / 'journal.sqlite'}")
    models, noted, counts = of_text(store.meta(FORECASTS))
    for other in range(40):
        models[END].happen(models[END].add(3_000.0, 1_000 + other), 6_000.0 + 150.0 * other)
    store.set_meta(FORECASTS, text_of(models, noted, counts))
    store.close()
    stage.cluster.start_scheduler()
    wait_until(lambda: stage.explained(job).finish_low_s > 0, "there is an interval after a restart")
    first = stage.explained(job)
    restart(stage)
    wait_until(lambda: stage.explained(job).finish_low_s > 0, "there is an interval after another restart")
    again = stage.explained(job)

    assert listed.expected_finish_at_s == pytest.approx(time.time() + first.finish_in_s, abs=120.0)
    assert [(one.what, one.job) for one in noted] == [(END, job)]
    assert 1.5 * first.finish_in_s < first.finish_low_s < first.finish_high_s
    assert again.finish_high_s / again.finish_in_s == pytest.approx(first.finish_high_s / first.finish_in_s, rel=0.02)
