"""Journals for tests: an empty one in each kind of database."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from tests.journal.postgres_server import required, running


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server: the one named by GAVELPY_POSTGRES_URL, or one of our own per session."""
    named = os.environ.get("GAVELPY_POSTGRES_URL")
    if named:
        yield named
        return
    with running(required(os.environ)) as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of a journal in its own schema, which is dropped after the test."""
    yield from _schema(postgres_server)


@pytest.fixture
def other_url(postgres_server: str) -> Iterator[str]:
    """Another cluster's journal on the same server."""
    yield from _schema(postgres_server)


def _schema(postgres_server: str) -> Iterator[str]:
    schema = f"test_{uuid.uuid4().hex}"
    engine = create_engine(postgres_server, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    url = make_url(postgres_server).update_query_dict({"options": f"-csearch_path={schema}"})
    yield url.render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text("SET client_min_messages = warning"))
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a journal in its own folder."""
    return f"sqlite:///{tmp_path / 'journal.sqlite'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a journal, for each kind of database."""
    return str(request.getfixturevalue({"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]))
