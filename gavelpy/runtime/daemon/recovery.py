"""From the journal to a scheduler that can go on: snapshot, replay, a new incarnation, the clock and the policy."""

from __future__ import annotations

import json
import logging
import secrets
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from gavelpy.errors import InvalidInput, JournalCorrupt
from gavelpy.journal.loss_detection import Loss, Numbers
from gavelpy.journal.store import EventStore
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import ConfigChanged, Event, IdsReserved, SchedulerRestarted
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.snapshot import restore
from gavelpy.runtime.daemon import clock as clocks
from gavelpy.runtime.daemon.absences import VIEWS
from gavelpy.runtime.daemon.config import Config
from gavelpy.runtime.daemon.facts import Facts
from gavelpy.runtime.daemon.lost_evidence import LIMIT_S, Evidence, evidence_in
from gavelpy.runtime.daemon.policy_choice import PolicyChoice

logger = logging.getLogger(__name__)
CLOCK, CONFIGURED = "clock", "configured"


@dataclass(frozen=True, eq=False)
class Recovered:
    """Where the last scheduler left off."""

    core: SchedulerCore
    facts: Facts
    clock: clocks.SchedulerClock
    cluster_id: str
    incarnation: int
    choice: PolicyChoice  # in force
    events: tuple[Event, ...]  # to begin with
    sequence: int  # of the journal's last event
    damage: str  # what could not be read
    replayed: int  # events after the snapshot
    views: str = ""  # of the cluster, that nodes may hold


def recover(store: EventStore, config: Config, *, storage_s: float = LIMIT_S) -> Recovered:
    """Takes the journal over and reads it.

    Where events are lost it reads the checkpoint directory, too: raises InvalidInput if that takes more than
    `storage_s`.
    """
    incarnation = store.begin_incarnation()
    loaded = store.load()
    core, facts = SchedulerCore(), Facts()
    if loaded.state is not None:
        if loaded.state.keys() != {"core", "facts"}:
            raise JournalCorrupt("snapshot is not a scheduler's: it must hold core and facts")
        core = restore(loaded.state["core"])
        facts = Facts.restore(loaded.state["facts"], core)
    count = 0
    for _, now_s, event in loaded.events:
        replay(core, facts, event, now_s)
        count += 1
    evidence = Evidence() if loaded.loss is None else evidence_in(config.nodes.checkpoint_directory, storage_s)
    skipped = [] if loaded.loss is None else [numbers_skipped(loaded.loss, core, evidence.numbers)]
    if loaded.damage:
        logger.error("journal was damaged", extra={"detail": loaded.damage})
    clock = clocks.started(
        store.meta(CLOCK), core.now_s, boot=clocks.boot_id(), boot_s=clocks.boot_clock_s(), date_s=time.time()
    )
    store.set_meta(CLOCK, clock.text)
    cluster_id = _cluster_id(store, evidence)
    store.set_cluster_id(cluster_id)
    choice, events = _configured(store, config, core, facts)
    logger.info("journal read", extra={"incarnation": incarnation, "events": count, "jobs": core.jobs.count})
    return Recovered(
        core, facts, clock, cluster_id, incarnation, choice, (SchedulerRestarted(incarnation), *skipped, *events),
        loaded.sequence, loaded.damage, count, store.meta(VIEWS),
    )  # fmt: skip


def _cluster_id(store: EventStore, evidence: Evidence) -> str:
    """The id of the cluster, a new one for a new cluster.

    Where it is lost with the journal, as accepted, and missing from the marks, it is that of the checkpoint directory:
    under another id, the directory and every node would belong to another cluster.
    """
    return store.cluster_id or evidence.cluster_id or secrets.token_hex(8)


def numbers_skipped(loss: Loss, core: SchedulerCore, in_checkpoints: Numbers) -> IdsReserved:
    """What makes numbers go on above all that lost events may have given out, by the marks and by checkpoints."""
    given = Numbers(core.jobs.count + loss.margin, core.leases.next_lease + loss.margin).above(loss.numbers)
    given = given.above(in_checkpoints)
    skipped = IdsReserved(given.jobs, given.leases, f"lost with the journal: {loss.span}")
    logger.error(
        "events of the journal are lost, as accepted",
        extra={"detail": loss.summary, "jobs_lost_max": given.jobs - core.jobs.count, "next_job": given.jobs},
    )
    return skipped


def replay(core: SchedulerCore, facts: Facts, event: Event, now_s: float) -> None:
    """One event of the journal; the commands that follow were carried out when it happened."""
    try:
        core.handle(event, now_s)
    except InvalidInput:  # as it was then
        return
    facts.apply(event, now_s, core)


def configured_choice(config: Config) -> PolicyChoice:
    """The policy that the file names."""
    policy = config.policy
    blind = str(policy.blind_view) if policy.blind else ""
    return PolicyChoice.of(policy.name, json.dumps(policy.parameters), blind, config.throughputs.file)


def configured_settings(config: Config, choice: PolicyChoice) -> MechanismSettings:
    """How the mechanism shall work by the file, and by what the policy declares of itself."""
    return config.for_policy(config.mechanism, choice.policy)


def configured_text(config: Config) -> str:
    """What the file says of policy and mechanism, to find out later whether it has changed."""
    choice = asdict(replace(configured_choice(config), throughputs_file=""))
    del choice["throughputs_version"]
    mechanism = {name: value for name, value in asdict(config.mechanism).items() if name != "packing"}  # always off
    return json.dumps([choice, mechanism], sort_keys=True)


def _added(before: str, config: Config) -> dict[str, Any] | None:
    """Settings that an earlier version did not know when it read the file; None where the file says something else."""
    if not before:
        return None
    (choice, mechanism), (choice_now, mechanism_now) = json.loads(before), json.loads(configured_text(config))
    known = {name: value for name, value in mechanism_now.items() if name in mechanism}
    if choice != choice_now or known != mechanism:
        return None
    return {name: getattr(config.mechanism, name) for name in mechanism_now.keys() - known.keys()}


def _configured(
    store: EventStore, config: Config, core: SchedulerCore, facts: Facts
) -> tuple[PolicyChoice, list[Event]]:
    """The policy to go on with. The file counts if it has changed since it was last read; else what is in force."""
    choice, kept = configured_choice(config), facts.policy
    if kept is not None and (added := _added(store.meta(CONFIGURED), config)) is not None:
        now = replace(core.settings, **added)
        now = config.with_round(now, now.round_s) if "lease_min_s" in added else now
        try:
            in_force = PolicyChoice.of(kept.policy, kept.parameters, kept.blind, choice.throughputs_file)
            now = config.for_policy(now, in_force.policy) if "solve_at_least_every_s" in added else now
            return in_force, [ConfigChanged(now)] if now != core.settings else []
        except InvalidInput as error:  # of a package that is no longer installed
            logger.error("the policy in force cannot be used; the configured one is", extra={"detail": str(error)})
    settings = configured_settings(config, choice)
    return choice, [choice.event, *([ConfigChanged(settings)] if settings != core.settings else [])]
