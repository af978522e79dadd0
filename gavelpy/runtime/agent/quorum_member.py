"""This agent as a member of the quorum (`gavelpy.runtime.quorum`): its view, contact, answers and extensions.

View and contact are stored in the state directory, so that they survive a restart of the agent:

    view.json       the view, with its key (mode 0600)
    contact.json    the last contact, with `heard` rounded up by an eighth of the window, at most ROUND_UP_S_MAX

The contact is written again when a message arrives later than the file records, so `heard` in the file is never too
early. A message that could not be written counts here, but is not acknowledged to the scheduler, which therefore does
not rely on it. After a reboot clocks restart and no process of an old lease runs: the agent then counts its own start
as contact, so that it agrees to no extension that began before.

No I/O except these two files; `peers` queries the other agents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.quorum import Contact, Member, MemberAnswer, View, agreeing, extended_until_clock_s
from gavelpy.runtime.whole_files import read_text_whole, write_text_whole

VIEW_FILE: Final = "view.json"
CONTACT_FILE: Final = "contact.json"
ROUND_UP_S_MAX: Final = 2.0
ROUND_UP: Final = 1 / 8  # of the window
QUERY_AFTER: Final = 0.5  # of the window, without a message of the scheduler
QUERY_INTERVAL: Final = 1 / 6  # of a step
QUERY_INTERVAL_S_MIN: Final = 0.2
Stored = TypeVar("Stored")


@dataclass(frozen=True)
class StoredView:
    """The contents of view.json."""

    cluster_id: str
    view: View
    key: str  # hexadecimal


@dataclass(frozen=True)
class StoredContact:
    """The contents of contact.json."""

    boot_id: str
    cluster_id: str
    contact: Contact


class QuorumMember:
    """`boot_id`: of the current boot; `incarnation`: of the newest scheduler that was obeyed."""

    def __init__(
        self, state: Path, me: Member, cluster_id: str, incarnation: int, boot_id: str, now_clock_s: float
    ) -> None:
        self._state = state
        self._boot_id = boot_id
        self.me = me  # `address` is set once it is known
        self.cluster_id = cluster_id
        self.view: View | None = None
        self.key = b""
        self.until_clock_s = -math.inf  # leases may run until then, by the majority
        self.contact = Contact(incarnation, -math.inf, now_clock_s)
        self._written_clock_s = -math.inf  # `heard` in contact.json as written by this agent; -inf = not written
        self._load(now_clock_s)

    # The scheduler ------------------------------------------------------------------------------------------------

    def record_contact(self, incarnation: int, echoed_clock_s: float, now_clock_s: float) -> bool:
        """Records a message of this cluster's scheduler; returns whether the contact is on disk."""
        is_due = now_clock_s > self._written_clock_s or incarnation != self.contact.incarnation
        echoed_clock_s = max(min(echoed_clock_s, now_clock_s), self.contact.echoed_clock_s)
        self.contact = Contact(max(incarnation, self.contact.incarnation), echoed_clock_s, now_clock_s)
        self.until_clock_s = -math.inf
        if self.view is None or not is_due:
            return True
        try:
            self._write_contact(self.view)
        except OSError:
            return False
        return True

    def store_view(self, view: View, key: bytes) -> None:
        """Replaces an older view. Raises OSError, without a change."""
        if self.view is not None and view.epoch <= self.view.epoch:
            return
        self._write_contact(view)
        self._write(VIEW_FILE, StoredView(self.cluster_id, view, key.hex()))
        self.view, self.key = view, key

    def move(self, cluster_id: str, now_clock_s: float) -> None:
        """Joins another cluster. Raises OSError."""
        for name in (VIEW_FILE, CONTACT_FILE):
            (self._state / name).unlink(missing_ok=True)
        self.cluster_id, self.view, self.key = cluster_id, None, b""
        self.contact = Contact(0, -math.inf, now_clock_s)
        self.until_clock_s = self._written_clock_s = -math.inf

    # Other agents -------------------------------------------------------------------------------------------------

    def heard_ago_s(self, now_clock_s: float) -> float:
        """Seconds since the last contact, for an answer to another agent."""
        return max(0.0, now_clock_s - self.contact.heard_clock_s)

    def must_query(self, now_clock_s: float) -> bool:
        """Whether to query other agents now, if a lease is running."""
        view, contact = self.view, self.contact
        if view is None or not view.has(self.me.node_id, self.me.state_id):
            return False
        is_silent = now_clock_s - contact.heard_clock_s >= view.window_s * QUERY_AFTER
        return is_silent and now_clock_s < contact.echoed_clock_s + view.orphan_max_s

    @property
    def query_interval_s(self) -> float:
        """Between two rounds of queries."""
        return max(QUERY_INTERVAL_S_MIN, self.view.step_s * QUERY_INTERVAL) if self.view is not None else 1.0

    def count_answers(self, contact: Contact, answers: Sequence[MemberAnswer], asked_clock_s: float) -> int:
        """Extends by the answers to queries at that time, sent with this contact; returns how many members agree."""
        view = self.view
        if view is None or contact != self.contact:
            return 0
        until_clock_s = extended_until_clock_s(view, self.me, contact, answers, asked_clock_s)
        self.until_clock_s = max(self.until_clock_s, until_clock_s)
        return agreeing(view, self.me, contact, answers)

    # Files --------------------------------------------------------------------------------------------------------

    def _load(self, now_clock_s: float) -> None:
        kept = self._read(VIEW_FILE, StoredView)
        if kept is not None and kept.cluster_id == self.cluster_id and self.cluster_id:
            self.view, self.key = kept.view, bytes.fromhex(kept.key)
        last = self._read(CONTACT_FILE, StoredContact)
        if last is None or (last.boot_id, last.cluster_id) != (self._boot_id, self.cluster_id) or self.view is None:
            return
        heard_clock_s = min(now_clock_s, last.contact.heard_clock_s)
        incarnation = max(last.contact.incarnation, self.contact.incarnation)
        self.contact = replace(last.contact, incarnation=incarnation, heard_clock_s=heard_clock_s)

    def _read(self, name: str, kind: type[Stored]) -> Stored | None:
        """None if the file is missing or damaged; it is written again."""
        try:
            text = read_text_whole(self._state / name)
            return msgspec.json.decode(text, type=kind) if text is not None else None
        except (RemoteViolation, msgspec.DecodeError):
            return None

    def _write_contact(self, view: View) -> None:
        self._written_clock_s = -math.inf  # until it is written
        heard_clock_s = self.contact.heard_clock_s + min(ROUND_UP_S_MAX, view.window_s * ROUND_UP)
        rounded = replace(self.contact, heard_clock_s=heard_clock_s)
        self._write(CONTACT_FILE, StoredContact(self._boot_id, self.cluster_id, rounded))
        self._written_clock_s = heard_clock_s

    def _write(self, name: str, value: StoredView | StoredContact) -> None:
        write_text_whole(self._state / name, msgspec.json.encode(value).decode())
