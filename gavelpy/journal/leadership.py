"""Which scheduler leads a PostgreSQL journal: rows that leader and standbys renew, and when a standby takes over.

The leader counts up the beat of its row. A standby takes over at once if the leader's session with the database has
ended, and if the beat stands still for a lease. It measures that time with its own clock only, so clocks need not
agree. The rows are hints: two schedulers that both think that they lead cannot both write, because each append needs
the newest incarnation (see `store`), and agents obey only the highest incarnation that they have seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from sqlalchemy import Connection, func, text
from sqlalchemy.exc import DBAPIError

from gavelpy.errors import FencedOut, InvalidInput, JournalFailed
from gavelpy.journal.database import LEADER, STANDBYS, PostgresDatabase, SchedulerMember, database_of, failing
from gavelpy.journal.tables import newest_incarnation

STANDBY_GONE_S = 10.0  # a standby that was not seen for this long is not listed


class Leader(NamedTuple):
    """What a standby sees of the scheduler of the newest incarnation."""

    incarnation: int  # 0 = no scheduler ever began
    is_connected: bool  # its session with the database lives
    address: str = ""  # "" = it does not renew a row: it has no standbys
    beat: int = 0
    successor: str = ""  # address of the standby to which it hands over; "" = none


class Standby(NamedTuple):
    """One that was seen recently."""

    address: str
    version: str
    sequence: int  # of the last event that it has applied; -1 = it does not follow
    seen_s: float  # time since then, by the database's clock


class Turn(Enum):
    """What a standby does next."""

    WAIT = auto()
    LEAD = auto()  # the leader has gone
    FENCE = auto()  # the leader is silent: end its session first


@dataclass
class TakeoverTimer:
    """Decides when a standby takes over, from what it sees of the leader and when."""

    address: str  # of this standby
    lease_s: float
    _seen: tuple[int, int, bool] = (-1, -1, False)
    _since_s: float = math.inf

    def turn(self, leader: Leader, now_s: float) -> Turn:
        """`now_s`: time of any clock that never goes back."""
        seen = leader.incarnation, leader.beat, leader.is_connected
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        is_silent = now_s - self._since_s >= self.lease_s
        if not leader.is_connected:
            is_mine = leader.successor in ("", self.address)
            return Turn.LEAD if is_mine or is_silent else Turn.WAIT
        return Turn.FENCE if is_silent and leader.address else Turn.WAIT


class Leadership:
    """One scheduler's access to the rows; for one thread at a time. After JournalFailed the next call reconnects."""

    def __init__(self, url: str, member: SchedulerMember) -> None:
        """Raises InvalidInput unless the journal is in PostgreSQL, JournalFailed if it cannot be reached."""
        database = database_of(url)
        if not isinstance(database, PostgresDatabase):
            database.release()
            raise InvalidInput(f"journal of schedulers that stand by must be postgresql://..., got {database.name}")
        self.member = member
        self._database = database
        self._connection: Connection | None = None

    def leader(self) -> Leader:
        """The scheduler of the newest incarnation."""
        with self._statements() as connection:
            newest = newest_incarnation(connection, locks=False)
            row = connection.execute(LEADER.select().where(LEADER.c.incarnation == newest)).one_or_none()
            is_connected = bool(newest) and self._database.session_of(connection, newest) is not None
            if row is None:
                return Leader(newest, is_connected)
            return Leader(newest, is_connected, row.address, row.beat, row.successor)

    def renew(self, incarnation: int) -> str:
        """Counts up the beat of this leader; returns its successor, "" = none. Raises FencedOut if it leads no more."""
        mine = LEADER.c.incarnation == incarnation
        with self._statements() as connection:
            newest = newest_incarnation(connection, locks=False)
            found = connection.execute(
                LEADER.update().where(mine).values(beat=LEADER.c.beat + 1).returning(LEADER.c.successor)
            ).one_or_none()
        if newest != incarnation or found is None:
            raise FencedOut(f"journal {self._database.name}: incarnation {newest} has taken over from {incarnation}")
        return str(found.successor)

    def stand_by(self, sequence: int) -> None:
        """Renews the row of this standby, with the event up to which it has followed; deletes rows of long ago."""
        values = {"version": self.member.version, "sequence": sequence, "seen": func.clock_timestamp()}
        mine = STANDBYS.c.address == self.member.address
        with self._statements() as connection:
            if not connection.execute(STANDBYS.update().where(mine).values(values)).rowcount:
                connection.execute(STANDBYS.insert().values(address=self.member.address, **values))
            connection.execute(text(f"DELETE FROM {STANDBYS.name} WHERE seen < clock_timestamp() - interval '1 day'"))

    def leave(self) -> None:
        """This scheduler stands by no more."""
        with self._statements() as connection:
            connection.execute(STANDBYS.delete().where(STANDBYS.c.address == self.member.address))

    def standbys(self) -> list[Standby]:
        """Those seen within STANDBY_GONE_S, by address."""
        age = func.extract("epoch", func.clock_timestamp() - STANDBYS.c.seen)
        query = STANDBYS.select().with_only_columns(STANDBYS.c.address, STANDBYS.c.version, STANDBYS.c.sequence, age)
        with self._statements() as connection:
            rows = connection.execute(query.order_by(STANDBYS.c.address)).all()
        found = [Standby(row[0], row[1], row[2], float(row[3])) for row in rows]
        return [one for one in found if one.seen_s <= STANDBY_GONE_S]

    def hand_over(self, incarnation: int, to: str) -> bool:
        """Requests that the leader of this incarnation stops for a standby; false if it has no row or leads no more."""
        with self._statements() as connection:
            mine = LEADER.c.incarnation == incarnation
            return bool(connection.execute(LEADER.update().where(mine).values(successor=to)).rowcount)

    def end_session(self, incarnation: int) -> None:
        """Ends the session of a silent leader, so that no transaction of it blocks the next one."""
        with self._statements() as connection:
            session = self._database.session_of(connection, incarnation)
            if session is not None:
                connection.execute(text("SELECT pg_terminate_backend(:process)"), {"process": session.process})

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            with failing(self._database.name):
                self._connection.close()
            self._connection = None

    @contextmanager
    def _statements(self) -> Iterator[Connection]:
        try:
            if self._connection is None:
                self._connection = self._database.watch()
            yield self._connection
        except DBAPIError as error:
            if self._connection is not None:
                self._connection.invalidate()
                self._connection.close()
            self._connection = None
            raise JournalFailed(f"journal {self._database.name}: {' '.join(str(error.orig).split())}") from error
