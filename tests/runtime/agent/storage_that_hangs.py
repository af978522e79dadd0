"""Simulates hung storage for tests, without a hung file system."""

from __future__ import annotations

import asyncio
from typing import Any

from gavelpy.runtime.storage import StorageSilent, StorageWorkers


class Storage(StorageWorkers):
    """Storage whose calls wait while it hangs, up to their own time limit."""

    is_hung = False

    async def call(self, function: Any, *arguments: Any, limit_s: float) -> Any:  # type: ignore[override]  # of any types
        try:
            async with asyncio.timeout(limit_s):
                while self.is_hung:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise StorageSilent(f"storage did not answer within {limit_s:g} s") from None
        return await super().call(function, *arguments, limit_s=limit_s)
