"""Recovers the scheduler's state from the journal: snapshot, replay, a new incarnation, the clock and the policy.

`gavelpy.journal.repair` checks and repairs the journal before. If the journal has lost events, the cluster id and
used numbers are recovered from the checkpoint directory. Worker processes read it within a time limit, because its
storage may hang.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gavelpy.errors import InvalidInput, JournalCorrupt
from gavelpy.journal.loss_detection import Loss, Numbers
from gavelpy.journal.store import EventStore
from gavelpy.journal.tables import Entry
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import ConfigChanged, Event, IdsReserved, SchedulerRestarted
from gavelpy.mechanism.settings import MechanismSettings, settings_values
from gavelpy.mechanism.snapshot import restore
from gavelpy.runtime.checkpoint_directory import owner_of, used_numbers
from gavelpy.runtime.daemon.config import Config
from gavelpy.runtime.daemon.engine.policy_choice import PolicyChoice
from gavelpy.runtime.daemon.job_history import JobHistory
from gavelpy.runtime.daemon.nodes.quorum_views import VIEWS
from gavelpy.runtime.storage import StorageSilent, StorageWorkers

LIMIT_S: Final = 60.0  # for the directory to answer


@dataclass(frozen=True)
class CheckpointEvidence:
    """Contents of a checkpoint directory that identify a cluster and its jobs."""

    cluster_id: str = ""  # of its owner; empty = none
    numbers: Numbers = field(default_factory=Numbers)  # the first unused ones


def evidence_in(directory: str, limit_s: float = LIMIT_S) -> CheckpointEvidence:
    """Reads a checkpoint directory; empty = there is none. Raises InvalidInput where it cannot be read in time."""
    if not directory:
        return CheckpointEvidence()
    try:
        with ThreadPoolExecutor(1) as thread:  # the caller may run an event loop
            return thread.submit(asyncio.run, _read(directory, limit_s)).result()
    except StorageSilent:
        why = f"does not answer within {limit_s:g} s; start again when it answers"
    except OSError as error:
        why = f"cannot be used: {error}"
    raise InvalidInput(
        f"nodes.checkpoint_directory = {directory!r} must be readable when events of the journal are lost, because it "
        f"shows which numbers were used; it {why}"
    )


async def _read(directory: str, limit_s: float) -> CheckpointEvidence:
    storage = StorageWorkers()
    try:
        async with asyncio.timeout(limit_s):
            cluster_id = await storage.call(owner_of, directory, limit_s=limit_s)
            jobs, leases = await storage.call(used_numbers, directory, limit_s=limit_s)
    except TimeoutError:
        raise StorageSilent(f"storage did not answer within {limit_s:g} s") from None
    finally:
        storage.close()
    return CheckpointEvidence(cluster_id, Numbers(jobs, leases))


logger = logging.getLogger(__name__)
CLOCK, CONFIGURED = "clock", "configured"


@dataclass(frozen=True, eq=False)
class Recovered:
    """The state of the previous scheduler."""

    core: SchedulerCore
    history: JobHistory
    clock: SchedulerClock
    cluster_id: str
    incarnation: int
    choice: PolicyChoice  # in force
    events: tuple[Event, ...]  # to apply first
    sequence: int  # of the journal's last event
    damage: str  # description of unreadable records
    replayed: int  # events after the snapshot
    views: str = ""  # stored views of the cluster


@dataclass(eq=False)
class Replica:
    """The state of a scheduler after an event of the journal, which can follow later events."""

    core: SchedulerCore = field(default_factory=SchedulerCore)
    history: JobHistory = field(default_factory=JobHistory)
    sequence: int = 0  # of the last event applied

    @classmethod
    def of_snapshot(cls, state: dict[str, Any] | None) -> Replica:
        """The state in a snapshot; empty without one. `sequence` is that of the next event that it follows, less 1."""
        if state is None:
            return cls()
        if state.keys() != {"core", "facts"}:
            raise JournalCorrupt("snapshot is not a scheduler's: it must contain core and facts")
        core = restore(state["core"])
        return cls(core, JobHistory.restore(state["facts"], core))

    def follow(self, entries: Iterable[Entry]) -> int:
        """Applies later events, in order; returns their number."""
        count = 0
        for sequence, now_s, event in entries:
            replay(self.core, self.history, event, now_s)
            self.sequence = sequence
            count += 1
        return count

    def may_follow(self, entries: Sequence[Entry], last: int) -> bool:
        """Whether these events, up to `last`, the journal's last one, continue this state without a gap."""
        return self.sequence <= last and (entries[0][0] <= self.sequence + 1 if entries else self.sequence == last)


