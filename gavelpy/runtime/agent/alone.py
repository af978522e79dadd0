"""Asks other agents while the scheduler is silent, so that leases run on; and now and then while it is not, as a test.

The rule and its proof: `gavelpy.runtime.quorum`. What this agent knows: `agent.orphans`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable
from typing import Final

from gavelpy.runtime.agent.orphans import Orphans
from gavelpy.runtime.agent.peers import ask_members
from gavelpy.runtime.lease_files import clock_s

logger = logging.getLogger(__name__)

TICK_S: Final = 0.5
PROBE_S: Final = 60.0
PROBED_MAX: Final = 32  # members, at each probe


class Alone:
    """`has_leases`: whether anything runs that could be extended. `extended` is called after an extension."""

    def __init__(self, orphans: Orphans, has_leases: Callable[[], bool], extended: Callable[[], None]) -> None:
        self._orphans = orphans
        self._has_leases = has_leases
        self._extended = extended
        self._rng = random.Random()
        self._said = ""
        self._probe_clock_s = -math.inf
        self._probed_epoch = 0
        self.unreached = 0  # members that did not answer the last probe

    async def run(self) -> None:
        """Until it is cancelled."""
        ask_clock_s = -math.inf
        while True:
            await asyncio.sleep(min(TICK_S, self._orphans.ask_every_s))
            now_clock_s = clock_s()
            if not self._orphans.is_asking(now_clock_s):
                self._say("")
                await self._probe(now_clock_s)
            elif now_clock_s >= ask_clock_s and self._has_leases():
                ask_clock_s = now_clock_s + self._orphans.ask_every_s
                await self._ask()

    async def _ask(self) -> None:
        orphans = self._orphans
        view, contact, asked_clock_s = orphans.view, orphans.contact, clock_s()
        assert view is not None, "without a view nothing is asked"
        answers = await ask_members(orphans, self._rng, enough=view.majority - 1)
        if contact != orphans.contact:
            return  # the scheduler is back
        before_clock_s = orphans.until_clock_s
        count = orphans.answered(contact, answers, asked_clock_s)
        if orphans.until_clock_s > before_clock_s:
            self._extended()
        is_majority = count >= view.majority
        self._say("leases run on without the scheduler" if is_majority else "leases are not extended", count)

    async def _probe(self, now_clock_s: float) -> None:
        """Whether other agents can be reached shows before it matters."""
        view = self._orphans.view
        if view is None or view.orphan_max_s <= 0 or not view.has(self._orphans.me.node_id, self._orphans.me.state_id):
            self.unreached = 0
            return
        if now_clock_s < self._probe_clock_s + PROBE_S and view.epoch == self._probed_epoch:
            return
        self._probe_clock_s, self._probed_epoch = now_clock_s, view.epoch
        asked = min(PROBED_MAX, len(view.members) - 1)
        answers = await ask_members(self._orphans, self._rng, asked_max=asked)
        unreached = asked - len(answers)
        if unreached != self.unreached:
            level = logging.WARNING if unreached else logging.INFO
            logger.log(level, "other agents that do not answer this one", extra={"agents": unreached, "of": asked})
        self.unreached = unreached

    def _say(self, what: str, count: int = 0) -> None:
        """Once when it changes."""
        view = self._orphans.view
        if what and what != self._said and view is not None:
            extra = {"agree": count, "majority": view.majority, "members": len(view.members)}
            logger.warning(what, extra=extra)
        self._said = what
