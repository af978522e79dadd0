"""Storage that hangs when a test requires it, without a hung file system."""

from __future__ import annotations

import asyncio
from typing import Any

from gavelpy.runtime.storage import StorageSilent, StorageWorkers


class Storage(StorageWorkers):
    """Calls that begin while it hangs are answered when it is over, unless their time is over before."""

    is_hung = False

    async def call(self, function: Any, *arguments: Any, limit_s: float) -> Any:  # type: ignore[override]  # of any types
        try:
            async with asyncio.timeout(limit_s):
                while self.is_hung:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise StorageSilent(f"storage did not answer within {limit_s:g} s") from None
        return await super().call(function, *arguments, limit_s=limit_s)
