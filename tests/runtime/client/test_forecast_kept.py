"""With many jobs, no caller waits for a forecast: one background run ahead answers for all jobs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gavelpy.runtime.daemon.engine.forecast import Ahead, Forecaster, Outlook, Outlooks
from gavelpy.simulator.expected import Expected
from tests.runtime.client.test_forecast import FIRST_COME, START_S, ahead, bench

NO_RATES: Mapping[int, float] = {}


class SlowForecaster(Forecaster):
    """A forecaster that answers when it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()
        self.asked = 0

    async def ask(self, core: Any, now_s: float, choice: Any, *, wanted: Sequence[int], **_: Any) -> Ahead:
        self.asked += 1
        await self.released.wait()
        return Ahead((), "not within 3 s of computing", {0: Expected(0.0, 105.0, "v100", ("n0",))})


async def later(outlooks: Outlooks, job: int, now_s: float) -> Outlook:
    await asyncio.sleep(0.01)  # lets the background task run
    return await outlooks.of(job, bench(1_000.0, 1_000.0).core, now_s, FIRST_COME, NO_RATES)


def test_no_caller_waits_and_the_next_one_has_the_forecast_with_its_age() -> None:
    async def scenario() -> list[Outlook]:
        forecaster = SlowForecaster()
        outlooks = Outlooks(forecaster, at_once_max=1, kept_s=30.0)
        first = [await later(outlooks, 0, 100.0), await later(outlooks, 1, 101.0)]
        forecaster.released.set()
        await asyncio.sleep(0.01)
        then = [await later(outlooks, 0, 110.0), await later(outlooks, 1, 110.0)]
        assert forecaster.asked == 1
        await later(outlooks, 0, 140.0)
        await asyncio.sleep(0.01)
        assert forecaster.asked == 2
        await outlooks.close()
        return first + then

    first, second, known, unseen = asyncio.run(asyncio.wait_for(scenario(), 60.0))

    assert first == second
    assert "the forecast of 2 living jobs is being computed" in first.why_not
    assert (known.expected.start_in_s, known.expected.finish_in_s, known.why_not) == (0.0, 95.0, "")
    assert known.age_s == 10.0
    assert math.isinf(unseen.expected.start_in_s)
    assert unseen.why_not == "not within 3 s of computing"


def test_one_run_ahead_sees_every_job_that_starts() -> None:
    made = bench(500.0, 500.0)

    async def scenario() -> Ahead:
        forecaster = Forecaster()
        answer = await forecaster.ask(made.core, 0.0, FIRST_COME, wanted=(), everything=True)
        forecaster.close()
        return answer

    answer = asyncio.run(asyncio.wait_for(scenario(), 60.0))

    assert [answer.seen[job] for job in (0, 1)] == list(ahead(made.core, 0, 1).expected)
    assert answer.seen[0].finish_in_s == START_S + 50.0
