"""Named values of a journal: its incarnation among them."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select

from gavelpy.journal.store_rows import MetaRow
from gavelpy.journal.store_schema import INCARNATION, META

# Made once: every append runs it.
_NEWEST = select(META.c.value).where(META.c.name == INCARNATION).with_for_update()
_NAMED = select(META.c.name, META.c.value, META.c.crc32).where(META.c.name == bindparam("its_name"))


def newest_incarnation(connection: Connection) -> int:
    """The incarnation in force, 0 before the first; other writers wait until this transaction ends."""
    found = connection.execute(_NEWEST).scalar()
    return int(found) if found and found.isdigit() else 0


def put_meta(connection: Connection, row: MetaRow) -> None:
    """Inserts a named value, or replaces it."""
    if not connection.execute(META.update().where(META.c.name == row.name), row._asdict()).rowcount:
        connection.execute(META.insert(), row._asdict())


def meta_named(connection: Connection, name: str) -> MetaRow | None:
    """The row of a named value, whole or not; None where there is none."""
    found = connection.execute(_NAMED, {"its_name": name}).one_or_none()
    return MetaRow(*found) if found is not None else None
