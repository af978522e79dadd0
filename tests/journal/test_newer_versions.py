"""A journal that a newer version has written is refused and left as it is: it is not damaged, and nothing is lost."""

from __future__ import annotations

import msgspec
import pytest

from gavelpy.errors import JournalTooNew
from gavelpy.journal import tables
from gavelpy.journal.store import open_store
from gavelpy.journal.versions import NEWEST
from gavelpy.mechanism.events import Event
from tests.journal.stores import cancelled, execute, filled

NEWER = NEWEST + 1


def encoded_newer(_: Event, now_s: float) -> bytes:
    """A record of an event that this version does not have."""
    return msgspec.msgpack.encode([NEWER, "JobFrozen", now_s, [{"job": 3, "why": "new"}]])


def make_newer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal with two events of this version, and a later one of the next."""
    filled(url, 2)
    with monkeypatch.context() as patch, open_store(url, take_over=True) as store:
        patch.setattr(tables, "encode", encoded_newer)
        store.begin_incarnation()
        store.append(cancelled(2))


def content(url: str) -> list[tuple[object, ...]]:
    """All events, whole."""
    return execute(url, "SELECT sequence, record, crc32 FROM gavel_events ORDER BY sequence")


@pytest.mark.parametrize("accept_loss", [False, True])
def test_events_of_a_newer_version_are_not_taken_for_damage(
    url: str, monkeypatch: pytest.MonkeyPatch, accept_loss: bool
) -> None:
    make_newer(url, monkeypatch)
    before = content(url)

    refused = pytest.raises(JournalTooNew, match=rf"event 3 .* at most {NEWEST}, got {NEWER}: a newer gavelpy")
    with refused, open_store(url, accept_loss=accept_loss) as store:
        store.begin_incarnation()
        store.load()

    assert content(url) == before
    assert execute(url, "SELECT count(*) FROM gavel_quarantine") == [(0,)]


def test_a_reader_gets_the_events_before_and_then_the_reason(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_newer(postgres_url, monkeypatch)

    with open_store(postgres_url) as store:
        assert len(store.events(0, 2)) == 2
        with pytest.raises(JournalTooNew, match="event 3 of the journal"):
            store.events(2, 2)
