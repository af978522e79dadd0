"""The quorum rule: how agents extend leases while the scheduler is away, and the proof that no job runs twice.

The problem. A lease expires when its agent loses contact with the scheduler, so that the scheduler may restart the job
on another node without a report from the unreachable one. If the scheduler's host is down for an hour, that would stop
all jobs of a healthy cluster after a minute. A single agent cannot distinguish a dead scheduler from a network
partition; a majority of agents can.

Terms. A *view* is a numbered list of agents with three durations. The scheduler writes a view to its database before it
sends it to any agent; an agent stores it in its state directory and reports the number of the view it holds. An agent's
*contact* is the last time at which the scheduler is known to have been alive:

    echoed   clock of this agent's own message that the scheduler's newest message answers. The scheduler had received
             that message, so by the scheduler's clock: echoed <= received_s, the time of the node's newest message.
    taken    when this agent took its last message from the scheduler (`heard_clock_s`). taken >= echoed.

The agent's rule. An agent that has taken no message for half of window_s, while it runs leases without a stop order,
sends a request to the members of its view, at its clock time `sent`. A member *agrees* if, by its
authenticated answer, it obeyed no newer scheduler (`incarnation`) and took no message from a scheduler later than
`echoed + window_s`. The answer states an age, which the agent subtracts from the time at which the answer *arrived*:
delays make a contact look later, never earlier. The agent itself agrees on the same condition. If a majority of the
view agrees, the agent's leases may run until

    min(sent + step_s, echoed + orphan_max_s)

and the agent sends another request before that. The term is `sent`, not the time of the answer: a late answer extends
nothing.

The scheduler's rule. Let node j be silent, received_s the time of its last message (minus infinity where this
incarnation received none). A member k of a view *refuses* j once k has acknowledged, on its stream, a message that this
scheduler sent later than received_s + window_s + margin. If the members without j that refuse number at least
n - majority + 1, for every view that j may hold, j is *cut off*; cut_off_s is when the scheduler first saw that. The
scheduler may treat a lease on j as over, with grace and margin, after

    max(promised, cut_off_s + step_s)                                    if j is cut off,
    max(promised, received_s or start of the scheduler) + orphan_max_s   if not,

whichever is earlier, over the worst of the views that j may hold: those from the number it reported last to the newest
that was sent to it, or any stored one if this incarnation has not received a message from it. Until then the job is
not started on another node. `gavel node lost` and `on_node_lost = "fence"` override this by the operator's decision.

Safety. Claim: when the scheduler treats a lease on j as over, the agent j does not extend it any more, and its end has
passed. Let j extend at `sent` with its view v, and let j be cut off in v.
  1. j's majority Q contains j and majority - 1 others. The n - 1 others have no room for these and for
     n - majority + 1 that refuse without an overlap: some k in Q without j refuses j.
  2. k took a message of this incarnation that was sent later than received_s + window_s >= echoed + window_s. From
     then on k's `taken` is later than echoed + window_s, or k's incarnation is newer than the one that j obeyed (where
     received_s is minus infinity: j obeyed an older incarnation, as this one sends nothing to a node it has not
     received a message from). So k agreed before it took that message, hence before cut_off_s.
  3. `sent` is earlier than k's agreement: sent + step_s < cut_off_s + step_s.
If j is not cut off, echoed <= received_s, or, of an older incarnation, j was in contact with that one: then the lease
was last promised until `promised`, and either j's contact or that promise ends it, with orphan_max_s after the later.
`taken` and `incarnation` of an agent never decrease: both are on disk before the message is acknowledged, `taken`
rounded up (`agent.quorum_member`); after a reboot an agent counts its own start as contact. A node with a new state
directory is another member: members are (node_id, state_id). Clocks need to run at about the same rate only: the margin
covers a difference of 7e-4 over an hour.

What is not claimed. If an operator fences a node that is alive, its jobs run twice; lease ids fence their results (only
the newest lease's checkpoints and reports count), not their GPU time or their messages to third parties.
An agent of a gang decides for its own ranks; if one agent of a gang has no majority, its ranks stop, LeaseIterator
stops the others with them, and ranks without LeaseIterator fail or wait until the scheduler is back.

Liveness. One node: it is its own majority, and a restarted scheduler that cannot reach it waits. Two nodes: each needs
the other, and the scheduler needs one of them to cut the other off. Where agents cannot reach each other (a firewall),
nothing is extended. While the scheduler is away no job can be cancelled, drained or started.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MEMBERS_MAX = 10_000  # of a view: with more nodes no lease is extended


@dataclass(frozen=True, order=True)
class Member:
    """An agent of a view. Another state directory makes another member."""

    node_id: str
    state_id: str
    address: str  # HOST:PORT where it answers other agents
    probe_port: int = 0  # UDP, at the same host; 0 = it answers no probes


@dataclass(frozen=True)
class View:
    """Agents that decide together, and how long leases may run without a scheduler."""

    epoch: int  # a newer view has a larger one
    members: tuple[Member, ...]
    orphan_max_s: float  # from the last contact; 0 = no lease is extended
    window_s: float  # by so much may last contacts of agents differ when a scheduler dies
    step_s: float  # one extension

    @property
    def majority(self) -> int:
        """Members that must agree to an extension, the one that extends included."""
        return len(self.members) // 2 + 1

    @property
    def refusals(self) -> int:
        """Other members that must refuse before a member is surely without a majority."""
        return len(self.members) - self.majority + 1

    def has(self, node_id: str, state_id: str) -> bool:
        """Whether this agent is a member."""
        return any(member.node_id == node_id and member.state_id == state_id for member in self.members)

    def is_like(self, other: View) -> bool:
        """Whether they differ by their numbers only."""
        return (self.members, self.orphan_max_s, self.window_s, self.step_s) == (
            other.members, other.orphan_max_s, other.window_s, other.step_s
        )  # fmt: skip


@dataclass(frozen=True)
class Contact:
    """An agent's last contact with its scheduler, by the agent's clock."""

    incarnation: int = 0  # of the scheduler, the newest that was obeyed
    echoed_clock_s: float = -math.inf  # the scheduler was alive at this time, or later
    heard_clock_s: float = -math.inf  # no message of a scheduler was taken later than this


@dataclass(frozen=True)
class MemberAnswer:
    """A member's report of its own contact, with its arrival time."""

    node_id: str
    state_id: str
    incarnation: int
    heard_ago_s: float  # when it wrote the answer
    arrived_clock_s: float  # the receiver's clock


