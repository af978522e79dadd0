"""What a standby has of the leader's state: a replica that follows the journal, and reads of it with their age.

`fetch` reads new events in the standby's thread; `apply` applies them in the event loop, where reads are answered, so a
read sees the state between two events. The state is as old as the last look at the journal that found no later event.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from typing import NamedTuple

from gavelpy.errors import GavelError, InvalidInput, JournalCorrupt, JournalFailed, JournalInUse, JournalTooNew
from gavelpy.journal.store import EventStore, open_store
from gavelpy.journal.tables import Entry
from gavelpy.mechanism.events import PolicyChanged, SchedulerRestarted
from gavelpy.runtime.daemon.config import Config
from gavelpy.runtime.daemon.engine.forecasts import Forecasts
from gavelpy.runtime.daemon.engine.policy_choice import PolicyChoice
from gavelpy.runtime.daemon.leases.lease import Lease
from gavelpy.runtime.daemon.nodes.registry import NodeRegistry
from gavelpy.runtime.daemon.queries.past import PastQueries
from gavelpy.runtime.daemon.recovery import (
    CLOCK,
    Replica,
    SchedulerClock,
    boot_clock_s,
    boot_id,
    configured_choice,
    started,
)
from gavelpy.runtime.storage import StorageWorkers

logger = logging.getLogger(__name__)
FETCHED_AT_ONCE = 1_000  # events, between two looks at the leader
APPLIED_S = 0.02  # between two yields to the event loop
CHANGES_S = 0.25  # between two looks of a caller that waits for a change
AGAIN_S = 10.0  # after the journal could not be followed


class Freshness(NamedTuple):
    """How current an answer of a standby is."""

    sequence: int  # of the last event of the journal that it includes
    age_s: float  # later events of the journal, if there are any, are not older


class Follower:
    """Follows a journal that another scheduler writes. `fetch`, `check_readable` and `close` are for one thread."""

    def __init__(self, config: Config) -> None:
        self.state: FollowedState | None = None  # for reads
        self.refused = ""  # why only a newer version can take over; empty = this one can
        self._config = config
        self._storage = StorageWorkers()
        self._store: EventStore | None = None
        self._continues = False  # whether the journal's next events continue the replica
        self._again_s = 0.0  # by time.monotonic, as all times here
        self._fetched: list[Entry] = []
        self._looked_s = math.nan  # when the journal had no events but those fetched
        self._as_of_s = math.nan

    @property
    def replica(self) -> Replica | None:
        """With which a takeover can begin; None = the journal must be read as a whole."""
        return self.state.replica if self.state is not None and self._continues else None

    @property
    def sequence(self) -> int:
        """Of the last event applied; -1 = it does not follow."""
        return self.replica.sequence if self.replica is not None else -1

    @property
    def freshness(self) -> Freshness | None:
        """Of an answer that is read now; None = the journal has not been read to its end yet."""
        if self.state is None or math.isnan(self._as_of_s):
            return None
        return Freshness(self.state.replica.sequence, time.monotonic() - self._as_of_s)

    def leads(self, address: str, incarnation: int) -> None:
        """Sets the leader that answers name."""
        if self.state is not None:
            self.state.follows, self.state.incarnation = address, incarnation

    def fetch(self) -> None:
        """Reads some of the events that are new. If that fails, reads are as before, and a later call begins again."""
        if time.monotonic() < self._again_s:
            return
        try:
            store = self._opened()
            looked_s = time.monotonic()
            if self.replica is None:
                self._load(store)
            entries = store.events(self.sequence, FETCHED_AT_ONCE)
            if entries and entries[0][0] > self.sequence + 1:  # those between have left the journal
                self._continues = False
                return
            self._fetched = entries
            self._looked_s = looked_s if len(entries) < FETCHED_AT_ONCE else math.nan
            if any(isinstance(event, SchedulerRestarted) for _, _, event in entries):
                self._read_clock(store)
            self.refused = ""
        except (JournalFailed, JournalInUse, InvalidInput) as error:
            logger.warning("the journal cannot be followed now", extra={"detail": str(error)})
            self._fail(error)
            self._again_s = time.monotonic() + AGAIN_S

    async def apply(self) -> None:
        """Applies the events that were fetched, with yields to the event loop."""
        if self.state is None:
            return
        entries, self._fetched, began_s = self._fetched, [], time.monotonic()
        for entry in entries:
            self.state.replica.follow((entry,))
            if time.monotonic() - began_s > APPLIED_S:
                await asyncio.sleep(0)
                began_s = time.monotonic()
        if not math.isnan(self._looked_s):
            self._as_of_s, self._looked_s = self._looked_s, math.nan

    def check_readable(self) -> None:
        """Reads all events that are new without applying them; raises JournalTooNew if a newer version wrote one."""
        try:
            store = self._opened()
            if self.replica is None:
                self._load(store)
            after = self.sequence
            while entries := store.events(after, FETCHED_AT_ONCE):
                after = entries[-1][0]
        except JournalTooNew as error:
            self._fail(error)
            raise
        except (JournalFailed, JournalCorrupt, JournalInUse) as error:  # the recovery decides
            self._fail(error)
        else:
            self.refused = ""

    def forget(self) -> None:
        """Drops the replica, which may have changed."""
        self._continues = False

    def close(self) -> None:
        """Closes its connection; reads continue."""
        if self._store is not None:
            with suppress(GavelError):
                self._store.close()
        self._store = None

    def end(self) -> None:
        """Closes everything."""
        self.close()
        self._storage.close()

    def _fail(self, error: GavelError) -> None:
        self.refused = str(error) if isinstance(error, JournalTooNew) else ""
        self._continues = self._continues and bool(self.refused)
        self._fetched = []
        self.close()

    def _opened(self) -> EventStore:
        if self._store is None:
            self._store = open_store(self._config.scheduler.journal_url)
        return self._store

    def _load(self, store: EventStore) -> None:
        """A new replica, which no reader sees before it is whole."""
        loaded = store.load()
        replica = Replica.of_snapshot(loaded.state)
        replica.follow(loaded.events)
        replica.sequence = loaded.sequence
        state = FollowedState(self._config, replica, store, self._storage)
        self._fetched, self.state = [], state
        self._read_clock(store)
        self._continues = True

    def _read_clock(self, store: EventStore) -> None:
        assert self.state is not None
        kept, last_s = store.meta(CLOCK), self.state.core.now_s
        self.state.clock = started(kept, last_s, boot=boot_id(), boot_s=boot_clock_s(), date_s=time.time())


class _NoReports:
    """In place of what only the leader has: reports of agents, prices, and notes of the estimator."""

    def __init__(self) -> None:
        self.leases: dict[int, Lease] = {}
        self.shadow_prices: dict[str, float] = {}
        self.resource_prices: dict[tuple[str, str], float] = {}
        self.notes: dict[int, tuple[str, ...]] = {}


class FollowedState:
    """A `SchedulerState` of a standby."""

    def __init__(self, config: Config, replica: Replica, store: EventStore, storage: StorageWorkers) -> None:
        self.config = config
        self.replica = replica
        self.core, self.history = replica.core, replica.history
        self.clock = SchedulerClock(0.0, 0.0, "")
        self.cluster_id = store.cluster_id
        self.incarnation = 0  # of the leader
        self.follows = ""  # address of the leader
        self.nodes = NodeRegistry(boot_id())
        self.storage = storage
        self.past = PastQueries(self, store.reader())
        self.leases = self.engine = self.measuring = _NoReports()
        self.began_s = replica.core.now_s
        self.forecasts = Forecasts()  # its own
        self._policy: PolicyChanged | None = None
        self._choice = configured_choice(config)

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self.config.scheduler.name

    @property
    def snapshot_directory(self) -> str:
        """Where clients put archives of code: they need the leader for that."""
        return ""

    @property
    def version(self) -> int:
        """Grows with the events."""
        return self.replica.sequence

    @property
    def choice(self) -> PolicyChoice:
        """The policy in force; the configured one if that is of a package that is not installed here."""
        kept = self.history.policy
        if kept is not None and kept is not self._policy:
            self._policy = kept
            with suppress(InvalidInput):
                self._choice = PolicyChoice.of(kept.policy, kept.parameters, kept.blind, self.config.throughputs.file)
        return self._choice

    def now_s(self) -> float:
        """The scheduler's time."""
        return max(self.clock.now_s(), self.core.now_s)

    def wall_s(self, now_s: float) -> float:
        """Unix time of a time of the scheduler's clock."""
        return self.clock.wall_s(now_s)

    def job_named(self, owner: str, name: str) -> int:
        """Serial of the owner's newest job of this name; -1 = none."""
        return self.history.newest(owner, name)

    async def wait_changed(self, version: int, timeout_s: float) -> int:
        """Waits until the version changes or the timeout; returns the version."""
        ends_s = time.monotonic() + timeout_s
        while self.version == version and time.monotonic() < ends_s:
            await asyncio.sleep(min(CHANGES_S, timeout_s))
        return self.version
