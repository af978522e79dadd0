"""Submissions: checks of the jobs of a request, and exactly one submission for each idempotency key."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import msgspec

from gavelpy.errors import InvalidInput, LimitReached
from gavelpy.journal.store import Submission
from gavelpy.mechanism.competition import check_sizes
from gavelpy.mechanism.events import JobSubmitted
from gavelpy.mechanism.lifecycle import ALIVE, JobState
from gavelpy.mechanism.priority_classes import check_known
from gavelpy.mechanism.teams import of_team
from gavelpy.mechanism.windows import check_reservations
from gavelpy.model.apps import check_apps
from gavelpy.model.job import JobId, JobSpec
from gavelpy.model.software import Software
from gavelpy.runtime.daemon.job_history import NAMELESS, full_id

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler

KEY_LENGTH_MAX = 200
_ALWAYS = ("rates_steps_per_s", "environment")  # counted from the first version on, also if empty
_DEFAULTS: Mapping[str, object] = {
    field.name: {} if field.default_factory is dict and field.name not in _ALWAYS else field.default
    for field in fields(JobSpec)
}


@dataclass(frozen=True)
class _FirstSoftware:
    """The fields that `Software` has always had."""

    venv: str
    conda: str
    snapshot: str


@dataclass(frozen=True)
class Submitted:
    """Serials of the jobs of one submission: first_job, first_job + 1, ..."""

    first_job: int
    count: int
    repeated: bool  # the key was known: these jobs existed before


class Submissions:
    """Submits jobs to the scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._under_way: dict[tuple[str, str], asyncio.Future[None]] = {}  # by owner and key
        self._names_under_way: set[tuple[str, str]] = set()
        self._jobs_under_way: Counter[str] = Counter()  # by owner

    async def submit(self, specs: Sequence[JobSpec], key: str, owner: str) -> Submitted:
        """Submits all jobs or none; they are durable when this returns. Ids of `specs` are names, or NAMELESS.

        Repeating owner, key and jobs returns the first result; an empty key never repeats. Raises InvalidInput, also
        for a known key with other jobs, and LimitReached.
        """
        self._check_submission(specs, key, owner)
        if not key:
            return await self._submit(specs, key, owner, "")
        digest = digest_of(specs)
        while (under_way := self._under_way.get((owner, key))) is not None:
            await asyncio.wait([under_way])
            if (known := await self._known(owner, key)) is not None:
                return _again(known, digest)
        future = self._under_way[owner, key] = asyncio.get_running_loop().create_future()
        try:
            return await self._submit(specs, key, owner, digest)
        except (InvalidInput, LimitReached):  # the journal refuses a known key; its jobs may also be what is refused
            if (known := await self._known(owner, key)) is None:
                raise
            return _again(known, digest)
        finally:
            del self._under_way[owner, key]
            future.cancel()

    async def _known(self, owner: str, key: str) -> Submission | None:
        """The submission of a key; None if its owner has not used the key."""
        return await self._scheduler.read_journal(lambda store: store.submission(owner, key))

    async def _submit(self, specs: Sequence[JobSpec], key: str, owner: str, digest: str) -> Submitted:
        self._check_room(len(specs), owner)
        names = {(owner, str(spec.id)) for spec in specs if spec.id != NAMELESS}
        self._check_names(specs, owner, len(names))
        self._check_after(specs)
        check_reservations(specs, self._scheduler.core, owner)
        settings = self._scheduler.core.settings
        check_known(specs, settings, owner)
        self._scheduler.config.limits.check_weights(specs)
        check_sizes(specs, settings)
        check_apps([spec.app for spec in specs])
        self._scheduler.choice.refuse(specs)
        limited = self._scheduler.config.jobs.limited
        specs = [limited(of_team(spec, settings, owner)) for spec in specs]
        self._names_under_way |= names
        self._jobs_under_way[owner] += len(specs)
        try:
            first = await self._scheduler.driver.submit(
                lambda first_job: [
                    JobSubmitted(
                        spec.submitted(JobId(full_id(spec.id, first_job + i)), owner, first_job + i, time.time())
                    )
                    for i, spec in enumerate(specs)
                ],
                len(specs),
                lambda first_job, now_s: Submission(owner, key, digest, first_job, len(specs), now_s) if key else None,
            )
        finally:
            self._names_under_way -= names
            self._jobs_under_way[owner] -= len(specs)
        return Submitted(first, len(specs), repeated=False)

    def _check_submission(self, specs: Sequence[JobSpec], key: str, owner: str) -> None:
        limits = self._scheduler.config.limits
        if not 1 <= len(specs) <= limits.jobs_a_request_max:
            raise InvalidInput(f"jobs must be 1 to {limits.jobs_a_request_max} in a request, got {len(specs)}")
        if len(key) > KEY_LENGTH_MAX or not key.isprintable():
            raise InvalidInput(
                f"idempotency_key must be at most {KEY_LENGTH_MAX} printable characters, got {key[:KEY_LENGTH_MAX]!r}"
            )
        if not owner:
            raise InvalidInput("owner must be a name, got ''")

    def _check_room(self, count: int, owner: str) -> None:
        core, limits = self._scheduler.core, self._scheduler.config.limits
        most = limits.jobs_living_max
        living = len(core.jobs.active) + self._scheduler.driver.jobs_under_way
        if living + count > most:
            raise LimitReached(f"jobs_living_max is {most}: {living} jobs are living, {count} more exceed it")
        if most := limits.jobs_living_a_user_max:
            living = core.jobs.living_jobs(owner) + self._jobs_under_way[owner]
            if living + count > most:
                raise LimitReached(
                    f"jobs_living_a_user_max is {most}: {living} jobs of {owner!r} wait or run, {count} more exceed it"
                )

    def _check_after(self, specs: Sequence[JobSpec]) -> None:
        """Raises InvalidInput for a job that can never start, as one that it comes after did not finish."""
        state, ids = self._scheduler.core.jobs.by_serial.state, self._scheduler.core.jobs.ids
        after = {other for spec in specs for other in spec.after_ok if other >= 0}
        for other in [other for other in after if ids.row(other) >= 0]:  # others: PastQueries.check_after
            if ALIVE[-1] < state[other] != JobState.FINISHED:
                how = JobState(int(state[other])).name.lower()
                allowed = f"jobs that have finished or still can; {other}:any waits for its end only"
                raise InvalidInput(f"after must name {allowed}, got job {other}, which is {how}")

    def _check_names(self, specs: Sequence[JobSpec], owner: str, distinct: int) -> None:
        named = [str(spec.id) for spec in specs if spec.id != NAMELESS]
        if distinct != len(named):
            twice = next(name for name, count in Counter(named).items() if count > 1)
            raise InvalidInput(f"name must be unique among the jobs of a request, got {twice!r} twice")
        for name in named:
            job = self._scheduler.history.newest(owner, name)
            if (owner, name) in self._names_under_way or (
                job >= 0 and self._scheduler.core.jobs.by_serial.state[job] <= ALIVE[-1]
            ):
                raise InvalidInput(f"name must be unique among the living jobs of {owner!r}, got {name!r}")


def digest_of(specs: Sequence[JobSpec]) -> str:
    """A digest of these jobs in this order.

    Only values that are not defaults count: a submission can be repeated with its key after an upgrade that brought new
    fields.
    """
    values = [
        {name: _digested(value) for name, default in _DEFAULTS.items() if (value := getattr(spec, name)) != default}
        for spec in specs
    ]
    return hashlib.sha256(msgspec.msgpack.encode(values, order="deterministic")).hexdigest()


def _digested(value: object) -> object:
    """The value; software without fields that came later has the digest of the first ones. Keys are texts."""
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in value.items()}
    if not isinstance(value, Software) or value.image:
        return value
    return _FirstSoftware(value.venv, value.conda, value.snapshot)


def _again(known: Submission, digest: str) -> Submitted:
    if known.digest != digest:
        raise InvalidInput(f"idempotency_key {known.key!r} must be repeated with the same jobs, got other jobs")
    return Submitted(known.first_job, known.count, repeated=True)
