"""Reasons: why a job is not running. Every waiting job has exactly one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gavelpy.mechanism import eligibility, node_sets, priority_classes, windows
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.domains import NOT_PINNED, max_gang, pinned_directory
from gavelpy.mechanism.gpus import CLUSTERS, NONE, GpuPool
from gavelpy.mechanism.leases import leases_on
from gavelpy.mechanism.lifecycle import ALIVE, JobState, NodeState
from gavelpy.mechanism.selection import Reserved
from gavelpy.model.arrays import Bools, Ints
from gavelpy.model.job import JobSpec


class ReasonKind(StrEnum):
    """For programs; the text is for people."""

    UNKNOWN_THROUGHPUT = "unknown-throughput"
    RUNS_ON_NO_TYPE = "runs-on-no-type"
    GANG_TOO_LARGE = "gang-too-large"
    NODES_AWAY = "nodes-away"  # there are enough GPUs, but on draining or unreachable nodes
    NODES_TOO_OLD = "nodes-too-old"  # there are enough GPUs, but on nodes with agents that lack what the job needs
    NODES_EXCLUDED = "nodes-excluded"  # there are enough GPUs, but not on the nodes that its owner allows
    CHECKPOINT_AWAY = "checkpoint-away"  # no node that sees the checkpoint is large enough for the job
    BEHIND_UNSAVED = "behind-unsaved"  # jobs that never saved a checkpoint hold the GPUs, and are not preempted
    BEFORE_RESERVATION = "before-reservation"  # it would not end before a reservation of the free nodes begins
    PREEMPTED = "preempted"  # a job of a higher priority class took its GPUs
    BEHIND_CLASS = "behind-class"  # jobs of higher priority classes come first
    KEPT_BY_CLASS = "kept-by-class"  # lower priority classes hold the GPUs, which its class may not preempt
    BEHIND_GANG = "behind-gang"  # free GPUs are reserved for a gang; only jobs that can be preempted may use them
    LEASE_UNCLEAR = "lease-unclear"  # an unreachable node may still run it
    AWAITS_ALLOCATION = "awaits-allocation"
    LEASE_ENDING = "lease-ending"  # it starts when an older lease has ended
    STARTING = "starting"
    BACKING_OFF = "backing-off"  # it failed, and waits before it is retried
    HELD = "held"  # its owner or an admin holds it back
    COMES_AFTER = "comes-after"  # its owner chose jobs that must be over before it starts
    ARRAY_LIMIT = "array-limit"  # as many jobs of its array compete for GPUs as its owner chose
    BEGINS_LATER = "begins-later"  # its owner chose a time before which it does not start
    NO_SHARE = "no-share"
    BEHIND_OTHERS = "behind-others"


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


def cannot_run(core: SchedulerCore, rows: Ints) -> dict[int, str]:
    """Why jobs can run on no node of the cluster, drained and unreachable ones included, by serial.

    A rate that is still unknown may turn out to be positive.
    """
    jobs, pool = core.jobs, core.pool
    if not pool.gpu_types:
        return dict.fromkeys(rows.tolist(), "no node has joined the cluster yet")
    there = max_gang(jobs, pool, rows, pool.usable | _may_come_back(pool))  # (K, T)
    is_usable = jobs.rate[rows] != 0  # (K, T) NaN, unknown, is
    is_stuck = ~(is_usable & (there >= jobs.gpus[rows, None])).any(axis=1)
    return {
        int(rows[k]): _not_allowed(core, int(rows[k]))
        or _why_not_there(core, int(rows[k]), jobs.rate[rows[k]] != 0, pool.usable | _may_come_back(pool))
        or _why_never(pool, jobs.gpus[rows[k]], is_usable[k], there[k])
        for k in np.flatnonzero(is_stuck)
    }


def _not_allowed(core: SchedulerCore, row: int) -> str:
    """That the cluster has none of the GPU types that a job's owner allows; empty = it has one."""
    spec, types = core.jobs.specs[row], core.pool.gpu_types
    if any(spec.may_run_on(name) for name in types):
        return ""
    return f"its constraint allows {_names(list(spec.gpu_types), 'or')}; the cluster has {_names(list(types))}"


