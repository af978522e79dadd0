"""The scheduler's part of the quorum rule (`gavelpy.runtime.quorum`): views of the cluster, and when leases on an
unreachable node have ended.

Every view that an agent may hold is stored in the journal's database before it is sent. A node may hold any view from
the one that it reported last to the newest that was sent to it; a node that has sent no message to this scheduler may
hold any stored view. The next write drops the views that no node can hold.

No clock and no I/O: time is an argument, and `keep` writes.
"""

from __future__ import annotations

import math
import secrets
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from gavelpy.errors import JournalCorrupt
from gavelpy.runtime.daemon.config_sections import NodeSettings
from gavelpy.runtime.daemon.nodes.registry import Node
from gavelpy.runtime.quorum import MEMBERS_MAX, Member, View

VIEWS = "views"  # name of the value in the store
KEY_BYTES = 32
SETTLE_S = 1.0  # nodes that come together make one view
UNACKNOWLEDGED_MAX = 256

Keep = Callable[[str, Callable[[], None]], None]


class StoredViews(msgspec.Struct, frozen=True):
    """The value in the store."""

    key: str  # hexadecimal
    views: tuple[View, ...]  # the newest last


@dataclass
class _Known:
    """A node that has sent a message to this scheduler."""

    state_id: str
    held: int = 0  # epoch of its view, as reported last
    sent: int = 0  # newest epoch that was sent to it
    confirmed_s: float = -math.inf  # send time of the newest message that it has acknowledged
    sequences: deque[tuple[int, float]] = field(default_factory=deque)  # number and send time of messages on its stream


def at_once(_: str, done: Callable[[], None]) -> None:
    """Stores views in memory only."""
    done()


