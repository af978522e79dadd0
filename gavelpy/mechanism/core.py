"""The scheduling core: `handle(event, now_s) -> commands`, and `wakeup_s`, when it needs the next WakeupDue.

Theory of operation. Events change tables and mark what is out of date. All decisions are made at WakeupDue. If the
allocation is out of date, the core requests a new one and waits for it, up to `solve_patience_s`. Then it plans a
round, in which all jobs compete for all GPUs, or, within a round, grants free GPUs to waiting jobs. A shell delivers
all events of an instant before its WakeupDue, so a thousand submissions cause one request.

Time is an argument and never goes back. The core does not depend on the policy, nor on real or simulated time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import assert_never

import numpy as np

from gavelpy.mechanism import (
    accept,
    apps,
    archiving,
    booking,
    class_planning,
    competition,
    early_moves,
    eligibility,
    fills,
    gpu_memory,
    job_orders,
    nodes,
    non_preemptible,
    planning,
    priority_classes,
    reports,
    windows,
)
from gavelpy.mechanism.commands import Command, KillLease, Report, RoundPlan
from gavelpy.mechanism.events import (
    NO_INTS,
    AgentRejoined,
    AllocationFailed,
    AllocationSolved,
    CheckpointSaved,
    ConfigChanged,
    DirectorySeen,
    Event,
    GpuMemoryMeasured,
    IdsReserved,
    JobAnnotated,
    JobCancelled,
    JobsArchived,
    JobsHeld,
    JobsReleased,
    JobsRequeued,
    JobSubmitted,
    LastStepReported,
    LeaseEnded,
    LeaseStarted,
    MetricsReported,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeUnhealthy,
    NodeUnreachable,
    PolicyChanged,
    PriceChanged,
    PriorityChanged,
    ProgressReported,
    ReservationAdded,
    ReservationRemoved,
    SavingDeclared,
    SchedulerRestarted,
    ThroughputEstimated,
    TotalAnnounced,
    TurnMeasured,
    WakeupDue,
)
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.leases import LeaseBook
from gavelpy.mechanism.named_round import is_named
from gavelpy.mechanism.planning import Planner
from gavelpy.mechanism.requests import NONE_OPEN, AllocationRequest, ThroughputRequest
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.taking import NONE_CHOSEN, Chosen
from gavelpy.mechanism.translation import handle_serials
from gavelpy.mechanism.view import CoreView, view_of
from gavelpy.model.arrays import Bools, Ints

NEVER_S = math.inf
Check = Callable[["SchedulerCore", Event], None]
_KEEPS_NOTHING = (JobSubmitted, ProgressReported, ThroughputEstimated, PriceChanged, PolicyChanged, JobAnnotated)


class SchedulerCore:
    """The scheduler's state. Shells call `handle`, and send WakeupDue at `wakeup_s`. `check` validates their events."""

    def __init__(self, settings: MechanismSettings | None = None, check: Check = accept.check) -> None:
        self.settings, self._check = settings or MechanismSettings(), check
        self.pool = GpuPool()
        self.jobs = JobTable(type_count=0)
        self.leases = LeaseBook(self.jobs, self.pool, self.settings)
        self.question, self.throughput = AllocationRequest(), ThroughputRequest()
        self.exempt = non_preemptible.ALL_PREEMPTIBLE  # recomputed after each event
        self.kept: Ints = priority_classes.NONE_KEPT  # the same, by class and type
        self.now_s = self.round_began_s = 0.0
        self.settled_s = self.woken_s = 0.0  # end of the booked owed and received time; the last WakeupDue
        self.incarnation = self.round = 0
        self.round_end_s = NEVER_S  # no round in force
        self.attention_s = NEVER_S  # when a change requires a wakeup
        self.retry_due_s = NEVER_S  # when the next job leaves a pause or may begin
        self.unmet_jobs: list[tuple[int, int]] = []  # cancelled by the last event, and the job before each, or itself
        self.windows: dict[str, windows.Window] = {}  # reservations of nodes, by name
        self.window_due_s = NEVER_S  # the next begin or end of one
        self.awaiting = False  # a plan waits for the policy's answer
        self.type_order: Ints = NO_INTS  # of the WakeupDue that started the wait

    # Interface ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Command]:
        """Applies one event and returns the commands for shells. `now_s` must not go back.

        Raises InvalidInput, and changes nothing, if the event is invalid: see `accept`.
        """
        assert now_s >= self.now_s, f"time went back from {self.now_s} to {now_s}"
        if self.jobs.ids.are_translated:
            return handle_serials(self, event, now_s)
        return self.handle_rows(event, now_s)

    def handle_rows(self, event: Event, now_s: float) -> list[Command]:  # as `handle`, for an event with rows
        self._check(self, event)
        self.now_s, self.unmet_jobs = now_s, []
        commands = self._apply(event, now_s)
        if self.jobs.apps.members and isinstance(event, apps.MOVES):
            commands = [*commands, *apps.advance(self, event.jobs)]
        while self.jobs.ended_blockers or self.jobs.apps.touched:
            job_orders.blockers_ended(self)
            commands = [*commands, *apps.advance(self)]
        if not (isinstance(event, _KEEPS_NOTHING) or self._is_plain):
            windows.keep(self)
        return commands

    def _apply(self, event: Event, now_s: float) -> list[Command]:
        match event:
            case WakeupDue():
                return self._wakeup(event)
            case AllocationSolved() | AllocationFailed():
                return self._answered(event)
            case LeaseStarted() | ProgressReported() | CheckpointSaved() | SavingDeclared() | LastStepReported():
                reports.running(self.jobs, self.pool, event, now_s)
                if self.pool.any_unhealthy and isinstance(event, LeaseStarted):
                    self.question.has_stopped = False  # running jobs on unhealthy nodes do not queue: see `fixed`
            case LeaseEnded():
                return self._lease_ended(event)
            case TotalAnnounced() | GpuMemoryMeasured() | TurnMeasured() | MetricsReported():
                if reports.changes_needs(self.jobs, event, self.settings):
                    gpu_memory.part(self)
                    self.disturb()
            case JobSubmitted() | JobCancelled() | JobsHeld() | JobsReleased() | JobsRequeued() | PriorityChanged():
                return job_orders.apply(self, event)
            case JobsArchived():
                archiving.retire(self, event.nodes)
                archiving.remove(self, event.jobs)
            case ThroughputEstimated():
                if self.throughput.apply(event, self.jobs):
                    self.disturb()
                if self.throughput.may_ask:
                    self.attention_s = now_s
            case NodeJoined() | NodeLost() | NodeUnreachable() | NodeDraining() | NodeUnhealthy() | AgentRejoined():
                return nodes.apply(self, event)
            case DirectorySeen():
                if nodes.directory_seen(self.leases, event):
                    self.disturb()
            case PriceChanged():
                self.pool.price_usd_per_gpu_h[self.pool.gpu_types.index(event.gpu_type)] = event.price_usd_per_gpu_h
                self.disturb()
            case ConfigChanged():
                job_orders.reconfigure(self, event.settings)
            case PolicyChanged():
                self.throughput.want(self.jobs.unmeasured.tolist())  # the new policy may estimate more rates
                self.disturb()
            case ReservationAdded() | ReservationRemoved():
                windows.change(self, event)
            case IdsReserved():
                self.leases.skip(event.jobs, event.leases, now_s)
            case JobAnnotated():
                pass
            case SchedulerRestarted():
                return nodes.restarted(self, event.incarnation)
            case _:
                assert_never(event)
        return []

    @property
    def wakeup_s(self) -> float:
        """When the shell must send the next WakeupDue; infinite if nothing is due before another event."""
        question, due_s = self.question, min(self.window_due_s, self.jobs.apps.next_due_s)
        if self.awaiting:
            return max(self.now_s, min(due_s, question.asked_s + self.settings.solve_patience_s))
        due_s = min(due_s, self.attention_s, self.round_end_s, self.retry_due_s, self.jobs.relax_s)
        may_ask = self.settings.solve_within_round or not self.is_in_round
        if question.open_epoch == NONE_OPEN and may_ask:
            due_s = min(due_s, question.due_s(self.settings.solve_interval_s))
        return max(self.now_s, due_s)

    @property
    def is_in_round(self) -> bool:
        """Whether a round is in force, up to round_end_s."""
        return self.round_end_s < NEVER_S

    def needs_progress(self, now_s: float) -> bool:
        """Whether the decisions of a wakeup at `now_s` depend on progress, so that shells must report it first."""
        is_due = now_s >= self.round_end_s or now_s >= self.jobs.apps.next_due_s
        return is_due or self.question.may_ask(now_s, self.settings.solve_interval_s)

    def runnable(self, rows: Ints) -> Bools:
        """Whether a plan may choose these jobs, (K,): see competition."""
        return competition.runnable(self, rows)

    def view(self) -> CoreView:
        """A read-only view for shells, queries and reports."""
        return view_of(self)

    # Decisions ---------------------------------------------------------------------------------------------------

    def _wakeup(self, event: WakeupDue) -> list[Command]:
        commands = apps.end_waits(self)
        if self.now_s >= self.window_due_s:
            windows.enter(self)
        self.attention_s, self.woken_s, self.jobs.relax_s = NEVER_S, self.now_s, NEVER_S
        if not self._is_plain:
            windows.keep(self)  # time has passed
        if self.now_s >= self.retry_due_s:
            self._retried()
        if self.jobs.any_gated and len(waiting := eligibility.with_unused_share(self.jobs, self.now_s)):
            self.settle()
            non_preemptible.disclaim(self.jobs, waiting)
            self.question.renew()
        self.type_order = event.type_order if not self.awaiting or len(event.type_order) else self.type_order
        round_due = not self.is_in_round or self.now_s >= self.round_end_s
        if round_due:
            self.question.expire(self.now_s, self.settings.solve_at_least_every_s)
        if self.throughput.may_ask:
            commands.append(self.throughput.ask(self.jobs, self.pool))
        may_ask = self.question.may_ask(self.now_s, self.settings.solve_interval_s)
        if may_ask and (round_due or self.settings.solve_within_round):
            self.settle()
            rows = competition.asked(self)
            commands.extend(self.question.ask(self.jobs, self.pool, rows, self.now_s, self.settings, self.exempt))
        patience_ends_s = self.question.asked_s + self.settings.solve_patience_s
        may_wait = self.now_s < patience_ends_s and (self._is_plain or not windows.must_leave(self))
        self.awaiting = self.question.open_epoch != NONE_OPEN and may_wait
        return commands if self.awaiting else [*commands, *self._decide()]

    def _answered(self, event: AllocationSolved | AllocationFailed) -> list[Command]:
        if not self.question.close(event.epoch):
            return []
        commands: list[Command] = []
        if isinstance(event, AllocationSolved):
            self.settle()
            self.question.apply(event, self.jobs, self.settings.rules.forgotten_s(self.settings))
            gpu_memory.part(self)
            if len(self.exempt.jobs):
                non_preemptible.claim(self.jobs, self.exempt.jobs)
            self.settings.rules.allocation_arrived(self.jobs, self.settings)
        else:
            self.question.put_off(self.now_s, self.settings.round_s)
            commands.append(Report("allocation-failed", event.detail))
        self.awaiting = False
        return [*commands, *self._decide()]

    def _decide(self) -> list[Command]:
        if not self.is_in_round or self.now_s >= self.round_end_s:
            return self._plan_round()
        return [*early_moves.plan(self), *fills.plan(self)] if self.settings.fill_within_round else []

    def _plan_round(self) -> list[Command]:
        self.settle()
        jobs, leases, pool, leased = self.jobs, self.leases, self.pool, self.jobs.leased
        rows, exempt, planner = competition.competing(self), self.exempt.jobs, self.planner
        chosen, is_by_urgency = class_planning.round(planner, rows, leases.capacity(planner.fixed))
        staying = may_stay = planner.staying(chosen)
        if len(planner.fixed):
            staying = np.union1d(staying, np.union1d(leases.pinned, non_preemptible.reachable(leases, exempt)))
            may_stay = np.union1d(staying, exempt)
        leaving = leased[~jobs.marks(may_stay)[leased]] if len(may_stay) < len(leased) else leased[:0]
        if not len(chosen.jobs) and not len(leased):
            self.round_end_s = NEVER_S  # no job can run: no round until the next change
            return []
        self.round, self.round_began_s = self.round + 1, self.now_s
        by_type = chosen if pool.shares_checkpoints else chosen._replace(domains=pool.domain_type[chosen.domains])
        self.round_end_s = self.now_s + self.settings.rules.round_length_s(jobs, self.settings, by_type)
        is_plain = is_by_urgency and not self.question.stale and not is_named(self.question.next_round)
        if is_plain and planning.is_settled(jobs, self.settings, by_type, exempt):
            self.round_end_s = self.now_s + planning.settled_length_s(self.settings, self.question.asked_s, self.now_s)
        self.round_end_s = min(self.round_end_s, self.window_due_s)
        grants = chosen.among(~jobs.marks(staying)[chosen.jobs])
        leases.extend(staying, self.round_end_s)
        return [self.granted(grants, staying, leaving, planner)]

    def unsettle(self) -> None:
        """Ends a prolonged round at the next multiple of `round_s`, because something changed."""
        rounds = max(1, math.ceil((self.now_s - self.round_began_s) / self.settings.round_s))
        self.round_end_s = min(self.round_end_s, self.round_began_s + rounds * self.settings.round_s)

    @property
    def planner(self) -> Planner:
        """The inputs of a plan made now."""
        return Planner(
            self.leases, self.settings, self.exempt, self.type_order, self.question.is_answered, self.now_s,
            self.fixed, windows.closing(self) if self.windows else None, self.question.next_round,
        )  # fmt: skip

    def granted(self, grants: Chosen, staying: Ints, leaving: Ints, planner: Planner | None = None) -> RoundPlan:
        """Starts new leases, extends those of `staying` and ends those of `leaving` jobs."""
        own = planner or self.planner
        revoked, *granted = self.leases.apply(grants, leaving, self.now_s, self.round_end_s, own.sets, own.places)
        return RoundPlan(
            self.round, self.incarnation, self.round_end_s, staying, self.jobs.lease[staying], leaving, revoked,
            grants.jobs, *granted,
        )  # fmt: skip

    def revoked(self, rows: Ints) -> RoundPlan:
        """Stops the leases of these jobs in order, within the round."""
        self.settle()
        return self.granted(NONE_CHOSEN, NO_INTS, rows)

    @property
    def fixed(self) -> Ints:
        """Jobs whose leases no plan may end, ascending."""
        return np.union1d(self.leases.pinned, self.exempt.jobs) if self.pool.any_unhealthy else self.exempt.jobs

    # What events change ------------------------------------------------------------------------------------------

    def _lease_ended(self, event: LeaseEnded) -> list[Command]:
        ended = reports.ended(self.jobs, self.leases, event, self.now_s, self.settings)
        if ended.any_paused:
            self.retry_due_s = eligibility.due_s(self.jobs, self.now_s)
        if ended.any_gone or ended.any_paused:
            self.disturb()
        elif ended.any_free or (ended.any_stopped and self.pool.any_unreachable):  # a job may have waited for this
            self._notice()
        self.end_idle_round()
        return [KillLease(job, lease) for job, lease in ended.orphaned]

    @property
    def _is_plain(self) -> bool:
        """Whether no job is exempt from preemption, has a class or a reservation: `windows.keep` changes nothing."""
        settings, jobs, pool = self.settings, self.jobs, self.pool
        exempts = settings.keep_unsaved or settings.finish_grace_s or settings.priorities or jobs.any_refused
        is_set = jobs.booked or pool.is_divided or pool.any_reserved
        return not (exempts or is_set or len(self.exempt.jobs) or len(self.kept))

    def disturb(self) -> None:
        """Marks the allocation in force as out of date, because jobs or GPUs changed."""
        self.question.renew()
        self._notice()

    def _notice(self) -> None:
        """Requests a wakeup now, as GPUs may be idle; with `fill_within_round` off, only outside of a round."""
        if not self.is_in_round or self.settings.fill_within_round:
            self.attention_s = self.now_s
        if self.is_in_round:
            self.unsettle()

    def _retried(self) -> None:
        """Pauses are over, or begins reached: their jobs compete for GPUs."""
        self.retry_due_s = eligibility.due_s(self.jobs, self.now_s)
        self.question.renew()
        if self.is_in_round:
            self.unsettle()

    def end_idle_round(self) -> None:
        """Ends the round if no lease is in force."""
        if self.is_in_round and not self.leases.in_force:
            self.round_end_s = self.attention_s = self.now_s

    def settle(self) -> None:
        if elapsed_s := self.now_s - self.settled_s:  # else there is no time to book
            settings, rules = self.settings, self.settings.rules
            fade, lag_max_s = rules.fade(settings, elapsed_s), rules.lag_max_s(settings)
            booking.settle(self.jobs, elapsed_s, fade, self.now_s, lag_max_s)
            self.settled_s = self.now_s
