"""The event store in a PostgreSQL database: tables of our own in the schema that the URL's user finds first.

Nothing keeps a second scheduler out: it takes over, and the incarnation's row fences the first one out.
"""

from __future__ import annotations

from sqlalchemy import URL, Connection, create_engine, text
from sqlalchemy.pool import NullPool

from gavelpy.journal.store_loss import Loss
from gavelpy.journal.store_marks import Marks
from gavelpy.journal.store_reading import Reading
from gavelpy.journal.store_schema import prepare

_CONNECT_S = 10
_CREATION_LOCK = 0x67617665  # advisory, so that two schedulers do not make the tables at once
# A scheduler frozen inside a transaction must not keep the next one from taking over.
_SETTINGS = {
    "synchronous_commit": "on",
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "30s",
    "client_encoding": "UTF8",
}


class PostgresDatabase:
    """A database behind a URL."""

    def __init__(self, url: URL, *, create: bool) -> None:
        self.name = url.render_as_string(hide_password=True)
        self.note = ""
        self.loss: Loss | None = None
        self.reading: Reading | None = None
        self.marks: Marks | None = None
        self._engine = create_engine(
            url, poolclass=NullPool, hide_parameters=True, connect_args={"connect_timeout": _CONNECT_S}
        )
        if create:
            with self.connect() as connection, connection.begin():
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATION_LOCK})
                prepare(connection)

    def connect(self) -> Connection:
        """A connection with a transaction for each `begin`, durable when it has committed."""
        connection = self._engine.connect()
        with connection.begin():
            for name, value in _SETTINGS.items():
                connection.execute(text("SELECT set_config(:name, :value, false)"), {"name": name, "value": value})
        return connection

    def is_damage(self, error: BaseException | None) -> bool:  # noqa: ARG002 - as with repair
        """False: what the server refuses to read is not for us to put right."""
        return False

    def repair(self, fault: str, incarnation: int) -> bool:  # noqa: ARG002 - the server looks after its pages
        """False: there is no other source than the tables."""
        return False

    def keep_marks(self, marks: Marks, durably: bool) -> bool:  # noqa: ARG002 - no place beside the tables
        """False: they belong into a row."""
        return False

    def release(self) -> None:
        """Nothing is held."""
