"""Reasons: why a job is not running. Every waiting job has exactly one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from gavelpy.mechanism import competition, eligibility, node_resources, node_sets, priority_classes, sizes, windows
from gavelpy.mechanism.app_table import wait_in_words
from gavelpy.mechanism.consolidation import held_back_in_words
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.domains import NOT_PINNED, max_gang, pinned_directory
from gavelpy.mechanism.feasibility import (
    chosen_in_words,
    ever,
    lacking_in_words,
    listed,
    may_come_back,
    not_allowed,
    why_not_there,
)
from gavelpy.mechanism.gpus import CLUSTERS, NONE
from gavelpy.mechanism.leases import leases_on
from gavelpy.mechanism.lifecycle import LAST_ALIVE, JobState
from gavelpy.mechanism.named_round import is_named, place_in_words
from gavelpy.mechanism.nodes import peers_text
from gavelpy.mechanism.taking import Reserved
from gavelpy.mechanism.team_plan import TeamReasons
from gavelpy.model.arrays import Bools, Ints


class ReasonKind(StrEnum):
    """For programs; the text is for people."""

    UNKNOWN_THROUGHPUT = "unknown-throughput"
    RUNS_ON_NO_TYPE = "runs-on-no-type"
    GANG_TOO_LARGE = "gang-too-large"
    NODES_AWAY = "nodes-away"  # there are enough GPUs, but on draining or unreachable nodes
    NODES_TOO_OLD = "nodes-too-old"  # there are enough GPUs, but on nodes with agents that lack what the job needs
    NODES_EXCLUDED = "nodes-excluded"  # there are enough GPUs, but not on the nodes that its owner allows
    NODES_TOO_SMALL = "nodes-too-small"  # there are enough GPUs, but nodes with too few CPU cores, or too little memory
    AWAITS_RESOURCES = "awaits-resources"  # GPUs are free, but too few CPU cores, or too little memory, on their nodes
    FRAGMENTED = "fragmented"  # GPUs are free, but not close enough together for the gang
    CHECKPOINT_AWAY = "checkpoint-away"  # no node that sees the checkpoint is large enough for the job
    BEHIND_UNSAVED = "behind-unsaved"  # jobs that never saved a checkpoint hold the GPUs, and are not preempted
    AWAITS_RESERVATION = "awaits-reservation"  # it runs within a reservation only, which begins later
    RESERVED = "reserved"  # there are enough GPUs, but on nodes that are reserved for others
    BEFORE_RESERVATION = "before-reservation"  # it would not end before a reservation of the free nodes begins
    PREEMPTED = "preempted"  # a job of a higher priority class took its GPUs
    BEHIND_CLASS = "behind-class"  # jobs of higher priority classes come first
    KEPT_BY_CLASS = "kept-by-class"  # lower priority classes hold the GPUs, which its class may not preempt
    BEHIND_GANG = "behind-gang"  # free GPUs are reserved for a gang; only jobs that can be preempted may use them
    LEASE_UNCLEAR = "lease-unclear"  # an unreachable node may still run it
    AWAITS_ALLOCATION = "awaits-allocation"
    REFUSED = "refused"  # the policy refuses it
    LEASE_ENDING = "lease-ending"  # it starts when an older lease has ended
    STARTING = "starting"
    BACKING_OFF = "backing-off"  # it failed, and waits before it is retried
    HELD = "held"  # its owner or an admin holds it back
    COMES_AFTER = "comes-after"  # its owner chose jobs that must be over before it starts
    ARRAY_LIMIT = "array-limit"  # as many jobs of its array compete for GPUs as its owner chose
    USER_LIMIT = "user-limit"  # other jobs of its owner have all that one user may have at once
    TEAM_QUOTA = "team-quota"  # its team holds, or would hold, more GPUs than its quota
    TEAM_GUARANTEED = "team-guaranteed"  # free GPUs are guaranteed to others, and it could not give them back
    AT_RUNG = "at-rung"  # other jobs of its app have not done as many steps, after which they are compared
    BEGINS_LATER = "begins-later"  # its owner chose a time before which it does not start
    NO_SHARE = "no-share"
    BEHIND_OTHERS = "behind-others"


_NOT_NAMED = "the policy names other jobs for this round"
_BEHIND = (ReasonKind.BEHIND_OTHERS, ReasonKind.BEHIND_UNSAVED, ReasonKind.BEHIND_GANG, ReasonKind.BEFORE_RESERVATION)


@dataclass(frozen=True)
class Reason:
    """Why, as a kind and as a sentence."""

    kind: ReasonKind
    text: str


def reasons(core: SchedulerCore, rows: Ints | None = None) -> dict[int, Reason]:
    """Reasons of all unfinished jobs that do not run, or of those among `rows`, by serial."""
    jobs = core.jobs
    chosen = jobs.active if rows is None else np.unique(rows)
    waiting = chosen[jobs.state[chosen] < JobState.RUNNING]
    explain = _Explanation(core, waiting)
    return {row: explain(k, row) for k, row in enumerate(waiting.tolist())}


class _Explanation:
    """Values that all waiting jobs (K,) share."""

    def __init__(self, core: SchedulerCore, waiting: Ints) -> None:
        jobs, pool = core.jobs, core.pool
        self.core, self.jobs, self.pool = core, jobs, pool
        is_ranked = priority_classes.is_ranked(core.settings)
        self.most = priority_classes.max_gang_in_class(jobs, pool, core.settings, waiting, core.exempt.open_gpus)
        self.most_usable = max_gang(jobs, pool, waiting) if len(core.exempt.jobs) or is_ranked else self.most
        self.most_open = max_gang(jobs, pool, waiting, core.exempt.open_gpus) if is_ranked else self.most
        self.can_run: Bools = sizes.fits(jobs, waiting, self.most)  # (K, T)
        self.is_able = np.asarray(self.can_run.any(axis=1))  # (K,)
        self.is_eligible = eligibility.is_eligible(jobs, waiting, core.now_s)  # (K,)
        self.is_due = eligibility.is_pause_over(jobs, waiting, core.now_s)  # (K,)
        self.beyond: Bools = self.is_able & self.is_eligible & self.is_due
        if core.settings.limits_users:
            self.beyond &= ~core.runnable(waiting)
        else:
            self.beyond[:] = False
        self.wanted: Bools = jobs.share[waiting] > 0  # (K, T) types with a share
        self.planner = core.planner
        self.reserved: dict[int, Reserved | None] = {}  # by part of the cluster
        self.closing = windows.closing(core)
        self.free_gpus = pool.usable & (pool.job == NONE)  # (G,)
        self.free = pool.domain_counts(self.free_gpus)  # (L,)
        self.in_turn: dict[bytes, Reason] = {}  # by row of `wanted`
        self.ahead: dict[bytes, Reason | None] = {}  # by rank and usable types
        self.leases = np.bincount(jobs.lease_type[jobs.leased], minlength=len(pool.gpu_types))
        self.away = may_come_back(pool)
        self.most_back = max_gang(jobs, pool, waiting, pool.usable | self.away) if self.away.any() else self.most
        self.unclear = set(leases_on(jobs, pool, pool.unreachable).tolist()) if pool.any_unreachable else set[int]()
        self.ending: Bools = np.zeros(len(pool.job), dtype=np.bool_)  # (G,) a stopping lease may still use it
        first = jobs.stopping_first[: jobs.count]
        self.ending[first[first >= 0]] = True
        for gpus in jobs.stopping_gangs.values():
            self.ending[gpus] = True

    def __call__(self, k: int, row: int) -> Reason:
        reason = self._reason(k, row)
        if reason.kind not in _BEHIND:
            return reason
        spec, needs = self.jobs.specs[row], self.pool.any_lacking and row in self.jobs.featured
        clauses = (
            [chosen_in_words(spec), lacking_in_words(self.pool, spec)] if needs or row in self.jobs.limited else []
        )
        if self.pool.is_divided and self.jobs.part[row] == windows.OUTSIDE:
            runs = self.jobs.rate[row, self.pool.type_of] > 0
            clauses.append(windows.division_in_words(self.core, runs & ever(self.core, row)))
        return Reason(reason.kind, "; ".join(filter(None, [reason.text, *clauses])))

    def _reason(self, k: int, row: int) -> Reason:
        if self.jobs.state[row] == JobState.GRANTED:
            return self._granted(row)
        if row in self.unclear:
            return self._unclear(row)
        if not self.is_eligible[k]:
            return self._not_eligible(row)
        if not self.is_able[k]:
            return self._unable(k, row)
        if not self.is_due[k]:
            return self._backing_off(row)
        if self.core.settings.limits_teams and (reason := self._limited(k, row)):
            return reason
        if self.beyond[k]:
            return Reason(ReasonKind.USER_LIMIT, competition.limit_in_words(self.jobs, row, self.core.settings))
        if self.jobs.rank[row] and (reason := self._behind_class(row)):
            return reason
        if self.jobs.solved[row] < 0 and not competition.was_behind(self.core, row):
            return Reason(ReasonKind.AWAITS_ALLOCATION, "waits for its first allocation")
        names_round = is_named(self.core.question.next_round)
        if row in self.core.question.refused and (names_round or not self.wanted[k].any()):
            return Reason(ReasonKind.REFUSED, f"the policy refuses it: {self.core.question.refused[row]}")
        part = int(self.jobs.part[row])
        if part not in self.reserved:
            self.reserved[part] = self.planner.of_part(part).reserved
        if (reserved := self.reserved[part]) is not None and (reason := self._behind_gang(reserved, row)):
            return reason
        if self.closing is not None and (text := windows.in_words(self.core, row, self.closing, self.free_gpus)):
            return Reason(ReasonKind.BEFORE_RESERVATION, text)
        if text := self._no_room(row):
            return Reason(ReasonKind.AWAITS_RESOURCES, text)
        if text := held_back_in_words(self.core, row):
            return Reason(ReasonKind.FRAGMENTED, text)
        if names_round:
            text = place_in_words(self.core, row)
            return Reason(ReasonKind.BEHIND_OTHERS if text else ReasonKind.NO_SHARE, text or _NOT_NAMED)
        key = self.wanted[k].tobytes()
        if key not in self.in_turn:
            self.in_turn[key] = self._in_turn(np.flatnonzero(self.wanted[k]))
        return self.in_turn[key]

    def _limited(self, k: int, row: int) -> Reason | None:
        """What the quotas of its teams, or GPUs guaranteed to others, keep from a job."""
        if text := self.teams.quota(row, self.can_run[k]):
            return Reason(ReasonKind.TEAM_QUOTA, text)
        text = self.teams.guaranteed(row, self.can_run[k])
        return Reason(ReasonKind.TEAM_GUARANTEED, text) if text else None

    @cached_property
    def teams(self) -> TeamReasons:
        """What teams hold and what is left of their limits."""
        return TeamReasons(self.jobs, self.pool, self.core.settings)

    def _granted(self, row: int) -> Reason:
        older = int(self.jobs.stopping[row])
        if older >= 0:
            return Reason(ReasonKind.LEASE_ENDING, f"has a lease and starts when its older lease {older} has ended")
        if self.ending[self.jobs.gpus_held(row)].any():
            return Reason(ReasonKind.LEASE_ENDING, "has a lease and starts when older leases on its GPUs have ended")
        return Reason(ReasonKind.STARTING, "has a lease and is about to start")

    def _unclear(self, row: int) -> Reason:
        jobs, pool, held = self.jobs, self.pool, self.jobs.gpus_stopping(row)
        nodes = np.unique(pool.node_of[held[pool.unreachable[held]]]).tolist()
        where, lease = listed([pool.node_ids[node] for node in nodes]), int(jobs.stopping[row])
        found = "" if len(nodes) > 1 else peers_text(*pool.node_peers[nodes[0]])
        away = f"is unreachable ({found}) and" if found else "is unreachable and"
        text = f"{where} {away} may still run lease {lease}; the job restarts when that is resolved"
        return Reason(ReasonKind.LEASE_UNCLEAR, text)

    def _not_eligible(self, row: int) -> Reason:
        own = windows.own_in_words(self.core, row)
        if (hold := int(self.jobs.hold[row])) != eligibility.NOT_HELD:
            is_over = own and windows.own(self.core, row) is None
            return Reason(ReasonKind.HELD, own if is_over else eligibility.hold_in_words(hold))
        if len(others := eligibility.unmet(self.jobs, row)):
            shown = listed([f"{self.jobs.specs[other].id!r} (job {self.jobs.ids.serial(other)})" for other in others])
            return Reason(ReasonKind.COMES_AFTER, f"starts after {shown}")
        if row in self.jobs.apps.at_rung:
            return Reason(ReasonKind.AT_RUNG, wait_in_words(self.jobs, row))
        if own:
            return Reason(ReasonKind.AWAITS_RESERVATION, own)
        if self.jobs.begin_at_s[row] <= self.core.now_s:
            limit, first = int(self.jobs.array_limit[row]), int(self.jobs.array[row])
            text = f"array limit {limit}: as many jobs of the array that begins with job {first} come first"
            return Reason(ReasonKind.ARRAY_LIMIT, text)
        return Reason(ReasonKind.BEGINS_LATER, eligibility.begin_in_words(f"at {self.jobs.begin_at_s[row]:g} s"))

    def _unable(self, k: int, row: int) -> Reason:
        """Why a job cannot run on the GPUs there are."""
        jobs, pool = self.jobs, self.pool
        rate, gpus, most_there = jobs.rate[row], int(jobs.gpus[row]), self.most[k]
        size = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        usable, unknown = np.flatnonzero(rate > 0), np.flatnonzero(np.isnan(rate))
        job_type, elsewhere = jobs.specs[row].job_type, ""
        if len(unknown):
            on = "" if len(unknown) == len(rate) else f" of {listed([pool.gpu_types[t] for t in unknown], 'or')}"
            elsewhere = f"the throughput of {job_type!r} on {size}{on} is unknown"
        if not len(usable):
            here = ", ".join(pool.gpu_types) or "none"
            text = f"its throughput is zero on every GPU type of the cluster ({here})"
            text = elsewhere or (not_allowed(self.core, row) if pool.gpu_types else "") or text
            return Reason(ReasonKind.UNKNOWN_THROUGHPUT if elsewhere else ReasonKind.RUNS_ON_NO_TYPE, text)
        if len(here := usable[self.most_open[k][usable] >= gpus]):
            return self._kept_by_class(row, here)
        if (self.most_usable[k][usable] >= gpus).any():
            if text := self._no_room(row):
                return Reason(ReasonKind.AWAITS_RESOURCES, text)
            return self._behind_unsaved(usable[self.most_usable[k][usable] >= gpus], gpus)
        if text := self._reserved(row, rate > 0, size):
            return Reason(ReasonKind.RESERVED, text)
        if text := why_not_there(self.core, row, rate > 0, pool.usable | self.away):
            is_old = bool(node_sets.nodes_lacking(pool, jobs.specs[row]))
            return Reason(ReasonKind.NODES_TOO_OLD if is_old else ReasonKind.NODES_EXCLUDED, text)
        home = NOT_PINNED if pool.shares_checkpoints else int(pinned_directory(jobs, np.array([row]))[0])
        if home > CLUSTERS and (older := int(jobs.stopping[row])) >= 0:
            node = int(pool.node_of[jobs.stopping_first[row]])
            text = f"lease {older} is ending on {self._node_name(node)}, where what it saves will be"
            return Reason(ReasonKind.LEASE_ENDING, text)
        if home > CLUSTERS:
            return Reason(ReasonKind.CHECKPOINT_AWAY, f"its checkpoint is only {self._in(home)}")
        if (self.most_back[k][usable] >= gpus).any():
            return self._away(usable, size)
        if text := node_resources.why_too_small(jobs, pool, row, pool.usable | self.away):
            return Reason(ReasonKind.NODES_TOO_SMALL, text)
        best = int(usable[np.argmax(most_there[usable])])
        there = f"the maximum is {most_there[best]} {pool.gpu_types[best]}"
        if home == CLUSTERS and (pool.counts[usable] >= gpus).any():
            text = f"needs {size} of one type; on nodes that see its checkpoint {there}"
            return Reason(ReasonKind.CHECKPOINT_AWAY, text)
        tail = f"; {elsewhere}" if elsewhere else ""
        return Reason(ReasonKind.GANG_TOO_LARGE, f"needs {size} of one type; {there}{tail}")

    def _no_room(self, row: int) -> str:
        """That free GPUs suffice for a job, but not the CPU cores or memory of their nodes; empty = it is not so."""
        if row not in self.jobs.needs:
            return ""
        return node_resources.why_no_room(self.jobs, self.pool, row, self.free_gpus & ever(self.core, row))

    def _kept_by_class(self, row: int, types: Ints) -> Reason:
        """GPUs of these types would suffice if the job's class might preempt the lower classes that hold them."""
        jobs, pool, settings = self.jobs, self.pool, self.core.settings
        rank = int(jobs.rank[row])
        kept = priority_classes.kept_gpus(jobs, pool, settings, rank) & np.isin(pool.type_of, types)
        holders = np.unique(pool.job[kept])
        names = priority_classes.ranking(settings.priorities).names
        owners = "1 job" if len(holders) == 1 else f"{len(holders)} jobs"
        lower = listed([names[k] for k in np.unique(jobs.rank[holders]).tolist()], "or")
        where = listed([pool.gpu_types[t] for t in types], "or")
        text = f"waits for {jobs.gpus[row]} {where}, held by {owners} of class {lower}"
        return Reason(ReasonKind.KEPT_BY_CLASS, f"{text}, which class {names[rank]} may not preempt")

    def _behind_class(self, row: int) -> Reason | None:
        """The job of a higher class that took its GPUs, or the higher classes with jobs that can use what it can."""
        jobs, settings, taker = self.jobs, self.core.settings, int(self.jobs.taken_by[row])
        if taker >= 0 and jobs.state[taker] <= LAST_ALIVE:
            by = priority_classes.in_words(jobs, settings, taker)
            return Reason(ReasonKind.PREEMPTED, f"preempted by {by}; waits until GPUs are left for its class")
        usable = jobs.rate[row] > 0
        key = bytes([jobs.rank[row]]) + usable.tobytes()
        if key not in self.ahead:
            self.ahead[key] = self._classes_ahead(int(jobs.rank[row]), usable)
        return self.ahead[key]

    def _classes_ahead(self, rank: int, usable: Bools) -> Reason | None:
        """The classes above this one with jobs that run or wait on these types (T,); None without any."""
        jobs, names = self.jobs, priority_classes.ranking(self.core.settings.priorities).names
        ahead = jobs.active[jobs.rank[jobs.active] < rank]
        ahead = ahead[(jobs.rate[ahead][:, usable] > 0).any(axis=1)]
        ahead = ahead[(jobs.lease[ahead] >= 0) | eligibility.is_eligible(jobs, ahead, self.core.now_s)]
        if not len(ahead):
            return None
        counts = []
        for higher in np.unique(jobs.rank[ahead]).tolist():
            here = ahead[jobs.rank[ahead] == higher]
            running = int((jobs.lease[here] >= 0).sum())
            counts.append(f"class {names[higher]} ({running} with GPUs, {len(here) - running} waiting)")
        return Reason(ReasonKind.BEHIND_CLASS, f"jobs of {listed(counts)} come before class {names[rank]}")

    def _behind_unsaved(self, types: Ints, gpus: int) -> Reason:
        """GPUs of these types would suffice if jobs that are not preempted did not hold them."""
        jobs, pool, exempt = self.jobs, self.pool, self.core.exempt.jobs
        exempt = exempt[np.isin(jobs.lease_type[exempt], types)]
        owner = "a job that has" if len(exempt) == 1 else f"{len(exempt)} jobs that have"
        tail = "is not preempted" if len(exempt) == 1 else "are not preempted"
        where = listed([pool.gpu_types[t] for t in types], "or")
        text = f"waits for {gpus} {where}, held by {owner} never saved a checkpoint and {tail}"
        return Reason(ReasonKind.BEHIND_UNSAVED, text)

    def _behind_gang(self, reserved: Reserved, row: int) -> Reason | None:
        """Free GPUs would suffice for a job that is not preemptible if they were not reserved; None = it is not so."""
        jobs, pool = self.jobs, self.pool
        if not reserved.barred[row]:
            return None
        sets = self.planner.sets
        free = self.free if sets is None else pool.domain_counts(self.free_gpus & sets.of(row))
        fits = (jobs.rate[row, pool.domain_type] > 0) & (free >= jobs.gpus[row])
        domains = np.flatnonzero(fits & (free - reserved.gpus < jobs.gpus[row]) & (reserved.gang != row))
        if not len(domains):
            return None
        gang, gpu_type = int(reserved.gang[domains[0]]), pool.gpu_types[pool.domain_type[domains[0]]]
        held = f"{reserved.gpus[domains[0]]} {gpu_type} are reserved for the gang {jobs.specs[gang].id!r}"
        return Reason(ReasonKind.BEHIND_GANG, f"{held}; a job that is not preemptible cannot use them meanwhile")

    def _reserved(self, row: int, runs: Bools, size: str) -> str:
        """That nodes which are reserved for others have enough GPUs for a job; empty = it is not so."""
        core, pool = self.core, self.pool
        if not pool.is_divided or self.jobs.part[row] != windows.OUTSIDE:
            return ""
        gpus = (pool.usable | self.away) & ever(core, row)
        if not (runs & (pool.type_counts(gpus) >= self.jobs.gpus[row])).any():
            return ""
        return f"needs {size}; {windows.division_in_words(core, gpus & runs[pool.type_of])}"

    def _away(self, usable: Ints, size: str) -> Reason:
        pool = self.pool
        away = self.away & np.isin(pool.type_of, usable)
        nodes = listed([self._node_name(node) for node in np.unique(pool.node_of[away])])
        return Reason(ReasonKind.NODES_AWAY, f"needs {size}; only enough with those of {nodes}")

    def _in(self, directory: int) -> str:
        """Where a directory is, for people."""
        here = [node for node, where in enumerate(self.pool.node_directory) if where == directory]
        if here:
            return f"on {listed([self._node_name(node) for node in here])}"
        return f"in directory {self.pool.directories[directory]}, which no node sees now"

    def _node_name(self, node: int) -> str:
        pool = self.pool
        name, state = pool.node_ids[node], pool.node_state[node]
        how = "unreachable" if pool.node_unreachable[node] else state.name.lower()
        how = pool.node_reserved[node] or pool.node_unhealthy[node] or how if how == "up" else how
        return name if how == "up" else f"{name} ({how})"

    def _backing_off(self, row: int) -> Reason:
        when = f"at {self.jobs.retry_at_s[row]:g} s"
        return Reason(ReasonKind.BACKING_OFF, eligibility.pause_in_words(int(self.jobs.misses[row]), when))

    def _in_turn(self, wanted: Ints) -> Reason:
        """Why jobs with shares of these types do not run."""
        core, types = self.core, self.pool.gpu_types
        if not len(wanted):
            return Reason(ReasonKind.NO_SHARE, "the policy gives it no share now; other jobs come first")
        ahead, where = int(self.leases[wanted].sum()), " or ".join(types[t] for t in wanted)
        holders = "1 job has" if ahead == 1 else f"{ahead} jobs have"
        until = f"until the round ends at {core.round_end_s:g} s" if core.is_in_round else "now"
        text = f"waits for its turn on {where}: {holders} it {until}{self._but_for(wanted)}"
        return Reason(ReasonKind.BEHIND_OTHERS, text)

    def _but_for(self, types: Ints) -> str:
        """Names nodes with GPUs of these types that can start no lease, as the end of a sentence; empty = none."""
        pool = self.pool
        if not pool.any_unhealthy:
            return ""
        here = np.unique(pool.node_of[pool.unhealthy & np.isin(pool.type_of, types)])
        return f"; no job can start on {listed([self._node_name(node) for node in here])}" if len(here) else ""
