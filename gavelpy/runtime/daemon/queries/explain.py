"""Explanation of one job: shares owed and received, forecast, history and checkpoint; forecasts for dry runs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism import gpu_memory
from gavelpy.mechanism.competition import check_sizes
from gavelpy.mechanism.consolidation import place_notes
from gavelpy.mechanism.eligibility import NOT_HELD
from gavelpy.mechanism.jobs import OPEN
from gavelpy.mechanism.lifecycle import ALIVE, JobState, Resumes
from gavelpy.mechanism.non_preemptible import NEVER_SAVED
from gavelpy.mechanism.priority_classes import check_known
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.teams import of_team
from gavelpy.mechanism.view import account, size_accounts
from gavelpy.mechanism.windows import check_reservations
from gavelpy.model.completion_value import rows_of, values_at
from gavelpy.model.job import JobId, JobSpec
from gavelpy.policies.refusals import requests_of, unused_requests
from gavelpy.runtime.checkpoint_directory import newest
from gavelpy.runtime.daemon.engine.forecast import Forecaster, Outlook, Outlooks
from gavelpy.runtime.daemon.engine.forecasts import Times
from gavelpy.runtime.daemon.job_history import full_id, name_of
from gavelpy.runtime.daemon.leases.lease import measured_rates
from gavelpy.runtime.daemon.queries.dry_runs import PlannedJob, forecast_of
from gavelpy.runtime.daemon.queries.job_status import JobStatus
from gavelpy.runtime.daemon.queries.jobs import JobQueries, as_described
from gavelpy.runtime.daemon.queries.teams import team_notes
from gavelpy.runtime.lease_files import lease_checkpoints, step_name
from gavelpy.simulator.expected import Expected

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.queries.state import SchedulerState

_UNKNOWN_S = -1.0
HELD = "the job is held, and starts only after its release"
_LOOK_S = 2.0
ASSUMED_RESTART_S = 5.0  # as forecasts assume
_FORECASTS_MAX = 100  # of the jobs of one dry run


@dataclass(frozen=True)
class GpuTypeAccount:
    """What a job is owed and has received on one GPU type. `price`: shadow price of the type, NaN = unknown."""

    gpu_type: str
    rate_steps_per_s: float
    share: float
    owed_s: float
    received_s: float
    price: float


@dataclass(frozen=True)
class SizeAccount:
    """The same of one of the numbers of GPUs on which a job can run, on one GPU type."""

    gpus: int
    gpu_type: str
    rate_steps_per_s: float
    share: float
    owed_s: float
    received_s: float


@dataclass(frozen=True)
class JobExplanation:
    """One job in detail. Times count from now; -1 = unknown."""

    job: JobStatus
    description: JobSpec
    accounts: Sequence[GpuTypeAccount]
    sizes: Sequence[SizeAccount]  # of several sizes, where the job can run; empty = it has one
    start_in_s: float
    finish_in_s: float
    start_low_s: float  # of the interval in which the start is in 80 % of all cases; -1 = unknown
    start_high_s: float  # -1 = without an upper end
    finish_low_s: float
    finish_high_s: float
    forecast: str  # how the two times were computed; empty = the job is over
    history: Sequence[str]
    checkpoint: str  # directory that the job would resume from; empty = from scratch, or unknown
    notes: Sequence[str]  # of the estimator, and on limits of its teams
    preemption_gpu_s: float  # GPU time that preempting it now would cost; -1 = unknown, or it does not run
    preemption_cost: str  # the same as a sentence; empty = it does not run


@dataclass(frozen=True)
class PreemptionCost:
    """GPU time lost by preempting a job now, and the same as a sentence with its evidence."""

    gpu_s: float
    text: str


def preemption_cost(
    *,
    gpus: int,
    rate_steps_per_s: float,
    steps_done: float,
    steps_saved: float,
    saves_when_stopped: bool,
    restart_s: float,
    known_restart_s: float = 0.0,
) -> PreemptionCost | None:
    """The cost of a preemption: steps that are repeated, times the time of a step, plus the restart, times the GPUs.

    A program that saves when its lease ends repeats no steps. `restart_s`: time from the start of this lease to its
    first progress; NaN = none was reported, and that of earlier leases or the forecast's assumption applies. None if
    the rate is unknown.
    """
    steps = 0.0 if saves_when_stopped else max(steps_done - steps_saved, 0.0)
    if steps and not rate_steps_per_s > 0:
        return None
    is_measured = math.isfinite(restart_s)
    again_s = restart_s if is_measured else known_restart_s or ASSUMED_RESTART_S
    gpu_s = gpus * ((steps / rate_steps_per_s if steps else 0.0) + again_s)
    gpu = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    repeated = "its program saves first"
    if not saves_when_stopped:
        since = "its last checkpoint" if steps_saved else "its start"
        repeated = f"{steps:.0f} steps since {since}, at {rate_steps_per_s:.3g} steps/s"
    how = "as measured for this lease" if is_measured else "as measured before" if known_restart_s else "assumed"
    restart = f"restart {again_s:.0f} s, {how}"
    lost = in_time(gpu_s / gpus)
    return PreemptionCost(gpu_s, f"preempting it now would lose about {lost} of {gpu} ({repeated}; {restart})")


def in_time(seconds: float) -> str:
    """`45 s`, `4 min`, `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


class Explainer:
    """Reads jobs from a scheduler and requests forecasts."""

    def __init__(self, scheduler: SchedulerState, jobs: JobQueries, forecaster: Forecaster) -> None:
        self._scheduler, self._jobs, self._forecaster = scheduler, jobs, forecaster
        self._outlooks = Outlooks(forecaster)

    async def close(self) -> None:
        """Ends forecasts that are being computed."""
        await self._outlooks.close()

    async def explain(self, job: int, *, shows_environment: bool = False, forecasts: bool = True) -> JobExplanation:
        """Explains the state of one job, with the values of its variables if they are to be shown.

        With `forecasts` it may take seconds: see `Outlooks`.
        """
        scheduler = self._scheduler
        times, how = Times(), ""
        if forecasts and scheduler.core.jobs.by_serial.state[job] <= ALIVE[-1]:
            outlook = await self._outlooks.of(
                job, scheduler.core, scheduler.now_s(), scheduler.choice, self._measured()
            )
            expected = outlook.expected
            times = scheduler.forecasts.times(expected)
            how = (
                _how(outlook) + self._assumption(job)
                if math.isfinite(expected.start_in_s) or not self._is_held(job)
                else f"none: {HELD}"
            )
        cost, spec = self._preemption_cost(job), scheduler.core.jobs.by_serial.specs[job]
        described = as_described(spec)
        return JobExplanation(
            job=self._jobs.statuses([job])[0],
            description=replace(described, environment=spec.environment) if shows_environment else described,
            accounts=self._accounts(job),
            sizes=self._sizes(job),
            **vars(times),
            forecast=how,
            history=[
                f"{_date(scheduler.wall_s(entry.now_s))}  {entry.line}" for entry in scheduler.history.entries(job)
            ],
            checkpoint=await self._checkpoint(job),
            notes=(
                *scheduler.measuring.notes.get(job, ()),
                *self._memory_notes(job),
                *team_notes(scheduler, job),
                *place_notes(scheduler.core, scheduler.core.jobs.ids.row(job)),
                *_worth(
                    spec, scheduler.now_s() - float(scheduler.core.jobs.by_serial.submitted_s[job]), times.finish_in_s
                ),
            ),
            preemption_gpu_s=cost.gpu_s if cost is not None else _UNKNOWN_S,
            preemption_cost=cost.text if cost is not None else "",
        )

    async def dry_run(self, specs: Sequence[JobSpec], owner: str) -> list[PlannedJob]:
        """Forecasts for these jobs if they were submitted now."""
        scheduler = self._scheduler
        check_known(specs, scheduler.core.settings, owner)
        check_sizes(specs, scheduler.core.settings)
        check_reservations(specs, scheduler.core, owner)
        scheduler.config.limits.check_weights(specs)
        scheduler.choice.refuse(specs)
        first = scheduler.core.jobs.by_serial.count
        now_s, limited = time.time(), scheduler.config.jobs.limited
        tried = [
            limited(of_team(spec, scheduler.core.settings, owner)).submitted(
                JobId(full_id(spec.id, first + k)), owner, first + k, now_s
            )
            for k, spec in enumerate(specs)
        ]
        wanted = range(first, first + min(len(specs), _FORECASTS_MAX))
        ahead = await self._forecaster.ask(
            scheduler.core,
            scheduler.now_s(),
            scheduler.choice,
            wanted=wanted,
            submitted=tried,
            rates=self._measured(),
        )
        omitted = [Expected()] * (len(specs) - len(wanted))
        left_out = f"only the first {_FORECASTS_MAX} jobs have a forecast" if omitted else ""
        return [
            PlannedJob(
                name=name_of(spec.id),
                forecast=forecast_of(
                    expected, scheduler.forecasts.times(expected), HELD if spec.hold else ahead.why_not or left_out
                ),
                note="; ".join(
                    filter(None, [submission_note(spec, asked, scheduler), *_worth(spec, 0.0, expected.finish_in_s)])
                ),
            )
            for spec, asked, expected in zip(tried, specs, [*ahead.expected, *omitted], strict=True)
        ]

    def _memory_notes(self, job: int) -> list[str]:
        """What a job uses of GPU memory, if that is known."""
        jobs = self._scheduler.core.jobs.by_serial
        text = gpu_memory.in_words(jobs.specs[job].gpu_memory_gib, jobs.measured_gib.get(job, 0.0))
        return [text] if text else []

    def _assumption(self, job: int) -> str:
        """What a forecast assumes of a job whose number of steps is not known; empty = nothing."""
        jobs = self._scheduler.core.jobs.by_serial
        if jobs.total_by[job] != OPEN:
            return ""
        return f"; its number of steps is not known yet, {jobs.steps_total[job]:,.0f} are assumed"

    def _preemption_cost(self, job: int) -> PreemptionCost | None:
        """What preempting a running job now would cost; None if it does not run."""
        jobs = self._scheduler.core.jobs.by_serial
        if jobs.state[job] != JobState.RUNNING:
            return None
        status = self._jobs.statuses([job])[0]
        began_s, worked_s = float(jobs.began_s[job]), float(jobs.worked_s[job])
        return preemption_cost(
            gpus=status.gpus,
            rate_steps_per_s=status.rate_steps_per_s,
            steps_done=status.steps_done,
            steps_saved=float(jobs.steps_saved[job]),
            saves_when_stopped=bool(jobs.resumes[job] == Resumes.DECLARED),
            restart_s=worked_s - began_s if worked_s >= began_s else math.nan,
            known_restart_s=float(jobs.restart_s[job]),
        )

    def _is_held(self, job: int) -> bool:
        return bool(self._scheduler.core.jobs.by_serial.hold[job] != NOT_HELD)

    def _measured(self) -> dict[int, float]:
        return measured_rates(self._scheduler.core, self._scheduler.leases.leases.values())

    def _accounts(self, job: int) -> list[GpuTypeAccount]:
        """Time owed and received on each GPU type, brought forward from the core's last decision to now."""
        prices = self._scheduler.engine.shadow_prices
        core = self._scheduler.core
        booked = account(core, core.jobs.ids.row(job), self._scheduler.now_s())
        return [
            GpuTypeAccount(
                gpu_type=name,
                rate_steps_per_s=float(booked.rate_steps_per_s[kind]),
                share=float(booked.share[kind]),
                owed_s=float(booked.owed_s[kind]),
                received_s=float(booked.received_s[kind]),
                price=prices.get(name, math.nan),
            )
            for kind, name in enumerate(booked.gpu_types)
        ]

    def _sizes(self, job: int) -> list[SizeAccount]:
        core = self._scheduler.core
        booked = size_accounts(core, core.jobs.ids.row(job), self._scheduler.now_s())
        if booked is None:
            return []
        columns = (booked.rate_steps_per_s, booked.share, booked.owed_s, booked.received_s)
        return [
            SizeAccount(gpus, name, *(float(column[row, kind]) for column in columns))
            for row, gpus in enumerate(booked.gpus.tolist())
            for kind, name in enumerate(core.pool.gpu_types)
            if booked.rate_steps_per_s[row, kind] != 0 or booked.received_s[row, kind] > 0
        ]

    async def _checkpoint(self, job: int) -> str:
        """The directory that the job would resume from; empty = from scratch, or the directory is unavailable."""
        jobs = self._scheduler.core.jobs.by_serial
        lease, steps, root = int(jobs.saved_lease[job]), float(jobs.steps_saved[job]), self._root
        if lease < 0 or steps <= 0:
            return ""
        relative = str(lease_checkpoints(Path(), job, lease) / step_name(int(steps)))
        if not root:  # the scheduler has no access: the path relative to the nodes' directory
            return relative
        directory = str(lease_checkpoints(Path(root), job, lease))
        try:
            return await self._scheduler.storage.call(newest, directory, limit_s=_LOOK_S)
        except PermissionError:  # the directory is its owner's only: as without access
            return relative
        except OSError:  # unreadable, or a timeout
            return ""

    @property
    def _root(self) -> str:
        return self._scheduler.config.nodes.checkpoint_directory


def preemption_note(spec: JobSpec, settings: MechanismSettings) -> str:
    """A note on preemption for the owner of a submitted job; empty = none."""
    return NEVER_SAVED if settings.keep_unsaved and not spec.preemptible and not spec.no_preempt else ""


def submission_note(spec: JobSpec, asked: JobSpec, scheduler: SchedulerState) -> str:
    """What the owner of a submitted job should know; empty = nothing. `asked`: the job of the request."""
    notes = [preemption_note(spec, scheduler.core.settings)]
    if spec.time_s and not asked.time_s:
        notes.append(f"it runs for at most {spec.time_s:g} s, the default here; --time sets another limit")
    if spec.stall_s and not asked.stall_s:
        notes.append(f"it ends after {spec.stall_s:g} s without progress, the default here; --stall sets another limit")
    if (asks := requests_of(spec)) and (unused := unused_requests(scheduler.choice.policy, asks)):
        notes.append(f"the policy {scheduler.choice.name} does not use {unused} (`gavel policies`)")
    if spec.software.image and not any(node.hello.runs_images for node in scheduler.nodes):
        notes.append("no node that is up runs containers (`gavel nodes`), so the job waits for one")
    if spec.sizes and spec.gpu_memory_gib:
        notes.append("it shares GPUs with no other job, as it runs on several numbers of GPUs")
    return "; ".join(filter(None, notes))


def _worth(spec: JobSpec, age_s: float, finish_in_s: float) -> list[str]:
    """What its end is worth at the expected time; nothing if no value is stated, or no end is expected."""
    if not spec.completion_value or not 0 <= finish_in_s < math.inf:
        return []
    value, whole = (
        float(values_at(rows_of([spec.completion_value]), np.array([after_s]))[0])
        for after_s in (age_s + finish_in_s, 0.0)
    )
    return [
        f"its end at the expected time is worth {value:.4g}, of {whole:.4g} at submission ({spec.completion_value})"
    ]


def _how(outlook: Outlook) -> str:
    age = f"; computed {outlook.age_s:.0f} s ago" if outlook.age_s >= 1.0 else ""
    if outlook.why_not:
        return f"incomplete: {outlook.why_not}{age}"
    return f"simulated, assuming that no job is submitted, cancelled or fails from now on{age}"


def _date(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))
