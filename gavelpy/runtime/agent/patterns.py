"""Regular expressions of strangers: matched in a process of their own, within a time, or refused."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gavelpy.errors import InvalidInput

PATTERN_CHARACTERS_MAX: Final = 1_000
_ANSWER_BYTES_MAX = 8 << 20


class PatternTooSlow(InvalidInput):
    """Matching the pattern took longer than it may."""


class Matcher:
    """Matches lines against one pattern. Use as an asynchronous context: its process ends with it.

    `limit_s` is for all that is matched within the context.
    """

    def __init__(self, pattern: str, limit_s: float) -> None:
        self._pattern = pattern
        self._limit_s = limit_s
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Matcher:
        """Raises InvalidInput for what is no regular expression."""
        if len(self._pattern) > PATTERN_CHARACTERS_MAX:
            raise InvalidInput(
                f"pattern must have at most {PATTERN_CHARACTERS_MAX} characters, got {len(self._pattern)}"
            )
        self._deadline_s = asyncio.get_running_loop().time() + self._limit_s
        if not self._pattern:
            return self
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(Path(__file__).with_name("grep_worker.py")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_ANSWER_BYTES_MAX,
            env={},
        )
        try:
            wrong = await self._ask(self._pattern)
        except InvalidInput:
            await self.__aexit__()
            raise
        if wrong:
            await self.__aexit__()
            raise InvalidInput(f"pattern must be a regular expression ({wrong}), got {self._pattern[:80]!r}")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def matching(self, texts: Sequence[str]) -> list[int]:
        """Indices of the texts that match; raises PatternTooSlow when the time is over."""
        if self._process is None:
            return list(range(len(texts)))
        found = await self._ask(list(texts))
        assert isinstance(found, list), "the worker answers a list by a list"
        return found

    async def _ask(self, question: object) -> object:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout_at(self._deadline_s):
                self._process.stdin.write(json.dumps(question).encode() + b"\n")
                await self._process.stdin.drain()
                answer = await self._process.stdout.readline()
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            answer = b""
        if not answer:
            raise PatternTooSlow(
                f"pattern must be matched within {self._limit_s:g} s, which it was not: {self._pattern[:80]!r}"
            )
        value: object = json.loads(answer)
        return value
