"""A forecast that is being computed when its process is ended, or when its caller leaves."""

from __future__ import annotations

import asyncio

import pytest

from gavelpy.runtime.daemon.engine.forecast import Forecaster
from tests.runtime.client.test_forecast import FIRST_COME, bench


def test_a_caller_that_is_cancelled_while_forecasts_are_closed_just_ends() -> None:
    async def scenario() -> None:
        forecaster = Forecaster()
        asking = asyncio.create_task(forecaster.ask(bench(1_000.0).core, 0.0, FIRST_COME, wanted=[0]))
        while not forecaster.process_id:
            await asyncio.sleep(0)
        forecaster.close()

        asking.cancel()

        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(asyncio.wait_for(scenario(), 60.0))