def recover(
    store: EventStore,
    config: Config,
    *,
    storage_s: float = LIMIT_S,
    replica: Replica | None = None,
    after: int | None = None,
) -> Recovered:
    """Begins an incarnation, the next one after `after` if given, and reads the journal, from where a replica is.

    If events are lost it also reads the checkpoint directory; raises InvalidInput if that takes more than `storage_s`.
    """
    incarnation = store.begin_incarnation(after)
    loaded = store.load()
    if replica is not None and not loaded.damage and loaded.loss is None:
        entries = list(loaded.events)
        if replica.may_follow(entries, loaded.sequence):
            count = replica.follow(entry for entry in entries if entry[0] > replica.sequence)
        else:
            replica = Replica.of_snapshot(loaded.state)
            count = replica.follow(entries)
    else:
        replica = Replica.of_snapshot(loaded.state)
        count = replica.follow(loaded.events)
    core, history = replica.core, replica.history
    evidence = (
        CheckpointEvidence() if loaded.loss is None else evidence_in(config.nodes.checkpoint_directory, storage_s)
    )
    skipped = [] if loaded.loss is None else [numbers_skipped(loaded.loss, core, evidence.numbers)]
    if loaded.damage:
        logger.error("journal was damaged", extra={"detail": loaded.damage})
    clock = started(store.meta(CLOCK), core.now_s, boot=boot_id(), boot_s=boot_clock_s(), date_s=time.time())
    store.set_meta(CLOCK, clock.text)
    cluster_id = _cluster_id(store, evidence)
    store.set_cluster_id(cluster_id)
    choice, events = _configured(store, config, core, history)
    logger.info("journal read", extra={"incarnation": incarnation, "events": count, "jobs": core.jobs.count})
    return Recovered(
        core, history, clock, cluster_id, incarnation, choice, (SchedulerRestarted(incarnation), *skipped, *events),
        loaded.sequence, loaded.damage, count, store.meta(VIEWS),
    )  # fmt: skip


def _cluster_id(store: EventStore, evidence: CheckpointEvidence) -> str:
    """The id of the cluster: from the journal, else from the checkpoint directory, else new.

    With another id, the directory and all nodes would belong to another cluster.
    """
    return store.cluster_id or evidence.cluster_id or secrets.token_hex(8)


def numbers_skipped(loss: Loss, core: SchedulerCore, in_checkpoints: Numbers) -> IdsReserved:
    """An event that continues numbers above all that lost events may have used, by the marks and by checkpoints."""
    given = Numbers(core.jobs.ids.next_serial + loss.margin, core.leases.next_lease + loss.margin).above(loss.numbers)
    given = given.above(in_checkpoints)
    skipped = IdsReserved(given.jobs, given.leases, f"lost with the journal: {loss.span}")
    logger.error(
        "events of the journal are lost, as accepted",
        extra={"detail": loss.summary, "jobs_lost_max": given.jobs - core.jobs.ids.next_serial, "next_job": given.jobs},
    )
    return skipped


def replay(core: SchedulerCore, history: JobHistory, event: Event, now_s: float) -> None:
    """Applies one event of the journal; its commands were executed before and are discarded."""
    try:
        core.handle(event, now_s)
    except InvalidInput:  # it was refused then, too
        return
    history.apply(event, now_s, core)


def configured_choice(config: Config) -> PolicyChoice:
    """The policy of the configuration file."""
    policy = config.policy
    blind = str(policy.blind_view) if policy.blind else ""
    return PolicyChoice.of(policy.name, json.dumps(policy.parameters), blind, config.throughputs.file)


def configured_settings(config: Config, choice: PolicyChoice) -> MechanismSettings:
    """Settings of the mechanism, from the file and the policy's declarations."""
    return config.for_policy(config.mechanism, choice.policy)


def configured_text(config: Config) -> str:
    """Policy and mechanism of the file as text, to detect changes later."""
    choice = asdict(replace(configured_choice(config), throughputs_file=""))
    del choice["throughputs_version"], choice["move_lag_s"]
    return json.dumps([choice, settings_values(config.mechanism)], sort_keys=True)