def agrees(answer: MemberAnswer, contact: Contact, window_s: float) -> bool:
    """Whether a member has had no contact with a scheduler since the agent with this contact lost it."""
    if answer.incarnation > contact.incarnation or not answer.heard_ago_s >= 0:
        return False
    return answer.arrived_clock_s - answer.heard_ago_s <= contact.echoed_clock_s + window_s


def agreeing(view: View, me: Member, contact: Contact, answers: Iterable[MemberAnswer]) -> int:
    """Number of members that agree to extend the leases of `me`, including `me`."""
    if contact.heard_clock_s > contact.echoed_clock_s + view.window_s:
        return 0
    in_favour = {(answer.node_id, answer.state_id) for answer in answers if agrees(answer, contact, view.window_s)}
    others = {(member.node_id, member.state_id) for member in view.members} - {(me.node_id, me.state_id)}
    return 1 + len(in_favour & others)


def extended_until_clock_s(
    view: View, me: Member, contact: Contact, answers: Iterable[MemberAnswer], asked_clock_s: float
) -> float:
    """Until when leases of `me` may run, by these answers to its request of `asked_clock_s`; -inf = no majority."""
    if view.orphan_max_s <= 0 or not view.has(me.node_id, me.state_id):
        return -math.inf
    if agreeing(view, me, contact, answers) < view.majority:
        return -math.inf
    return min(asked_clock_s + view.step_s, contact.echoed_clock_s + view.orphan_max_s)
