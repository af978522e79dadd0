"""The last contact of an agent with the scheduler: across restarts, on a full disk, and in answers to other agents."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gavelpy.runtime.agent import peers
from gavelpy.runtime.agent.quorum_member import CONTACT_FILE, VIEW_FILE, QuorumMember
from gavelpy.runtime.lease_files import clock_s
from gavelpy.runtime.quorum import Member, MemberAnswer, View

KEY = b"k" * 32
A, B = Member("a", "of a", "127.0.0.1:1"), Member("b", "of b", "127.0.0.1:1")
VIEW = View(3, (A, B), orphan_max_s=100.0, window_s=8.0, step_s=20.0)


def orphans(directory: Path, *, me: Member = A, boot: str = "boot", now_s: float = 1000.0) -> QuorumMember:
    directory.mkdir(exist_ok=True)
    return QuorumMember(directory, me, "c1", 0, boot, now_s)


def heard(directory: Path, at_s: float = 1010.0) -> QuorumMember:
    """An agent with a stored view and a contact."""
    found = orphans(directory)
    found.record_contact(2, at_s - 1.0, at_s)
    found.store_view(VIEW, KEY)
    return found


def test_a_restart_keeps_view_and_contact_and_never_makes_it_older(tmp_path: Path) -> None:
    before = heard(tmp_path)
    before.record_contact(2, 1010.3, 1010.5)  # too soon after the last one to be written

    after = orphans(tmp_path, now_s=1050.0)

    assert (after.view, after.key) == (VIEW, KEY)
    assert after.contact.incarnation == 2
    assert 1010.5 <= after.contact.heard_clock_s <= 1011.0 + VIEW.window_s / 8
    assert after.contact.echoed_clock_s <= before.contact.echoed_clock_s


def test_after_a_reboot_an_agent_counts_its_start_as_contact(tmp_path: Path) -> None:
    heard(tmp_path)

    after = orphans(tmp_path, boot="another", now_s=5.0)

    assert after.heard_ago_s(6.0) == 1.0
    assert not after.must_query(50.0)


def test_a_contact_that_cannot_be_written_is_not_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = heard(tmp_path)
    (tmp_path / CONTACT_FILE).unlink()
    (tmp_path / CONTACT_FILE).mkdir()  # nothing can replace a directory

    is_kept = found.record_contact(2, 1019.0, 1020.0)

    assert not is_kept
    assert found.heard_ago_s(1021.0) == 1.0


def test_an_older_view_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    found = heard(tmp_path)

    found.store_view(replace(VIEW, epoch=2, members=(A,)), KEY)

    assert found.view == VIEW


def test_another_cluster_begins_without_view_and_contact(tmp_path: Path) -> None:
    found = heard(tmp_path)

    found.move("c2", 1100.0)

    assert found.view is None
    assert not (tmp_path / VIEW_FILE).exists()
    assert found.heard_ago_s(1100.0) == 0.0


def test_answers_to_questions_from_before_the_scheduler_was_back_extend_nothing(tmp_path: Path) -> None:
    found = heard(tmp_path)
    asked = found.contact
    found.record_contact(3, 1029.0, 1030.0)

    agree = found.count_answers(asked, [MemberAnswer("b", "of b", 2, 20.0, 1031.0)], 1029.5)

    assert agree == 0
    assert found.until_clock_s < 0


# Between agents -------------------------------------------------------------------------------------------------------


def run(work: Coroutine[Any, Any, MemberAnswer | list[MemberAnswer] | None]) -> Any:  # the result of the work
    return asyncio.run(work)


async def asked(asking: QuorumMember, answering: QuorumMember, *, named: Member = B) -> MemberAnswer | None:
    server, port = await peers.serve_peers(answering, "127.0.0.1", 0)
    try:
        return await peers.query_member(asking, replace(named, address=f"127.0.0.1:{port}"))
    finally:
        await server.stop(None)


def two(tmp_path: Path, key: bytes = KEY) -> tuple[QuorumMember, QuorumMember]:
    asking, answering = heard(tmp_path / "a"), orphans(tmp_path / "b", me=B)
    answering.record_contact(2, clock_s() - 6.0, clock_s() - 5.0)
    answering.store_view(VIEW, key)
    return asking, answering


@pytest.fixture
def pair(tmp_path: Path) -> tuple[QuorumMember, QuorumMember]:
    (tmp_path / "a").mkdir()
    return two(tmp_path)


def test_a_member_answers_with_the_age_of_its_contact(pair: tuple[QuorumMember, QuorumMember]) -> None:
    answer = run(asked(*pair))

    assert (answer.node_id, answer.state_id, answer.incarnation) == ("b", "of b", 2)
    assert 5.0 <= answer.heard_ago_s < 60.0


def test_an_agent_with_another_key_gets_no_answer(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()

    assert run(asked(*two(tmp_path, b"another key"))) is None


def test_an_agent_on_another_disk_is_not_the_member(pair: tuple[QuorumMember, QuorumMember]) -> None:
    assert run(asked(*pair, named=replace(B, state_id="of an older disk"))) is None


def test_agent_without_a_view_refuses_queries(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()

    assert run(asked(heard(tmp_path / "a"), orphans(tmp_path / "b", me=B))) is None


def test_members_that_are_not_there_are_no_answers(tmp_path: Path) -> None:
    assert run(peers.query_members(heard(tmp_path), random.Random(1))) == []