def _why_not_there(core: SchedulerCore, row: int, is_usable: Bools, among: Bools) -> str:
    """That other nodes than its owner allows have enough of these GPUs (G,) for a job; empty = it is not so."""
    jobs, pool = core.jobs, core.pool
    spec, gpus = jobs.specs[row], int(jobs.gpus[row])
    lacking = node_sets.nodes_lacking(pool, spec)
    if row not in jobs.limited and not lacking:
        return ""
    allowed = [spec.may_use(node) and row not in lacking for row, node in enumerate(pool.node_ids)]
    may_use = np.array(allowed, dtype=np.bool_)[pool.node_of]
    if not (is_usable & (pool.type_counts(among) >= gpus)).any():
        return ""
    size = "1 GPU" if gpus == 1 else f"{gpus} GPUs of one type"
    most = int(np.max(pool.type_counts(among & may_use)[is_usable], initial=0))
    if most >= gpus:
        return ""
    where = f"{most} there" if most else "none there"
    unknown = [node for node in spec.nodes if node not in pool.node_row]
    tail = f"; {_names(unknown)} {'has' if len(unknown) == 1 else 'have'} not joined" if unknown else ""
    why = "; ".join(filter(None, [f"{chosen_in_words(spec)}{tail}", lacking_in_words(pool, spec)]))
    return f"needs {size}, with {where}: {why}"


def chosen_in_words(spec: JobSpec) -> str:
    """The nodes that the owner of a job chose or excluded, as a clause; empty = neither."""
    parts = [f"runs on {_names(list(spec.nodes), 'or')} only"] if spec.nodes else []
    parts += [f"excluded from {_names(list(spec.exclude))}"] if spec.exclude else []
    return f"{' and '.join(parts)} by its owner" if parts else ""


def lacking_in_words(pool: GpuPool, spec: JobSpec) -> str:
    """The nodes with agents that are too old for a job, as a clause; empty = none."""
    rows = node_sets.nodes_lacking(pool, spec)
    if not rows:
        return ""
    lacks = [name for name in node_sets.features_needed(spec) if name in pool.node_lacks[rows[0]]]
    more = f" ({len(rows) - 1} more nodes lack what it needs)" if len(rows) > 1 else ""
    where = f"node {pool.node_ids[rows[0]]} runs {pool.node_agent[rows[0]] or 'an older agent'}"
    return f"{where}, which has no {_names([f'--{name}' for name in lacks], 'or')}{more}"


def _why_never(pool: GpuPool, gpus: int, is_usable: Bools, there: Ints) -> str:
    if not is_usable.any():
        return f"its throughput is zero on every GPU type of the cluster ({', '.join(pool.gpu_types)})"
    best = int(np.argmax(np.where(is_usable, there, -1)))
    size = "1 GPU" if gpus == 1 else f"{gpus} GPUs of one type"
    return f"it needs {size}; the cluster has at most {there[best]} {pool.gpu_types[best]} that it can use together"


