"""The driver: writes events to the journal, applies them to the core and executes its commands, in ordered batches.

Callers enqueue events and may wait until they are applied. One task collects all queued events, adds the shell's events
and the core's timer, writes the batch to the journal in one transaction in the journal's thread, and then applies it.
The next batch accumulates during a write, and waits briefly for callers that were answered together, so a thousand
submissions cost a few commits. Nothing else changes the core.

A journal failure ends the scheduler: whether the batch was written is unknown until a restart reads the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gavelpy.errors import GavelError, InvalidInput, JournalCorrupt, JournalFailed
from gavelpy.errors import Stopping as Stopping  # services import it from here
from gavelpy.journal.codec import encode_state
from gavelpy.journal.store import EventStore, Submission
from gavelpy.mechanism.commands import Command
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AllocationSolved, Event, WakeupDue
from gavelpy.runtime.daemon.recovery import SchedulerClock
from gavelpy.runtime.daemon.written import Written, numbers_after

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.archivist import Archivist

logger = logging.getLogger(__name__)
BATCH_EVENTS_MAX = 2_000  # beyond the first entry
APPLIED_AT_ONCE = 64  # events between two yields to the event loop
WAKEUP_LOAD = 8.0  # pause after a wakeup, as a multiple of its duration
PROGRESS_EVERY_S = 10.0
PROGRESS_APART_S = 1.0
GATHERING_S_MAX = 0.01  # for which a commit waits for callers
SNAPSHOT_REST_S = 2.0  # no snapshot during this time after a restart, which has other work
SNAPSHOT_LOAD = 20.0  # pause after a snapshot, as a multiple of its duration
BACKUP_EVERY_S = 600.0  # a snapshot is followed by a backup of the journal if the last one is older
SUBMISSIONS_KEPT_S = 30 * 86_400.0
STOPPING = "the scheduler is stopping"
_PLANS = (WakeupDue, AllocationSolved)  # events that may plan a round, which takes long
Answer = TypeVar("Answer")
MakeEvents = Callable[[int], Sequence[Event]]  # argument: serial of the next job
MakeSubmission = Callable[[int, float], Submission | None]  # arguments: that serial, and the time


class Shell(Protocol):
    """Connects the driver to agents and the engine."""

    def drain(self, now_s: float) -> list[Event]:
        """Events from nodes since the last call."""

    def progress(self) -> list[Event]:
        """Progress of running jobs since the last call."""

    def applied(self, event: Event, now_s: float, commands: Sequence[Command]) -> None:
        """Executes the commands that the core returned for an event."""

    def batch_applied(self) -> None:
        """All events of a batch were applied."""

    def state(self) -> Callable[[], dict[str, Any]]:
        """A function that encodes the current state; it runs in the journal's thread, on copies only."""

    def measured(self, what: str, seconds: float) -> None:
        """Records a duration in the metrics."""


@dataclass(eq=False)
class _Entry:
    make: MakeEvents
    size: int
    make_submission: MakeSubmission | None = None
    done: asyncio.Future[int] | None = None
    jobs: int = 0


@dataclass(frozen=True, eq=False)
class _Ready:  # with the serial of its first job
    entry: _Entry
    events: Sequence[Event]
    submission: Submission | None
    first_job: int


