"""A forecast in progress when its process is closed or its caller is cancelled."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable

import pytest

from gavelpy.runtime.daemon.engine.forecast import Forecaster


class _Endless:
    """A request that takes an hour to unpickle."""

    def __reduce__(self) -> tuple[Callable[[float], None], tuple[float]]:
        return time.sleep, (3_600.0,)


ENDLESS = pickle.dumps(_Endless())


def test_who_is_called_off_while_forecasts_are_closed_just_ends() -> None:
    async def scenario() -> None:
        forecaster = Forecaster()
        asking = asyncio.create_task(forecaster._answer(ENDLESS))
        while forecaster._process is None:
            await asyncio.sleep(0.01)
        closing = asyncio.create_task(forecaster.close())
        await asyncio.sleep(0)

        asking.cancel()

        await closing
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(asyncio.wait_for(scenario(), 60.0))
