"""Journals in PostgreSQL for standbys."""

from tests.journal.conftest import postgres_server, postgres_url  # noqa: F401 fixtures