class Driver:
    """Call `run`, which lasts until `stop`; enqueue events with `apply`, `put` and `submit`."""

    def __init__(
        self, core: SchedulerCore, store: EventStore, clock: SchedulerClock, shell: Shell, sequence: int,
        replayed: int = 0,
    ) -> None:  # fmt: skip
        self.core = core
        self.sequence = sequence  # of the last event written
        self.jobs_under_way = 0
        self._store = store
        self._clock = clock
        self._shell = shell
        self._thread = ThreadPoolExecutor(1, "journal")
        self._queue: deque[_Entry] = deque()
        self._work = asyncio.Event()
        self._stopping = False
        self._is_over = False
        self._batch: list[_Entry] = []  # that is being written or applied
        self._wakeup_allowed_s = 0.0  # by perf_counter
        self._progress_s = 0.0
        self._commit_s = 0.0  # duration of the last commit
        self._written = Written(replayed)
        self._snapshot_allowed_s = perf_counter() + SNAPSHOT_REST_S if replayed else 0.0
        self._backup: asyncio.Task[None] | None = None
        self._backup_due_s = 0.0
        self.archivist: Archivist | None = None

    # Callers ------------------------------------------------------------------------------------------------------

    async def apply(self, events: Sequence[Event]) -> None:
        """Returns when the events are durable and applied; raises InvalidInput if the core refuses one."""
        await self._enter(_Entry(lambda _: events, len(events)))

    async def submit(self, make: MakeEvents, count: int, make_submission: MakeSubmission) -> int:
        """Submits `count` jobs; returns the serial of the first when they are durable and applied."""
        return await self._enter(_Entry(make, count, make_submission, jobs=count))

    def put(self, event: Event) -> None:
        """Enqueues an event without waiting for it."""
        self._queue.append(_Entry(lambda _: (event,), 1))
        self._work.set()

    def wake(self) -> None:
        """The shell has events to drain."""
        self._work.set()

    async def journal(self, use: Callable[[EventStore], Answer]) -> Answer:
        """Calls a function in the journal's thread and returns its result; raises Stopping after the end."""
        if self._is_over:
            raise Stopping(STOPPING)
        return await asyncio.get_running_loop().run_in_executor(self._thread, use, self._store)

    async def stop(self) -> None:
        """Applies the queued events; `run` then writes a snapshot and returns."""
        self._stopping = True
        self.wake()

    async def _enter(self, entry: _Entry) -> int:
        if self._stopping:
            raise Stopping(STOPPING)
        entry.done = asyncio.get_running_loop().create_future()
        self._queue.append(entry)
        self.jobs_under_way += entry.jobs
        self._work.set()
        try:
            return await asyncio.shield(entry.done)
        finally:
            self.jobs_under_way -= entry.jobs

    # Task ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until stopped; raises the errors of the journal."""
        try:
            while not (self._stopping and not self._queue):
                batch = self._collect(self._now_s())
                if batch:
                    await self._commit(batch)
                    await self._gather(sum(entry.done is not None for entry in batch))
                await self._archive()
                if self._written.is_much and perf_counter() >= self._snapshot_allowed_s:
                    await self._snapshot()
                elif not batch:
                    await self._wait()
            await self._commit(self._collect(self._now_s()))
            await self._snapshot()
            if self._backup is not None:
                await self._backup
        finally:
            self._stopping = self._is_over = True
            self._give_up()
            self._thread.shutdown(wait=True)

    def _now_s(self) -> float:
        return max(self._clock.now_s(), self.core.now_s)

    def _collect(self, now_s: float) -> list[_Entry]:
        """The entries to write now, in order."""
        self._work.clear()
        reported = self._shell.drain(now_s)  # first: a checkpoint counts even if its node is declared dead right after
        batch = [_Entry(lambda _: reported, len(reported))] if reported else []
        size = 0
        while self._queue and (not size or size + self._queue[0].size <= BATCH_EVENTS_MAX):
            batch.append(self._queue.popleft())
            size += batch[-1].size
        is_due = self._is_wakeup_due(now_s)
        last = self._progress(now_s, is_due) + ([WakeupDue()] if is_due else [])
        if last:
            batch.append(_Entry(lambda _: last, len(last)))
        return batch

    def _progress(self, now_s: float, is_due: bool) -> list[Event]:
        """Progress of running jobs, periodically and before decisions that depend on it."""
        since_s = now_s - self._progress_s
        is_needed = is_due and since_s >= PROGRESS_APART_S and self.core.needs_progress(now_s)
        if since_s < PROGRESS_EVERY_S and not is_needed:
            return []
        self._progress_s = now_s
        return self._shell.progress()

    def _is_wakeup_due(self, now_s: float) -> bool:
        return self.core.wakeup_s <= now_s and perf_counter() >= self._wakeup_allowed_s and not self._stopping

    async def _wait(self) -> None:
        wakeup_s = self.core.wakeup_s - self._now_s()
        pause_s = self._wakeup_allowed_s - perf_counter()
        snapshot_s = self._snapshot_allowed_s - perf_counter() if self._written.is_much else PROGRESS_EVERY_S
        due_s = self.archivist.due_in_s if self.archivist is not None else PROGRESS_EVERY_S
        wait_s = max(min(max(wakeup_s, pause_s), snapshot_s, due_s, PROGRESS_EVERY_S), 0.0)
        try:
            async with asyncio.timeout(wait_s):
                await self._work.wait()
        except TimeoutError:
            return

    async def _gather(self, answered: int) -> None:
        """Lets callers that were answered together call again, so that they share the next commit, too.

        They wait at most as long as the last commit took, and a caller without others does not wait.
        """
        wanted = answered + len(self._queue)
        if wanted < 2:
            return
        ends_s = perf_counter() + min(self._commit_s, GATHERING_S_MAX)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(ends_s - perf_counter(), self._work.set)
        while len(self._queue) < wanted and perf_counter() < ends_s and not self._stopping:
            self._work.clear()
            await self._work.wait()
        timer.cancel()

    async def _commit(self, batch: list[_Entry]) -> None:
        if not batch:
            return
        self._batch = batch
        now_s = self._now_s()
        ready = self._ready(batch, now_s)
        records = [(now_s, event) for part in ready for event in part.events]
        submissions = [part.submission for part in ready if part.submission is not None]
        numbers = numbers_after(self.core, [event for _, event in records])
        began_s = perf_counter()
        try:
            self.sequence = await self.journal(lambda store: store.append(records, submissions, numbers))
        except InvalidInput as refusal:
            await self._split(batch, refusal)
            return
        self._commit_s = perf_counter() - began_s
        self._shell.measured("commit", self._commit_s)
        for part in ready:
            await self._apply(part, now_s)
        self._shell.batch_applied()
        self._written.add(records)

    async def _archive(self) -> None:
        if self.archivist is None or (found := await self.archivist.next(self._now_s())) is None:
            return
        (event, leaving), records = found, [((now_s := self._now_s()), found[0])]
        self.sequence = await self.journal(lambda store: store.append(records, leaving=leaving))
        self._shell.applied(event, now_s, self.core.handle(event, now_s))
        self._shell.batch_applied()
        self._written.add(records)

    def _ready(self, batch: Sequence[_Entry], now_s: float) -> list[_Ready]:
        next_job = self.core.jobs.ids.next_serial
        ready = []
        for entry in batch:
            submission = entry.make_submission(next_job, now_s) if entry.make_submission is not None else None
            ready.append(_Ready(entry, entry.make(next_job), submission, next_job))
            next_job += entry.jobs
        return ready

    async def _split(self, batch: list[_Entry], refusal: InvalidInput) -> None:
        """The journal refused a batch and wrote none of it: commits its halves, down to the entries that it refuses."""
        if len(batch) == 1:
            _resolve(batch[0], refusal, 0)
            return
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            await self._commit(half)

    async def _apply(self, part: _Ready, now_s: float) -> None:
        refused: InvalidInput | None = None
        for i, event in enumerate(part.events, 1):
            began_s = perf_counter()
            try:
                commands = self.core.handle(event, now_s)
            except InvalidInput as refusal:  # replay refuses it in the same way
                logger.warning("event refused", extra={"event": type(event).__name__, "detail": str(refusal)})
                refused = refusal
                continue
            self._written.replay_s += perf_counter() - began_s
            self._shell.applied(event, now_s, commands)
            if isinstance(event, _PLANS):
                seconds = perf_counter() - began_s
                self._wakeup_allowed_s = perf_counter() + WAKEUP_LOAD * seconds
                self._shell.measured("plan", seconds)
            if not i % APPLIED_AT_ONCE:
                await asyncio.sleep(0)
        _resolve(part.entry, refused, part.first_job)

    async def _snapshot(self) -> None:
        if not self._written.count:
            return
        began_s = perf_counter()
        state, sequence, now_s = self._shell.state(), self.sequence, self.core.now_s
        keep_after = self._written.keep_after(sequence)
        archived_from_s = self.archivist.events_from_s(now_s) if self.archivist is not None else None

        def write(store: EventStore) -> None:
            store.save_snapshot(sequence, encode_state(state()))
            store.truncate(keep_after, archived_from_s)
            store.forget_submissions(now_s - SUBMISSIONS_KEPT_S)

        await self.journal(write)
        self._written.snapshot_taken()
        seconds = perf_counter() - began_s
        self._snapshot_allowed_s = perf_counter() + SNAPSHOT_LOAD * seconds
        self._shell.measured("snapshot", seconds)
        if perf_counter() >= self._backup_due_s and (self._backup is None or self._backup.done()):
            self._backup_due_s = perf_counter() + BACKUP_EVERY_S
            self._backup = asyncio.create_task(self._back_up())

    async def _back_up(self) -> None:
        """Backs the journal up in another thread, while it is in use. Without a backup the scheduler continues."""
        try:
            path = await asyncio.to_thread(self._store.back_up)
        except (JournalCorrupt, JournalFailed) as error:
            logger.error("the journal could not be backed up", extra={"detail": str(error)})
        else:
            if path is not None:
                logger.info("journal backed up", extra={"path": str(path)})

    def _give_up(self) -> None:
        for entry in (*self._batch, *self._queue):
            _resolve(entry, Stopping(STOPPING), 0)
        self._queue.clear()


def _resolve(entry: _Entry, error: GavelError | None, first_job: int) -> None:
    if entry.done is None or entry.done.done():
        return
    if error is not None:
        entry.done.set_exception(error)
        entry.done.exception()  # marked as retrieved: the caller may have been cancelled
    else:
        entry.done.set_result(first_job)
