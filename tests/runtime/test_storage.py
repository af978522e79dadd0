"""Calls to storage end in time, even if it hangs, and do not delay other calls."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import signal
import time
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from gavelpy.runtime.checkpoint_directory import whole_steps
from gavelpy.runtime.storage import StorageSilent, StorageWorkers

Use = Callable[[StorageWorkers], Coroutine[Any, Any, Any]]


def use(work: Use, **limits: int) -> Any:
    """The result of a call; the workers are closed afterwards."""

    async def run() -> Any:
        workers = StorageWorkers(**limits)
        try:
            return await work(workers)
        finally:
            workers.close()

    return asyncio.run(run())


def test_value_of_a_function_and_its_os_error_come_back(tmp_path: Path) -> None:
    async def work(workers: StorageWorkers) -> tuple[float, OSError | None]:
        root = await workers.call(math.sqrt, 4.0, limit_s=30.0)
        try:
            await workers.call(os.listdir, str(tmp_path / "none"), limit_s=30.0)
        except OSError as error:
            return root, error
        return root, None

    root, error = use(work)

    assert root == 2.0
    assert isinstance(error, FileNotFoundError)
    assert error.filename == str(tmp_path / "none")


def test_call_that_hangs_ends_in_time_and_the_next_one_works() -> None:
    async def work(workers: StorageWorkers) -> tuple[float, float]:
        began_s = time.monotonic()
        with pytest.raises(StorageSilent, match=r"within 0\.3 s"):
            await workers.call(time.sleep, 1_000.0, limit_s=0.3)
        return time.monotonic() - began_s, await workers.call(math.sqrt, 9.0, limit_s=30.0)

    took_s, root = use(work)

    assert took_s < 5.0
    assert root == 3.0


def test_no_process_is_forgotten_when_workers_close_during_a_call() -> None:
    async def work(workers: StorageWorkers) -> asyncio.Task[None]:
        call = asyncio.create_task(workers.call(time.sleep, 1_000.0, limit_s=30.0))
        await asyncio.sleep(0.5)  # its process has started or is about to: both must be ended
        workers.close()
        call.cancel()
        await asyncio.wait([call])
        return call

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call = use(work)
        gc.collect()

    assert call.cancelled()
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []


def test_calls_that_hang_hold_up_no_others_and_no_loop() -> None:
    """The maximum number of calls hang at once; the event loop keeps running, and each call times out."""

    async def work(workers: StorageWorkers) -> tuple[int, list[Any]]:
        hanging = [asyncio.create_task(workers.call(time.sleep, 1_000.0, limit_s=1.0)) for _ in range(4)]
        rounds = 0
        while not all(task.done() for task in hanging):
            await asyncio.sleep(0.01)
            rounds += 1
        return rounds, await asyncio.gather(*hanging, return_exceptions=True)

    rounds, ends = use(work, busy_max=2)

    assert rounds > 20
    assert [type(end) for end in ends] == [StorageSilent] * 4


def test_processes_that_nothing_can_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a process in a system call on hung storage, which survives SIGKILL: this one never receives it."""
    monkeypatch.setattr("subprocess.Popen.kill", lambda process: process.send_signal(signal.SIGSTOP))

    async def work(workers: StorageWorkers) -> int:
        for _ in range(2):
            with pytest.raises(StorageSilent, match=r"within 0\.2 s"):
                await workers.call(time.sleep, 1_000.0, limit_s=0.2)
        hanging = [process.pid for process in workers._leaving]
        with pytest.raises(StorageSilent, match="2 calls hang"):
            await workers.call(math.sqrt, 9.0, limit_s=30.0)
        monkeypatch.undo()  # workers started from here on can be ended
        for process in hanging:
            os.kill(process, signal.SIGKILL)
        while workers.abandoned:
            await asyncio.sleep(0.01)
        return int(await workers.call(math.sqrt, 9.0, limit_s=30.0))

    assert use(work, abandoned_max=2) == 3


def test_worker_that_died_between_calls_is_replaced() -> None:
    async def work(workers: StorageWorkers) -> float:
        await workers.call(math.sqrt, 4.0, limit_s=30.0)
        os.kill(workers._idle[0].process.pid, signal.SIGKILL)
        workers._idle[0].process.wait()
        return await workers.call(math.sqrt, 9.0, limit_s=30.0)

    assert use(work) == 3.0


def test_function_that_breaks_is_an_error_and_no_hang() -> None:
    async def work(workers: StorageWorkers) -> None:
        with pytest.raises(OSError, match="ended without an answer"):
            await workers.call(math.sqrt, -1.0, limit_s=30.0)

    use(work)


def test_complete_checkpoints_are_counted(tmp_path: Path) -> None:
    (tmp_path / "step-000000000040").mkdir()

    assert use(lambda workers: workers.call(whole_steps, str(tmp_path), limit_s=30.0)) == 40.0
