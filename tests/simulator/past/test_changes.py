"""Replays with other teams, rounds and GPU types do what simulations with them do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.mechanism.teams import Team
from gavelpy.model.job import Trace
from gavelpy.simulator.past.change import Change
from gavelpy.simulator.past.replay import Replay
from gavelpy.simulator.past.work import Noise
from tests.simulator.builders import make_job, make_settings, make_trace, run
from tests.simulator.past.builders import CLUSTER, COSTS, recorded, work_in

RATES = {"v100": 1.0, "p100": 0.5, "k80": 0.2, "h100": 3.0}
QUOTA = (Team("a", quota={"v100": 1, "p100": 0, "k80": 0}), Team("b"))


def trace_of_teams() -> Trace:
    """Twelve jobs of an hour on a V100, every second one of team a."""
    jobs = (make_job(f"j{k}", steps=3_600.0 + 60.0 * k, rates=RATES) for k in range(12))
    return make_trace(*(replace(job, entity="ab"[k % 2]) for k, job in enumerate(jobs)))


def replayed_jct_s(trace: Trace, change: Change) -> float:
    replayed = Replay(work_in(recorded(trace)), change, Noise()).run()
    return float(np.mean([job.jct_s for job in replayed.ledger.jobs.values()]))


def test_quotas_of_other_teams_hold_in_a_replay() -> None:
    trace = trace_of_teams()

    found = replayed_jct_s(trace, Change(teams=QUOTA))

    simulated = run(trace, CLUSTER, settings=make_settings(COSTS, teams=QUOTA))
    assert found == pytest.approx(simulated.metrics.avg_jct_s, rel=0.05)
    assert found > 1.2 * run(trace, CLUSTER, settings=make_settings(COSTS)).metrics.avg_jct_s


def test_gpus_of_a_type_that_the_journal_lacks_run_jobs_at_their_declared_rates() -> None:
    trace = trace_of_teams()

    found = replayed_jct_s(trace, Change(gpus={"h100": 8}))

    simulated = run(trace, f"{CLUSTER},h100:8", settings=make_settings(COSTS))
    assert found == pytest.approx(simulated.metrics.avg_jct_s, rel=0.05)
    assert found < 0.8 * run(trace, CLUSTER, settings=make_settings(COSTS)).metrics.avg_jct_s


def test_another_length_of_the_round_is_that_of_a_simulation() -> None:
    trace = trace_of_teams()

    found = replayed_jct_s(trace, Change(settings={"round_s": 1_800.0}))

    base = make_settings(COSTS)
    simulated = run(trace, CLUSTER, settings=replace(base, mechanism=base.mechanism.with_round(1_800.0)))
    assert found == pytest.approx(simulated.metrics.avg_jct_s, rel=0.05)
