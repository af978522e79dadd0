"""A child process that calls functions for the scheduler: one solves and estimates, another one forecasts.

It is a `ProcessPoolExecutor` with one process, which starts at the first call and keeps the state of its modules. Each
call has a deadline. A process that dies, hangs or raises is killed, and the next call starts another one. The process
ends with the scheduler; its output goes to standard error. Only the standard library is imported here, so that the
environment is set before numpy is loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import pkgutil
import signal
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from typing import Any

from gavelpy.errors import GavelError

# Matrices are small: several BLAS threads on busy cores slow a fit down. The scheduler's environment overrides this.
ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_PR_SET_PDEATHSIG = 1


class WorkerFailed(GavelError):
    """A call has no answer; the message has the reason. The process was killed."""


class WorkerProcess:
    """Call it from one thread with an event loop. `nice`: increase of the process's niceness."""

    def __init__(self, *, nice: int = 0) -> None:
        self.starts = 0
        self._nice = nice
        self._executor: ProcessPoolExecutor | None = None
        self._process: Any = None  # a Process of the executor's context

    @property
    def process_id(self) -> int:
        """Process id; 0 = no process."""
        return self._process.pid if self._process is not None else 0

    async def call(self, function: str, *arguments: object, timeout_s: float) -> Any:  # Any: what the function returns
        """The result of a function, MODULE:NAME, which only the process imports; raises WorkerFailed."""
        future, answered = self._submitted(function, arguments), asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(answered.set)

        future.add_done_callback(wake)
        try:
            async with asyncio.timeout(timeout_s):
                await answered.wait()
        except TimeoutError:
            raise WorkerFailed(f"no answer within {timeout_s:g} s") from None
        finally:
            if not future.done():  # it hangs, or the caller has left
                self.kill()
        if (error := future.exception()) is not None:
            self.kill()
            died = isinstance(error, BrokenExecutor)
            raise WorkerFailed("its process died" if died else f"{type(error).__name__}: {error}") from error
        return future.result()

    def kill(self) -> None:
        """Ends the process; a call that is running fails."""
        if self._process is not None:
            self._process.kill()
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        self._executor = self._process = None

    def _submitted(self, function: str, arguments: tuple[object, ...]) -> Future[Any]:
        if self._executor is not None and self._process.is_alive():
            with contextlib.suppress(BrokenExecutor):  # it has just died
                return self._executor.submit(_called, function, arguments)
        self.kill()
        before = set(multiprocessing.active_children())
        try:
            self._executor = ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(os.getpid(), self._nice)
            )
            submitted = self._executor.submit(_called, function, arguments)  # starts the process
        except OSError as error:  # no memory, or a limit of processes or open files
            self.kill()
            raise WorkerFailed(f"its process cannot be started: {error.strerror}") from error
        (self._process,) = set(multiprocessing.active_children()) - before
        self.starts += 1
        return submitted


def _called(function: str, arguments: tuple[object, ...]) -> Any:
    return pkgutil.resolve_name(function)(*arguments)


def _begin(parent: int, nice: int) -> None:
    """Prepares the process: it ends with its parent, and only the parent ends it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.dup2(2, 1)
    os.nice(nice)
    for name, value in ONE_BLAS_THREAD.items():
        os.environ.setdefault(name, value)
