"""A leader's renewals, and a follower of the journal, in this process."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from gavelpy.errors import FencedOut, JournalFailed
from gavelpy.journal.database import SchedulerMember
from gavelpy.runtime.daemon.standby import keep_leading


class Rows:
    """Answers of the database, in turn; the last one stays."""

    def __init__(self, *answers: str | Exception) -> None:
        self.member = SchedulerMember("a:1")
        self.calls = 0
        self._answers = list(answers)

    def renew(self, _: int) -> str:
        self.calls += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def kept(rows: Any, lease_s: float = 0.2) -> None:
    asyncio.run(keep_leading(rows, 3, lease_s))


def test_a_leader_renews_until_it_hands_over() -> None:
    rows = Rows("", "", "a:1", "b:1")

    kept(rows)

    assert rows.calls == 4


def test_a_leader_that_was_replaced_ends() -> None:
    with pytest.raises(FencedOut):
        kept(Rows("", FencedOut("incarnation 4 has taken over from 3")))


def test_a_leader_outlives_a_short_outage_of_the_database() -> None:
    rows = Rows("", JournalFailed("away"), JournalFailed("away"), "", "b:1")

    kept(rows)

    assert rows.calls == 5


def test_a_leader_stops_where_no_renewal_succeeds_for_two_leases() -> None:
    began_s = time.monotonic()

    with pytest.raises(JournalFailed, match="no leadership was renewed"):
        kept(Rows("", JournalFailed("away")))

    assert 0.4 <= time.monotonic() - began_s < 10


def test_a_leader_stops_where_the_database_hangs() -> None:
    over = threading.Event()

    class Hanging(Rows):
        def renew(self, _: int) -> str:
            over.wait(20)
            return ""

    hanging: Any = Hanging("")

    async def lead() -> None:
        try:
            await keep_leading(hanging, 3, 0.2)
        finally:
            over.set()

    began_s = time.monotonic()
    with pytest.raises(JournalFailed):
        asyncio.run(lead())
    assert time.monotonic() - began_s < 10
