"""Intervals of forecasts survive SIGKILL of the scheduler, with and without a standby, and lists show its forecast."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from gavelpy.journal.store import open_store
from gavelpy.journal.tables import meta_named
from gavelpy.runtime.daemon.engine.forecast_record import FIRST_S
from gavelpy.runtime.daemon.engine.forecasts import END, START, OpenForecast, of_text, text_of
from gavelpy.runtime.daemon.rpc.client_service import FORECASTS
from gavelpy.runtime.local_cluster import CALL_S, SCHEDULER, LocalNode, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.simulator.intervals import IntervalModel
from tests.runtime.live.several import several
from tests.runtime.live.stage import Stage, StartStage

OUTCOMES = 40
PATIENCE_S = FIRST_S + 120.0


def add_outcomes(model: IntervalModel) -> None:
    """Forecasts of 3,000 s of other jobs, which took 6,000 to 11,850 s."""
    for other in range(OUTCOMES):
        model.happen(model.add(3_000.0, 1_000 + other), 6_000.0 + 150.0 * other)


def outcomes_of(model: IntervalModel) -> list[tuple[float, int, float, bool]]:
    """Predicted and actual seconds of each forecast, with its job, and whether the latter are known."""
    return [row[:4] for row in model.rows()]


def kept(postgres_url: str) -> tuple[Mapping[str, IntervalModel], Sequence[OpenForecast], Mapping[int, int]]:
    """The record in the journal, while schedulers use it."""
    with create_engine(postgres_url, poolclass=NullPool).connect() as connection:
        row = meta_named(connection, FORECASTS)
    assert row is not None
    return of_text(row.value)


def restart(stage: Stage) -> None:
    stage.cluster.kill("scheduler")
    stage.cluster.start_scheduler()


@pytest.mark.slow
def test_intervals_survive_the_death_of_the_scheduler(start: StartStage) -> None:
    """The scheduler notes a forecast and is killed; outcomes are added to its record, as if days had passed."""
    stage = start(LocalNode("n0", "v100:1"))
    job = stage.submit("long", "sleep 3600", 36_000.0, {"v100": 10.0})
    wait_until(lambda: stage.job(job).forecast_at_s > 0, "a list shows a forecast", PATIENCE_S)
    listed = stage.job(job)
    time.sleep(3.0)  # the record is stored
    stage.cluster.kill("scheduler")

    store = open_store(f"sqlite:///{stage.cluster.directory / SCHEDULER / 'journal.sqlite'}")
    models, noted, counts = of_text(store.meta(FORECASTS))
    add_outcomes(models[END])
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


@pytest.mark.slow  # each scheduler notes its first forecast a minute after it begins to lead
def test_a_standby_that_takes_over_keeps_the_forecasts_of_the_killed_leader(tmp_path: Path, postgres_url: str) -> None:
    """The record has outcomes when the leader starts; it adds a forecast while the standby follows, and is killed."""
    store = open_store(postgres_url)
    before = {START: IntervalModel(), END: IntervalModel()}
    add_outcomes(before[END])
    store.set_meta(FORECASTS, text_of(before, [], {}))
    store.close()
    description = pb.JobDescription(
        name="long", command="sleep 3600", gpus=1, steps_total=36_000, rates_steps_per_s={"v100": 10.0}
    )
    node, rounds = LocalNode("n0", "v100:1"), {"mechanism": {"round_s": 60.0}}  # a forecast takes 60 rounds
    with (
        several(tmp_path / "cluster", postgres_url, node, settings=rounds, lease_s=5.0) as them,
        them.client(CALL_S) as client,
    ):
        job = client.submit([description]).jobs[0].job
        wait_until(lambda: kept(postgres_url)[2] == {job: 1}, "the leader has kept a forecast", PATIENCE_S)
        by_leader = client.job(str(job))
        models, noted, _ = kept(postgres_url)

        them.kill("a")
        wait_until(lambda: them.leads("b"), "b leads")
        wait_until(lambda: client.job(str(job)).finish_low_s > 0, "b has intervals")
        by_standby = client.job(str(job))
        wait_until(lambda: kept(postgres_url)[2] == {job: 2}, "b has kept another forecast", PATIENCE_S)
        models_of_b, noted_by_b, _ = kept(postgres_url)

    assert by_leader.finish_low_s > 0
    assert [(one.what, one.job) for one in noted] == [(END, job)]
    assert noted_by_b[:1] == noted
    assert [(one.what, one.job) for one in noted_by_b] == [(END, job)] * 2
    assert outcomes_of(models_of_b[END])[:OUTCOMES] == outcomes_of(models[END])[:OUTCOMES] == outcomes_of(before[END])
    assert len(models_of_b[END]) == OUTCOMES + 2
    ratios = [one.finish_high_s / one.finish_in_s for one in (by_leader, by_standby)]
    assert ratios[1] == pytest.approx(ratios[0], rel=0.02)
    assert 1.5 * by_standby.finish_in_s < by_standby.finish_low_s < by_standby.finish_high_s