class _Explanation:
    """Values that all waiting jobs (K,) share."""

    def __init__(self, core: SchedulerCore, waiting: Ints) -> None:
        jobs, pool = core.jobs, core.pool
        self.core, self.jobs, self.pool = core, jobs, pool
        is_ranked = priority_classes.is_ranked(core.settings)
        self.most = priority_classes.max_gang_in_class(jobs, pool, core.settings, waiting, core.exempt.open_gpus)
        self.most_usable = max_gang(jobs, pool, waiting) if len(core.exempt.jobs) or is_ranked else self.most
        self.most_open = max_gang(jobs, pool, waiting, core.exempt.open_gpus) if is_ranked else self.most
        can_run = (jobs.rate[waiting] > 0) & (self.most >= jobs.gpus[waiting, None])
        self.is_able = np.asarray(can_run.any(axis=1))  # (K,)
        self.is_eligible = eligibility.is_eligible(jobs, waiting, core.now_s)  # (K,)
        self.is_due = eligibility.is_pause_over(jobs, waiting, core.now_s)  # (K,)
        self.wanted: Bools = jobs.share[waiting] > 0  # (K, T) types with a share
        self.reserved = core.planner.reserved
        self.closing = windows.closing(core)
        self.free_gpus = pool.usable & (pool.job == NONE)  # (G,)
        self.free = pool.domain_counts(self.free_gpus)  # (L,)
        self.in_turn: dict[bytes, Reason] = {}  # by row of `wanted`
        self.ahead: dict[bytes, Reason | None] = {}  # by rank and usable types
        self.leases = np.bincount(jobs.lease_type[jobs.leased], minlength=len(pool.gpu_types))
        self.away = _may_come_back(pool)
        self.most_back = max_gang(jobs, pool, waiting, pool.usable | self.away) if self.away.any() else self.most
        self.unclear = set(leases_on(jobs, pool, pool.unreachable).tolist()) if pool.any_unreachable else set[int]()
        self.ending: Bools = np.zeros(len(pool.job), dtype=np.bool_)  # (G,) a stopping lease may still use it
        first = jobs.stopping_first[: jobs.count]
        self.ending[first[first >= 0]] = True
        for gpus in jobs.stopping_gangs.values():
            self.ending[gpus] = True

    def __call__(self, k: int, row: int) -> Reason:
        reason = self._reason(k, row)
        if reason.kind in _BEHIND and (row in self.jobs.limited or self.pool.any_lacking):
            spec = self.jobs.specs[row]
            clauses = [reason.text, chosen_in_words(spec), lacking_in_words(self.pool, spec)]
            return Reason(reason.kind, "; ".join(filter(None, clauses)))
        return reason

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
        if self.jobs.rank[row] and (reason := self._behind_class(row)):
            return reason
        if self.jobs.solved[row] < 0:
            return Reason(ReasonKind.AWAITS_ALLOCATION, "waits for its first allocation")
        if self.reserved is not None and (reason := self._behind_gang(self.reserved, row)):
            return reason
        if self.closing is not None and (text := windows.in_words(self.core, row, self.closing, self.free_gpus)):
            return Reason(ReasonKind.BEFORE_RESERVATION, text)
        key = self.wanted[k].tobytes()
        if key not in self.in_turn:
            self.in_turn[key] = self._in_turn(np.flatnonzero(self.wanted[k]))
        return self.in_turn[key]

    def _granted(self, row: int) -> Reason:
        older = int(self.jobs.stopping[row])
        if older >= 0:
            return Reason(ReasonKind.LEASE_ENDING, f"has a lease and starts when its older lease {older} has ended")
        if self.ending[self.jobs.gpus_held(row)].any():
            return Reason(ReasonKind.LEASE_ENDING, "has a lease and starts when older leases on its GPUs have ended")
        return Reason(ReasonKind.STARTING, "has a lease and is about to start")

    def _unclear(self, row: int) -> Reason:
        jobs, pool = self.jobs, self.pool
        held = jobs.gpus_stopping(row)
        where = _names([pool.node_ids[node] for node in np.unique(pool.node_of[held[pool.unreachable[held]]])])
        lease = int(jobs.stopping[row])
        text = f"{where} is unreachable and may still run lease {lease}; the job restarts when that is resolved"
        return Reason(ReasonKind.LEASE_UNCLEAR, text)

    def _not_eligible(self, row: int) -> Reason:
        if (hold := int(self.jobs.hold[row])) != eligibility.NOT_HELD:
            return Reason(ReasonKind.HELD, eligibility.hold_in_words(hold))
        if len(others := eligibility.unmet(self.jobs, row)):
            shown = _names([f"{self.jobs.specs[other].id!r} (job {other})" for other in others])
            return Reason(ReasonKind.COMES_AFTER, f"starts after {shown}")
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
            on = "" if len(unknown) == len(rate) else f" of {_names([pool.gpu_types[t] for t in unknown], 'or')}"
            elsewhere = f"the throughput of {job_type!r} on {size}{on} is unknown"
        if not len(usable):
            here = ", ".join(pool.gpu_types) or "none"
            text = f"its throughput is zero on every GPU type of the cluster ({here})"
            nowhere = Reason(
                ReasonKind.RUNS_ON_NO_TYPE, (_not_allowed(self.core, row) if pool.gpu_types else "") or text
            )
            return Reason(ReasonKind.UNKNOWN_THROUGHPUT, elsewhere) if elsewhere else nowhere
        if len(here := usable[self.most_open[k][usable] >= gpus]):
            return self._kept_by_class(row, here)
        if (self.most_usable[k][usable] >= gpus).any():
            return self._behind_unsaved(usable[self.most_usable[k][usable] >= gpus], gpus)
        if text := _why_not_there(self.core, row, rate > 0, pool.usable | self.away):
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
        best = int(usable[np.argmax(most_there[usable])])
        there = f"the maximum is {most_there[best]} {pool.gpu_types[best]}"
        if home == CLUSTERS and (pool.counts[usable] >= gpus).any():
            text = f"needs {size} of one type; on nodes that see its checkpoint {there}"
            return Reason(ReasonKind.CHECKPOINT_AWAY, text)
        tail = f"; {elsewhere}" if elsewhere else ""
        return Reason(ReasonKind.GANG_TOO_LARGE, f"needs {size} of one type; {there}{tail}")

    def _kept_by_class(self, row: int, types: Ints) -> Reason:
        """GPUs of these types would suffice if the job's class might preempt the lower classes that hold them."""
        jobs, pool, settings = self.jobs, self.pool, self.core.settings
        rank = int(jobs.rank[row])
        kept = priority_classes.kept_gpus(jobs, pool, settings, rank) & np.isin(pool.type_of, types)
        holders = np.unique(pool.job[kept])
        names = priority_classes.ranking(settings.priorities).names
        owners = "1 job" if len(holders) == 1 else f"{len(holders)} jobs"
        lower = _names([names[k] for k in np.unique(jobs.rank[holders]).tolist()], "or")
        where = _names([pool.gpu_types[t] for t in types], "or")
        text = f"waits for {jobs.gpus[row]} {where}, held by {owners} of class {lower}"
        return Reason(ReasonKind.KEPT_BY_CLASS, f"{text}, which class {names[rank]} may not preempt")

    def _behind_class(self, row: int) -> Reason | None:
        """The job of a higher class that took its GPUs, or the higher classes with jobs that can use what it can."""
        jobs, settings, taker = self.jobs, self.core.settings, int(self.jobs.taken_by[row])
        if taker >= 0 and jobs.state[taker] <= ALIVE[-1]:
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
        return Reason(ReasonKind.BEHIND_CLASS, f"jobs of {_names(counts)} come before class {names[rank]}")

    def _behind_unsaved(self, types: Ints, gpus: int) -> Reason:
        """GPUs of these types would suffice if jobs that are not preempted did not hold them."""
        jobs, pool, exempt = self.jobs, self.pool, self.core.exempt.jobs
        exempt = exempt[np.isin(jobs.lease_type[exempt], types)]
        owner = "a job that has" if len(exempt) == 1 else f"{len(exempt)} jobs that have"
        tail = "is not preempted" if len(exempt) == 1 else "are not preempted"
        where = _names([pool.gpu_types[t] for t in types], "or")
        text = f"waits for {gpus} {where}, held by {owner} never saved a checkpoint and {tail}"
        return Reason(ReasonKind.BEHIND_UNSAVED, text)

    def _behind_gang(self, reserved: Reserved, row: int) -> Reason | None:
        """Free GPUs would suffice for a job that is not preemptible if they were not reserved; None = it is not so."""
        jobs, pool = self.jobs, self.pool
        if not reserved.barred[row]:
            return None
        sets = self.core.planner.sets
        free = self.free if sets is None else pool.domain_counts(self.free_gpus & sets.of(row))
        fits = (jobs.rate[row, pool.domain_type] > 0) & (free >= jobs.gpus[row])
        domains = np.flatnonzero(fits & (free - reserved.gpus < jobs.gpus[row]) & (reserved.gang != row))
        if not len(domains):
            return None
        gang, gpu_type = int(reserved.gang[domains[0]]), pool.gpu_types[pool.domain_type[domains[0]]]
        held = f"{reserved.gpus[domains[0]]} {gpu_type} are reserved for the gang {jobs.specs[gang].id!r}"
        return Reason(ReasonKind.BEHIND_GANG, f"{held}; a job that is not preemptible cannot use them meanwhile")

    def _away(self, usable: Ints, size: str) -> Reason:
        pool = self.pool
        away = self.away & np.isin(pool.type_of, usable)
        nodes = _names([self._node_name(node) for node in np.unique(pool.node_of[away])])
        return Reason(ReasonKind.NODES_AWAY, f"needs {size}; only enough with those of {nodes}")

    def _in(self, directory: int) -> str:
        """Where a directory is, for people."""
        here = [node for node, where in enumerate(self.pool.node_directory) if where == directory]
        if here:
            return f"on {_names([self._node_name(node) for node in here])}"
        return f"in directory {self.pool.directories[directory]}, which no node sees now"

    def _node_name(self, node: int) -> str:
        pool = self.pool
        name, state = pool.node_ids[node], pool.node_state[node]
        how = "unreachable" if pool.node_unreachable[node] else state.name.lower()
        how = pool.node_reserved[node] or pool.node_unhealthy[node] or how if how == "up" else how
        return name if how == "up" else f"{name} ({how})"

    def _backing_off(self, row: int) -> Reason:
        jobs = self.jobs
        when = f"at {jobs.retry_at_s[row]:g} s"
        return Reason(ReasonKind.BACKING_OFF, eligibility.pause_in_words(int(jobs.misses[row]), when))

    def _in_turn(self, wanted: Ints) -> Reason:
        """Why jobs with shares of these types do not run."""
        core, types = self.core, self.pool.gpu_types
        if not len(wanted):
            return Reason(ReasonKind.NO_SHARE, "the policy gives it no share now; other jobs come first")
        ahead = int(self.leases[wanted].sum())
        holders = "1 job has" if ahead == 1 else f"{ahead} jobs have"
        where = " or ".join(types[t] for t in wanted)
        until = f"until the round ends at {core.round_end_s:g} s" if core.is_in_round else "now"
        text = f"waits for its turn on {where}: {holders} it {until}{self._but_for(wanted)}"
        return Reason(ReasonKind.BEHIND_OTHERS, text)

    def _but_for(self, types: Ints) -> str:
        """Names nodes with GPUs of these types that can start no lease, as the end of a sentence; empty = none."""
        pool = self.pool
        if not pool.any_unhealthy:
            return ""
        here = np.unique(pool.node_of[pool.unhealthy & np.isin(pool.type_of, types)])
        return f"; no job can start on {_names([self._node_name(node) for node in here])}" if len(here) else ""


def _may_come_back(pool: GpuPool) -> Bools:
    """GPUs (G,) that are not usable now, on nodes that can return."""
    away: Bools = pool.present & ~pool.usable
    if away.any():
        is_lost = np.array([state is NodeState.LOST for state in pool.node_state], dtype=np.bool_)
        away = away & ~is_lost[pool.node_of]
    return away


def _names(names: list[str], last: str = "and") -> str:
    """Names in a sentence; many are counted."""
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    return f" {last} ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)
