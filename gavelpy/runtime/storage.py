"""Calls on shared storage in worker processes, with a time limit that holds even if the storage hangs.

A thread in a system call on a hung file system cannot be ended: it blocks its pool and the exit of its process. A
worker process that exceeds the limit is killed and abandoned: the kernel ends it when the storage answers. The number
of abandoned processes is bounded; beyond it, calls fail at once.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

BUSY_MAX: Final = 8  # concurrent calls
ABANDONED_MAX: Final = 16
IDLE_MAX: Final = 2  # workers that are kept for the next call
_ANSWER_BYTES_MAX = 1 << 20

Value = TypeVar("Value")
Arguments = TypeVarTuple("Arguments")


class StorageSilent(OSError):
    """Storage did not answer in time."""


class StorageWorkers:
    """Worker processes for one event loop. Functions must be module-level; arguments and values must be JSON."""

    def __init__(self, busy_max: int = BUSY_MAX, abandoned_max: int = ABANDONED_MAX) -> None:
        self._slots = asyncio.Semaphore(busy_max)
        self._abandoned_max = abandoned_max
        self._idle: list[_Worker] = []
        self._is_closed = False
        self._leaving: list[subprocess.Popen[bytes]] = []  # ended or abandoned, and not reaped yet

    @property
    def abandoned(self) -> int:
        """Number of abandoned processes that still hang."""
        self._leaving = [process for process in self._leaving if process.poll() is None]
        return len(self._leaving)

    async def call(
        self, function: Callable[[Unpack[Arguments]], Value], *arguments: *Arguments, limit_s: float
    ) -> Value:
        """Calls the function in a worker and returns its value. Raises its OSError, or StorageSilent at the limit."""
        question = json.dumps([f"{function.__module__}:{function.__name__}", arguments]).encode() + b"\n"
        try:
            async with asyncio.timeout(limit_s), self._slots:
                answer = await self._answer(question)
        except TimeoutError:
            raise StorageSilent(f"storage did not answer within {limit_s:g} s") from None
        if "error" in answer:
            number, text, file = answer["error"]
            raise OSError(number, text, file) if file else OSError(number, text)
        value: Value = answer["value"]
        return value

    def close(self) -> None:
        """Ends the workers, also those with a pending call; hung ones are left to the kernel."""
        self._is_closed = True
        for worker in self._idle:
            self._dismiss(worker)
        self._idle = []
        for process in self._leaving:
            if process.poll() is None:
                process.returncode = -1  # as in `_abandon`

    async def _answer(self, question: bytes) -> dict[str, Any]:  # values of any function
        while True:
            is_used, worker = bool(self._idle), self._idle.pop() if self._idle else await self._started()
            answer = b""
            try:
                answer = await worker.ask(question)
            finally:
                if answer and len(self._idle) < IDLE_MAX:
                    self._idle.append(worker)
                else:
                    self._dismiss(worker)
            if answer:
                found: dict[str, Any] = json.loads(answer)
                return found
            if not is_used:
                raise OSError(None, "the storage worker ended without an answer")

    async def _started(self) -> _Worker:
        if self.abandoned >= self._abandoned_max:
            raise StorageSilent(f"storage does not answer: {self.abandoned} calls hang")
        ours, its = socket.socketpair()
        with its:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("storage_worker.py"))],
                stdin=its.fileno(),
                stdout=its.fileno(),
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
        worker = None
        try:
            worker = _Worker(process, *await asyncio.open_connection(sock=ours, limit=_ANSWER_BYTES_MAX))
        finally:
            if worker is None:  # the limit was reached before the first request
                ours.close()
                self._abandon(process)
        return worker

    def _dismiss(self, worker: _Worker) -> None:
        worker.writer.close()
        self._abandon(worker.process)

    def _abandon(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        if not self._is_closed:
            self._leaving.append(process)
        elif process.poll() is None:
            process.returncode = -1  # intentionally not reaped here


@dataclass(eq=False)
class _Worker:
    """A process and the socket that is its input and output."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, question: bytes) -> bytes:
        """Its answer; empty if it has ended."""
        try:
            self.writer.write(question)
            await self.writer.drain()
            return await self.reader.readline()
        except (BrokenPipeError, ConnectionResetError):
            return b""
