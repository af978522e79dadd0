"""One scheduler per PostgreSQL journal: a second one is refused while the first is connected, unless it takes over."""

from __future__ import annotations

import os

import pytest

from gavelpy.errors import FencedOut, JournalInUse
from gavelpy.journal.store import open_store
from tests.journal.stores import cancelled
from tests.journal.test_store_migrations import make_version_1


def test_a_second_scheduler_is_refused_while_the_first_is_alive(postgres_url: str) -> None:
    with open_store(postgres_url) as first:
        incarnation = first.begin_incarnation()

        with open_store(postgres_url) as second, pytest.raises(JournalInUse, match=rf"process {os.getpid()}\)"):
            second.begin_incarnation()

        assert first.append(cancelled(0)) == 1
    with open_store(postgres_url) as third:
        assert third.begin_incarnation() == incarnation + 1


def test_a_second_scheduler_that_takes_over_fences_the_first_out(postgres_url: str) -> None:
    with open_store(postgres_url) as first, open_store(postgres_url, take_over=True) as second:
        first.begin_incarnation()

        second.begin_incarnation()

        assert second.append(cancelled(0)) == 1
        with pytest.raises(FencedOut):
            first.append(cancelled(1))
        with open_store(postgres_url) as third, pytest.raises(JournalInUse):
            third.begin_incarnation()


def test_clusters_in_two_schemas_of_a_database_do_not_exclude_each_other(postgres_url: str, other_url: str) -> None:
    with open_store(postgres_url) as one, open_store(other_url) as other:
        assert (one.begin_incarnation(), other.begin_incarnation()) == (1, 1)


def test_a_journal_in_use_is_not_brought_up_to_date(postgres_url: str) -> None:
    make_version_1(postgres_url)
    with open_store(postgres_url) as first:
        first.begin_incarnation()
        harmed = "UPDATE gavel_meta SET value = '1' WHERE name = 'schema_version'"
        with first._transaction() as connection:
            connection.exec_driver_sql(harmed)

        with pytest.raises(JournalInUse):
            open_store(postgres_url)
