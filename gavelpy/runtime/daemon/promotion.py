"""What an operator does with schedulers that stand by: see them, and make one of them the leader."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from gavelpy import __version__
from gavelpy.errors import CallFailed, InvalidInput
from gavelpy.journal.database import SchedulerMember
from gavelpy.journal.leadership import Leadership
from gavelpy.runtime.daemon.config import Config

LOOK_S = 0.1


def members_of(config: Config) -> dict[str, Any]:
    """The leader and the standbys of the journal, as JSON."""
    with closing(_leadership(config)) as leadership:
        leader, standbys = leadership.leader(), leadership.standbys()
    return {
        "leader": leader.address if leader.is_connected else "",
        "incarnation": leader.incarnation,
        "standbys": [
            {"address": one.address, "version": one.version, "follows_to": one.sequence, "seen_s": round(one.seen_s, 1)}
            for one in standbys
        ],
    }


def as_table(found: dict[str, Any]) -> str:
    """A line for each member."""
    leader = found["leader"] or "none is connected"
    lines = [f"leader   {leader}  incarnation {found['incarnation']}"]
    for one in found["standbys"]:
        followed = f"has followed to event {one['follows_to']}" if one["follows_to"] >= 0 else "does not follow"
        lines.append(f"standby  {one['address']}  {followed}, seen {one['seen_s']:g} s ago, version {one['version']}")
    return "\n".join(lines)


def promoted(config: Config, timeout_s: float) -> str:
    """Makes the standby of this configuration the leader; returns what happened.

    Raises InvalidInput if it does not stand by, CallFailed if it does not lead within `timeout_s`.
    """
    with closing(_leadership(config)) as leadership:
        mine = leadership.member.address
        leader = leadership.leader()
        if leader.is_connected and leader.address == mine:
            return f"{mine} leads already, incarnation {leader.incarnation}"
        standbys = [one.address for one in leadership.standbys()]
        if mine not in standbys:
            there = ", ".join(standbys) or "none"
            raise InvalidInput(f"standby.address must be that of a standby, of which there are: {there}; got {mine!r}")
        began_s = time.monotonic()
        if leader.is_connected and not leadership.hand_over(leader.incarnation, mine):
            raise InvalidInput(
                "the scheduler that leads has no standbys: standby.enabled is false in its configuration"
            )
        while time.monotonic() - began_s < timeout_s:
            now = leadership.leader()
            if now.is_connected and now.incarnation > leader.incarnation and now.address:
                took = f"after {time.monotonic() - began_s:.1f} s"
                return f"{now.address} leads {took}, incarnation {now.incarnation}"
            time.sleep(LOOK_S)
    raise CallFailed(f"{mine} does not lead {timeout_s:g} s after the leader was told to hand over; see their logs")


def _leadership(config: Config) -> Leadership:
    if not config.standby.enabled:
        raise InvalidInput("standby.enabled must be true for this command, got false", file=config.path)
    return Leadership(
        config.scheduler.journal_url, SchedulerMember(config.standby.address_of(config.scheduler.listen), __version__)
    )
