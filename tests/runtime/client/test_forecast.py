"""Forecasts run a copy of the core ahead, and leave the core unchanged."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import pickle
import re
import signal
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import Event, JobSubmitted, NodeJoined
from gavelpy.mechanism.snapshot import snapshot
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.engine.forecast import Ahead, Forecaster, LookAhead, without_specs
from gavelpy.runtime.daemon.engine.forecast_worker import look_ahead
from gavelpy.runtime.daemon.engine.policy_choice import PolicyChoice
from gavelpy.simulator.forecast import COSTS
from tests.estimator.tables import make_table
from tests.runtime.daemon.harness import make_spec
from tests.runtime.daemon.table_builders import Bench, part
from tests.runtime.daemon.test_worker_process import until_gone

FIRST_COME = PolicyChoice.of("fifo", "{}")
FAIR = PolicyChoice.of("max_min_fairness", "{}")
START_S = COSTS.restart_s
NO_RATES: Mapping[int, float] = {}


def ahead(
    core: SchedulerCore,
    *wanted: int,
    rates: Mapping[int, float] = NO_RATES,
    cpu_s: float = 30.0,
    choice: PolicyChoice = FIRST_COME,
    supposed: Sequence[Event] = (),
    until_s: float = math.inf,
) -> Ahead:
    """The forecast for these jobs, computed in this process."""
    bare, parts = without_specs(core)
    specs = [pickle.dumps(part) for part in parts]
    return look_ahead(
        LookAhead(bare, specs, core.now_s, choice, (), wanted, rates, 1e9, cpu_s, supposed=supposed, until_s=until_s),
        None,
    )


def bench(*steps: float, gpus: int = 1, gang: int = 1) -> Bench:
    """A node, and jobs with these numbers of steps at 10 steps/s each."""
    made = Bench(("n0", gpus))
    for row, count in enumerate(steps):
        made.tell(JobSubmitted(make_spec(f"j{row}#{row}", steps=count, gpus=gang)))
    return made


def test_job_on_an_idle_node_starts_now_and_ends_when_its_steps_are_done() -> None:
    (expected,) = ahead(bench(1_000.0).core, 0).expected

    assert (expected.start_in_s, expected.gpu_type, expected.node_ids) == (0.0, "v100", ("n0",))
    assert expected.finish_in_s == pytest.approx(START_S + 100.0)


def test_supposed_node_runs_a_job_that_would_wait_and_leaves_the_core_unchanged() -> None:
    core = bench(500.0, 500.0).core
    before = pickle.dumps(snapshot(core))

    alone = ahead(core, 0, 1).expected[1]
    together = ahead(core, 0, 1, supposed=[NodeJoined(NodeId("more"), "v100", 1)]).expected

    assert alone.start_in_s > 0
    assert [job.finish_in_s for job in together] == pytest.approx([START_S + 50.0] * 2)
    assert {node for job in together for node in job.node_ids} == {"n0", "more"}
    assert pickle.dumps(snapshot(core)) == before


def test_supposed_policy_orders_the_jobs() -> None:
    core = bench(9_000.0, 50.0).core
    shortest = PolicyChoice.of("shortest_job_first", "{}")

    first_come = ahead(core, 0, 1, supposed=[FIRST_COME.event]).expected
    by_length = ahead(core, 0, 1, choice=shortest, supposed=[shortest.event]).expected

    assert first_come[0].start_in_s < first_come[1].start_in_s
    assert by_length[1].start_in_s < by_length[0].start_in_s


def test_job_behind_another_starts_when_that_one_is_over() -> None:
    first, second = ahead(bench(500.0, 500.0).core, 0, 1).expected

    assert second.start_in_s >= first.finish_in_s
    assert second.finish_in_s == pytest.approx(second.start_in_s + START_S + 50.0)


@pytest.mark.parametrize(("time_s", "ends_s"), [(60.0, 60.0), (3_600.0, START_S + 100.0)])
def test_job_ends_at_its_time_limit_at_the_latest(time_s: float, ends_s: float) -> None:
    made = Bench(("n0", 1))
    made.tell(JobSubmitted(make_spec("a#0", steps=1_000.0, time_s=time_s)))
    made.tell(JobSubmitted(make_spec("b#1", steps=10.0)))

    first, second = ahead(made.core, 0, 1).expected

    assert first.finish_in_s == pytest.approx(ends_s)
    assert second.start_in_s == pytest.approx(ends_s, abs=START_S)


def test_running_time_so_far_counts_towards_the_limit() -> None:
    made = Bench(("n0", 1))
    made.tell(JobSubmitted(make_spec("a#0", steps=1_000.0, time_s=60.0)))
    made.wake()
    made.orders("n0")
    made.say("n0", part(0, 0))
    made.core.jobs.attained_gpu_s[0] = 45.0  # under an earlier lease

    (expected,) = ahead(made.core, 0, rates={0: 4.0}).expected

    assert expected.finish_in_s == pytest.approx(15.0)


def test_job_that_runs_continues_from_its_steps_at_its_measured_rate() -> None:
    made = bench(1_000.0)
    made.wake()
    made.orders("n0")
    made.say("n0", part(0, 0))
    made.core.jobs.steps_done[0] = 600.0

    (expected,) = ahead(made.core, 0, rates={0: 4.0}).expected

    assert expected.start_in_s == 0.0
    assert expected.finish_in_s == pytest.approx(400.0 / 4.0)


def test_a_job_that_never_saved_is_expected_to_run_to_its_end() -> None:
    made = Bench(("n0", 1), keep_unsaved=True)
    for row in range(2):
        made.tell(JobSubmitted(make_spec(f"j{row}#{row}", steps=5_000.0)))

    first, second = ahead(made.core, 0, 1, choice=FAIR).expected

    assert first.finish_in_s == pytest.approx(START_S + 500.0)
    assert second.start_in_s >= first.finish_in_s


def test_a_job_is_expected_to_save_as_others_of_its_type_do() -> None:
    made = Bench(("n0", 1), keep_unsaved=True)
    for row in range(3):
        made.tell(JobSubmitted(make_spec(f"j{row}#{row}", steps=5_000.0, job_type="resnet")))
    made.wake()
    made.orders("n0")
    made.say("n0", part(0, 0, saves_at_end=True))

    _, second, third = ahead(made.core, 0, 1, 2, choice=FAIR).expected

    assert third.start_in_s < second.finish_in_s


def test_gang_that_never_fits_is_unknown_with_the_reason() -> None:
    answer = ahead(bench(10.0, gang=4).core, 0)

    assert math.isinf(answer.expected[0].start_in_s)
    assert answer.why_not == "no job will start or end until something changes"


def test_time_for_computing_is_bounded() -> None:
    answer = ahead(bench(1e6).core, 0, cpu_s=0.0)

    assert answer.why_not == "not within 0 s of computing"


def test_a_forecast_ends_at_its_time_limit_with_what_it_has_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    core = bench(500.0, 500.0).core

    def within(steps: float) -> Ahead:
        count = itertools.count()
        clock = SimpleNamespace(process_time=time.process_time, monotonic=lambda: next(count))  # a second a step
        monkeypatch.setattr("gavelpy.simulator.forecast.time", clock)
        return ahead(core, 0, 1, until_s=steps)

    answer, nothing, everything = within(1), within(-1), within(math.inf)

    assert re.fullmatch(
        r"not within the time limit, as the machine is busy \(0\.\d of 30 s of computing\)", answer.why_not
    )
    assert answer.expected[0].start_in_s == 0.0
    assert math.isinf(answer.expected[1].finish_in_s)
    assert nothing.why_not.startswith("not within the time limit")
    assert everything.why_not == "", "without the limit it is complete"


def test_a_request_that_waited_too_long_for_its_turn_is_answered_without_a_process() -> None:
    async def scenario() -> tuple[Ahead, int]:
        forecaster = Forecaster(wall_s=0.0)
        return await forecaster.ask(bench(1.0).core, 0.0, FIRST_COME, wanted=[0]), forecaster.process_id

    answer, process_id = asyncio.run(scenario())

    assert (answer.why_not, process_id) == ("earlier forecasts took the 0 s that one may take", 0)


def test_core_is_as_it_was() -> None:
    made = bench(500.0, 500.0)
    made.wake()
    before = pickle.dumps(snapshot(made.core))

    ahead(made.core, 0, 1)

    assert pickle.dumps(snapshot(made.core)) == before


def test_copy_shares_no_array_with_the_core() -> None:
    core = bench(500.0, 500.0).core
    double, _ = without_specs(core)

    mine = [value for value in vars(core.jobs).values() if isinstance(value, np.ndarray)]
    other = [value for value in vars(double.jobs).values() if isinstance(value, np.ndarray)]

    assert mine
    assert not any(np.shares_memory(a, b) for a, b in zip(mine, other, strict=True) if a.size)


def test_worker_that_is_killed_is_started_again_for_the_next_question() -> None:
    core = bench(1_000.0).core

    async def scenario() -> tuple[Ahead, Ahead]:
        forecaster = Forecaster()
        asked = {"wanted": [0]}
        await forecaster.ask(core, 0.0, FIRST_COME, **asked)
        os.kill(forecaster.process_id, signal.SIGKILL)
        await until_gone(forecaster.process_id)
        again = await forecaster.ask(core, 0.0, FIRST_COME, **asked)
        many = await asyncio.gather(*(forecaster.ask(core, 0.0, FIRST_COME, **asked) for _ in range(12)))
        forecaster.close()
        return again, many[-1]

    again, last = asyncio.run(asyncio.wait_for(scenario(), 60.0))

    assert again.expected[0].finish_in_s == pytest.approx(START_S + 100.0)
    assert last.why_not == "too many forecasts are requested at once"


SIZED: Mapping[str, Any] = {"sizes": (1, 2), "rates_by_size": {2: {"v100": 18.0}}}


def test_job_of_several_sizes_runs_at_the_rate_of_its_size() -> None:
    made = Bench(("n0", 2))
    made.tell(JobSubmitted(make_spec("a#0", steps=1_800.0, **SIZED)))

    (expected,) = ahead(made.core, 0, choice=FAIR).expected

    assert (expected.gpus, expected.finish_in_s) == (2, pytest.approx(START_S + 100.0))


def test_job_of_several_sizes_continues_at_its_measured_rate_on_as_many_gpus() -> None:
    made = Bench(("n0", 2))
    made.tell(JobSubmitted(make_spec("a#0", steps=1_800.0, **SIZED)))
    made.wake()
    made.orders("n0")
    made.say("n0", part(0, 0))

    (expected,) = ahead(made.core, 0, rates={0: 9.0}, choice=FAIR).expected

    assert (made.core.jobs.gpus[0], expected.finish_in_s) == (2, pytest.approx(200.0))


def test_job_to_submit_grows_once_another_one_is_over() -> None:
    core = Bench(("n0", 2)).core
    core_copy, parts = without_specs(core)
    new = [make_spec("a#0", steps=100.0), make_spec("b#1", steps=18_000.0, **SIZED)]
    question = LookAhead(core_copy, [pickle.dumps(part) for part in parts], 0.0, FAIR, new, (0, 1), {}, 1e9, 30.0)

    first, second = look_ahead(question, None).expected

    assert (first.gpus, second.gpus) == (1, 1)
    assert first.finish_in_s < 100.0
    assert 1_000.0 < second.finish_in_s < 1_400.0  # 1,000 s on both GPUs from the start, 1,800 s on one


@pytest.mark.parametrize(("rate", "ends_s"), [(18.0, 160.0), (0.0, START_S + 180.0)])
def test_table_has_the_rates_of_sizes_that_the_job_does_not_declare(rate: float, ends_s: float) -> None:
    made = Bench(("n0", 2), move_lag_s=0.0)
    made.tell(JobSubmitted(make_spec("a#0", steps=1_800.0, job_type="lm", sizes=(1, 2))))
    bare, parts = without_specs(made.core)
    question = LookAhead(bare, [pickle.dumps(part) for part in parts], 0.0, FAIR, (), (0,), {}, 1e9, 30.0)

    (expected,) = look_ahead(question, make_table({("lm", 2): {"v100": rate}}, ("v100",))).expected

    assert expected.finish_in_s == pytest.approx(ends_s, abs=10.0)