def _added(before: str, config: Config) -> dict[str, Any] | None:
    """Settings that are new since the version that wrote `before`; None if the file has changed."""
    if not before:
        return None
    (choice, mechanism), (choice_now, mechanism_now) = json.loads(before), json.loads(configured_text(config))
    known = {name: value for name, value in mechanism_now.items() if name in mechanism}
    if choice != choice_now or known != mechanism:
        return None
    return {name: getattr(config.mechanism, name) for name in mechanism_now.keys() - known.keys()}


def _configured(
    store: EventStore, config: Config, core: SchedulerCore, history: JobHistory
) -> tuple[PolicyChoice, list[Event]]:
    """The policy to continue with: the file's if the file has changed, else the policy in force."""
    choice, kept = configured_choice(config), history.policy
    if kept is not None and (added := _added(store.meta(CONFIGURED), config)) is not None:
        now = replace(core.settings, **added)
        now = config.with_round(now, now.round_s) if {"lease_min_s", "move_lag_s"} & added.keys() else now
        try:
            in_force = PolicyChoice.of(kept.policy, kept.parameters, kept.blind, choice.throughputs_file)
            by_policy = {"solve_at_least_every_s", "move_lag_s"} & added.keys()
            now = config.for_policy(now, in_force.policy) if by_policy else now
            return in_force, [ConfigChanged(now)] if now != core.settings else []
        except InvalidInput as error:  # of a package that is no longer installed
            logger.error("the policy in force cannot be used; the configured one is", extra={"detail": str(error)})
    choice.refuse_living(core.jobs)
    settings = configured_settings(config, choice)
    return choice, [choice.event, *([ConfigChanged(settings)] if settings != core.settings else [])]


# The clock ------------------------------------------------------------------------------------------------------------
#
# Seconds since the cluster began, monotonic even if the system date changes. Within one boot of a host it follows the
# boot clock, also across restarts of the scheduler. After a reboot or on another host only the date is available;
# `slack_s` bounds the error. If the date is set, because it was wrong, the dates of all times follow, not the times.

DATE_STEP_S: Final = 5.0  # smaller corrections leave dates as they were reported
DATE_EVERY_S: Final = 10.0  # between two looks at the date
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_clock_s() -> float:
    """Seconds since this host booted, including suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Id of this boot of this host."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


@dataclass(frozen=True)
class SchedulerClock:
    """A fixed offset to the clock of this boot, and the date at time 0."""

    epoch_s: float  # Unix time of time 0
    behind_s: float  # boot clock minus the scheduler's
    boot: str
    slack_s: float = 0.0  # time since the last event, by the date only

    def now_s(self) -> float:
        """The scheduler's time."""
        return boot_clock_s() - self.behind_s

    def wall_s(self, now_s: float) -> float:
        """Unix time of a time of the scheduler's clock."""
        return self.epoch_s + now_s

    def dated(self, now_s: float, date_s: float) -> SchedulerClock:
        """The clock with the dates of a system whose date is `date_s` now; itself unless the date was set."""
        epoch_s = date_s - now_s
        return replace(self, epoch_s=epoch_s) if abs(epoch_s - self.epoch_s) > DATE_STEP_S else self

    @property
    def text(self) -> str:
        """Serialised, for the journal."""
        return json.dumps({"epoch_s": self.epoch_s, "behind_s": self.behind_s, "boot": self.boot})


def started(text: str, last_s: float, *, boot: str, boot_s: float, date_s: float) -> SchedulerClock:
    """The clock of a scheduler that starts.

    `text`: the stored clock of the previous scheduler, "" = none. `last_s`: time of the journal's last event.
    """
    if not text:
        return SchedulerClock(date_s - last_s, boot_s - last_s, boot)
    try:
        kept = json.loads(text)
        epoch_s, behind_s, older = float(kept["epoch_s"]), float(kept["behind_s"]), str(kept["boot"])
    except (LookupError, TypeError, ValueError) as error:
        raise JournalCorrupt(f"the clock stored in the journal is corrupt: {error!r}") from None
    if older == boot and boot_s - behind_s >= last_s:
        return SchedulerClock(epoch_s, behind_s, boot).dated(boot_s - behind_s, date_s)
    now_s = max(last_s, date_s - epoch_s)
    return SchedulerClock(epoch_s, boot_s - now_s, boot, slack_s=now_s - last_s).dated(now_s, date_s)
