"""A worker process answers calls; one that dies, hangs or raises is replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gavelpy.runtime.daemon.engine.worker_process import WorkerFailed, WorkerProcess

TIMEOUT_S = 60.0
LONG = bytes(range(256)) * (1 << 18)
ORPHAN = """
import asyncio, time
from gavelpy.runtime.daemon.engine.worker_process import WorkerProcess
if __name__ == "__main__":
    print(asyncio.run(WorkerProcess().call("os:getpid", timeout_s=60.0)), flush=True)
    time.sleep(3600)
"""
# Another process: in one that tests share, files that earlier tests left open may be closed at any moment.
FULL = """
import asyncio, os, resource, sys
from gavelpy.runtime.daemon.engine.worker_process import WorkerFailed, WorkerProcess

async def scenario(worker, free):
    before, held = resource.getrlimit(resource.RLIMIT_NOFILE), [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 30, before[1]))
    while held[-1] < held[0] + 29:
        held.append(os.dup(0))
    for descriptor in held[len(held) - free :]:
        os.close(descriptor)
    try:
        await worker.call("os:getpid", timeout_s=60.0)
    except WorkerFailed as error:
        assert str(error) == "its process cannot be started: Too many open files", error
        print("cannot")
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    print(await worker.call("os:getpid", timeout_s=60.0) == worker.process_id)
    worker.kill()

if __name__ == "__main__":
    asyncio.run(scenario(WorkerProcess(), int(sys.argv[1])))
"""
Answer = TypeVar("Answer")


def with_worker(use: Callable[[WorkerProcess], Awaitable[Answer]], **settings: int) -> Answer:
    """The result of a function of a worker, which is killed afterwards."""

    async def scenario() -> Answer:
        worker = WorkerProcess(**settings)
        try:
            return await use(worker)
        finally:
            worker.kill()

    return asyncio.run(asyncio.wait_for(scenario(), 2 * TIMEOUT_S))


async def call(worker: WorkerProcess, function: str, *arguments: object) -> Any:
    return await worker.call(function, *arguments, timeout_s=TIMEOUT_S)


async def until_gone(process: int) -> None:
    """Waits until a process does not run any more; a zombie does not."""
    stat = Path(f"/proc/{process}/stat")
    with suppress(FileNotFoundError, ProcessLookupError):
        while stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z":
            await asyncio.sleep(0.01)


def test_one_process_answers_all_calls() -> None:
    async def pids(worker: WorkerProcess) -> tuple[list[int], int]:
        return [await call(worker, "os:getpid"), await call(worker, "os:getpid")], worker.process_id

    found, process = with_worker(pids)

    assert found == [process, process]
    assert process != os.getpid()


def test_a_long_argument_arrives_whole_and_others_have_turns_meanwhile() -> None:
    async def size(worker: WorkerProcess) -> tuple[int, int]:
        await call(worker, "os:getpid")
        counting = asyncio.create_task(turns())
        found = await call(worker, "builtins:len", LONG)
        counting.cancel()
        return found, seen[0]

    async def turns() -> None:
        while True:
            seen[0] += 1
            await asyncio.sleep(0.001)

    seen = [0]

    assert with_worker(size)[0] == len(LONG)
    assert seen[0] > 1


def test_a_function_that_raises_fails_the_call_and_the_process_is_replaced() -> None:
    async def scenario(worker: WorkerProcess) -> tuple[int, float]:
        with pytest.raises(WorkerFailed, match="ZeroDivisionError: division by zero"):
            await call(worker, "operator:truediv", 1, 0)
        return worker.process_id, await call(worker, "operator:truediv", 1, 2)

    assert with_worker(scenario) == (0, 0.5)


def test_a_process_that_hangs_is_killed_at_the_deadline_and_replaced() -> None:
    async def scenario(worker: WorkerProcess) -> int:
        process = await call(worker, "os:getpid")
        with pytest.raises(WorkerFailed, match=r"no answer within 0\.2 s"):
            await worker.call("time:sleep", 3_600.0, timeout_s=0.2)
        await until_gone(process)
        assert await call(worker, "os:getpid") != process
        return worker.starts

    assert with_worker(scenario) == 2


def test_a_process_that_dies_in_a_call_fails_it_and_is_replaced() -> None:
    async def scenario(worker: WorkerProcess) -> float:
        with pytest.raises(WorkerFailed, match="its process died"):
            await call(worker, "os:_exit", 1)
        return await call(worker, "operator:truediv", 1, 2)

    assert with_worker(scenario) == 0.5


def test_a_process_that_died_between_two_calls_is_replaced_before_the_second() -> None:
    async def scenario(worker: WorkerProcess) -> int:
        process = await call(worker, "os:getpid")
        os.kill(process, signal.SIGKILL)
        await until_gone(process)
        assert await call(worker, "os:getpid") != process
        return worker.starts

    assert with_worker(scenario) == 2


def test_a_caller_that_leaves_ends_its_call_and_the_next_one_is_answered() -> None:
    async def scenario(worker: WorkerProcess) -> float:
        calling = asyncio.create_task(call(worker, "time:sleep", 3_600.0))
        while not worker.process_id:
            await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        return await call(worker, "operator:truediv", 1, 2)

    assert with_worker(scenario) == 0.5


@pytest.mark.parametrize("count", [0, 3, 6])
def test_a_process_that_cannot_be_started_fails_the_call_and_is_started_when_it_can_be(count: int) -> None:
    run = subprocess.run([sys.executable, "-c", FULL, str(count)], capture_output=True, timeout=TIMEOUT_S, check=True)
    assert run.stdout.split() == [b"cannot", b"True"]


def test_it_computes_with_one_blas_thread_unless_the_environment_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")

    async def threads(worker: WorkerProcess) -> list[str]:
        return [await call(worker, "os:getenv", f"{name}_NUM_THREADS") for name in ("OPENBLAS", "OMP")]

    assert with_worker(threads) == ["1", "2"]


def test_it_is_nice_as_requested_and_ignores_a_terminal() -> None:
    async def niceness(worker: WorkerProcess) -> int:
        os.kill(await call(worker, "os:getpid"), signal.SIGINT)
        return await call(worker, "os:nice", 0)

    assert with_worker(niceness, nice=3) == os.nice(0) + 3


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(ORPHAN)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    began_s = time.monotonic()

    asyncio.run(asyncio.wait_for(until_gone(worker), TIMEOUT_S))

    assert time.monotonic() - began_s < TIMEOUT_S