class QuorumViews:
    """Views and acknowledgements.

    `began_s`: start of this scheduler. `stored`: the last text that was passed to `keep`, also before a restart.
    """

    def __init__(self, settings: NodeSettings, stored: str = "", began_s: float = 0.0) -> None:
        self.keep: Keep = at_once
        self._settings = settings
        self._began_s = began_s
        found = _read(stored)
        self.key = bytes.fromhex(found.key)
        self.views = list(found.views)
        self._wanted: tuple[Member, ...] = ()
        self._present: frozenset[str] = frozenset()  # nodes that are not lost
        self._wanted_since_s = -math.inf
        self._is_keeping = False
        self._known: dict[str, _Known] = {}
        self._cut_off: dict[str, tuple[float, float]] = {}  # by node: its last message, and since when it is cut off
        self._confirmed: dict[int, tuple[float, list[float]]] = {}  # by epoch: when, and times of members, sorted

    @property
    def newest(self) -> View | None:
        """The view that agents should hold."""
        return self.views[-1] if self.views else None

    # Views --------------------------------------------------------------------------------------------------------

    def members(self, nodes: Iterable[Node], living: Iterable[str]) -> list[Member]:
        """The agents of these living nodes; of one that is not connected yet, as the newest view has it."""
        known = {member.node_id: member for member in self.newest.members} if self.newest is not None else {}
        for node in nodes:
            known.pop(node.node_id, None)
            if node.hello.peer_address:
                known[node.node_id] = Member(
                    node.node_id, node.hello.state_id, node.hello.peer_address, node.hello.probe_port
                )
        return [known[node_id] for node_id in living if node_id in known]

    def update(self, members: Sequence[Member], now_s: float) -> None:
        """Makes a new view when the nodes have differed from those of the newest view for SETTLE_S.

        Views held by nodes that have left do not matter: these nodes were declared lost, and their leases with them.
        """
        self._present = frozenset(member.node_id for member in members)
        wanted = tuple(sorted(members)) if len(members) <= MEMBERS_MAX else ()
        if wanted != self._wanted:
            self._wanted, self._wanted_since_s = wanted, now_s
        newest = self.newest
        settings = self._settings
        view = View(
            epoch=newest.epoch + 1 if newest is not None else 1,
            members=wanted,
            orphan_max_s=settings.orphan_max_s,
            window_s=settings.silent_after_s,
            step_s=settings.lease_overlap_s + settings.silent_after_s,
        )
        is_news = not newest.is_like(view) if newest is not None else bool(wanted) and settings.orphan_max_s > 0
        if not is_news or self._is_keeping or now_s < self._wanted_since_s + SETTLE_S:
            return
        views = [*(old for old in self.views if self._is_possible(old)), view]
        self._is_keeping = True

        def kept() -> None:
            self.views, self._is_keeping = views, False

        self.keep(msgspec.json.encode(StoredViews(self.key.hex(), tuple(views))).decode(), kept)

    def _is_possible(self, view: View) -> bool:
        """Whether a member may still hold this view."""
        present = (member.node_id for member in view.members if member.node_id in self._present)
        return any(self._may_hold(node_id, view.epoch) for node_id in present)

    def _may_hold(self, node_id: str, epoch: int) -> bool:
        known = self._known.get(node_id)
        return known is None or known.held <= epoch <= max(known.held, known.sent)

    # Nodes --------------------------------------------------------------------------------------------------------

    def connected(self, node_id: str, state_id: str) -> None:
        """A node has opened a new stream; its message numbers start at 1."""
        known = self._known.get(node_id)
        if known is None or known.state_id != state_id:
            known = self._known[node_id] = _Known(state_id)
        known.sequences.clear()

    def acknowledged(self, node_id: str, obeyed: int, view_epoch: int) -> None:
        """A node has processed all messages of its stream up to number `obeyed`, and holds this view."""
        known = self._known[node_id]
        known.held = view_epoch
        while known.sequences and known.sequences[0][0] <= obeyed:
            sequence, sent_s = known.sequences.popleft()
            if sequence == obeyed:
                known.confirmed_s = max(known.confirmed_s, sent_s)

    def sending(self, node_id: str, sequence: int, now_s: float) -> View | None:
        """Records that this message is sent now; returns the view to send with it, None if the node has it."""
        known = self._known[node_id]
        known.sequences.append((sequence, now_s))
        if len(known.sequences) > UNACKNOWLEDGED_MAX:
            known.sequences.popleft()
        newest = self.newest
        if newest is None or newest.epoch <= known.held:
            return None
        known.sent = newest.epoch
        return newest

    # Silence ------------------------------------------------------------------------------------------------------

    def runs_until_s(self, node_id: str, promised_s: float, received_s: float, now_s: float) -> float:
        """Until when a lease may run on an unreachable node, without grace and margin.

        `promised_s`: the latest end that was ordered; `received_s`: time of the node's last message, -inf = none.
        """
        views = [view for view in self.views if view.orphan_max_s > 0 and self._may_extend(node_id, view)]
        if not views:
            return promised_s
        contact_s = received_s if received_s > -math.inf else self._began_s
        alone_s = max(promised_s, contact_s) + max(view.orphan_max_s for view in views)
        cut_off_s = self._cut_off_s(node_id, views, received_s, now_s)
        return max(promised_s, min(alone_s, cut_off_s + max(view.step_s for view in views)))

    def _may_extend(self, node_id: str, view: View) -> bool:
        is_member = any(member.node_id == node_id for member in view.members)
        return is_member and self._may_hold(node_id, view.epoch)

    def _cut_off_s(self, node_id: str, views: Sequence[View], received_s: float, now_s: float) -> float:
        """Since when a node cannot have a majority in any of these views; infinite while it may have one."""
        before = self._cut_off.get(node_id)
        if before is not None and before[0] == received_s:
            return before[1]
        margin_s = self._settings.lease_margin_s
        if all(self._refusals(view, received_s + view.window_s + margin_s, now_s) >= view.refusals for view in views):
            self._cut_off[node_id] = received_s, now_s
            return now_s
        return math.inf

    def _refusals(self, view: View, after_s: float, now_s: float) -> int:
        """Number of members that have acknowledged a message which was sent later than this."""
        at_s, times = self._confirmed.get(view.epoch, (math.nan, []))
        if at_s != now_s:
            known = ((member, self._known.get(member.node_id)) for member in view.members)
            times = sorted(k.confirmed_s for member, k in known if k is not None and k.state_id == member.state_id)
            self._confirmed[view.epoch] = now_s, times
        return len(times) - bisect_right(times, after_s)


def _read(stored: str) -> StoredViews:
    if not stored:
        return StoredViews(secrets.token_hex(KEY_BYTES), ())
    try:
        return msgspec.json.decode(stored, type=StoredViews)
    except msgspec.DecodeError as error:
        raise JournalCorrupt(f"views of the cluster in the journal are corrupt: {error}") from None
