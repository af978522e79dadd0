"""All leases of this node: loads those of an earlier agent and carries out the actions of `reconcile`.

STATE/leases/00000042/           a lease, living or ended
STATE/leases/.new-00000042/      one that is being created, or was when the agent died
STATE/ended/00000042/            the log of one that the scheduler has forgotten
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.agent.leases import job_directory
from gavelpy.runtime.agent.leases.directory import AssignmentRecord, LeaseDirectory, LeaseProgress
from gavelpy.runtime.agent.leases.orders import NodeAssignment
from gavelpy.runtime.agent.leases.reconcile import (
    Accept,
    Action,
    Amend,
    Cancel,
    Forget,
    Kill,
    LocalPhase,
    Refuse,
    StartLease,
    Withdraw,
    extended,
)
from gavelpy.runtime.agent.leases.rendezvous_port import ReservedPort
from gavelpy.runtime.agent.leases.retention import (
    DAMAGED,
    ENDED,
    LeaseLogs,
    lease_directories,
    logs_of_leases,
    read_assignment,
    scrub,
)
from gavelpy.runtime.lease_files import LeaseOutcome, LeaseTerms
from gavelpy.runtime.shim import processes

logger = logging.getLogger(__name__)

LEASES: Final = lease_files.LEASES_DIRECTORY
KILL_TIMEOUT_S: Final = 5.0
_NEW = ".new-"

Begin = Callable[[LeaseDirectory], None]


class LeaseRegistry:
    """The leases of a state directory. `begin` starts one, `count_saved` counts the checkpoints of one that ended."""

    def __init__(self, state: Path, begin: Begin, count_saved: Begin | None = None) -> None:
        self._state = state
        self._begin = begin
        self._count_saved = count_saved
        self._folders: dict[int, LeaseDirectory] = {}
        for name in (LEASES, ENDED):
            (state / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def folders(self) -> tuple[LeaseDirectory, ...]:
        """All leases that are not forgotten, by id."""
        return tuple(self._folders[lease] for lease in sorted(self._folders))

    def log_directories(self) -> Callable[[], list[LeaseLogs]]:
        """A function that lists the leases with logs as they are when it is called; any thread may call it.

        A lease that is forgotten meanwhile is listed where its directory is by then.
        """
        current = [LeaseLogs(folder.directory, folder.lease, folder.job) for folder in self.folders]
        return partial(logs_of_leases, current, self._state / ENDED)

    def load(self, now_clock_s: float, *, has_booted_since: bool) -> None:
        """Loads the leases of an earlier agent; those with a living shim continue."""
        for left in (self._state / LEASES).glob(f"{_NEW}*"):
            shutil.rmtree(left)
        job_directory.discard_unknown(self._state, [int(e.name) for e in lease_directories(self._state / LEASES)])
        for directory in lease_directories(self._state / LEASES):
            kept = read_assignment(directory)
            if kept is None:
                self._quarantine(directory)
                continue
            folder = _loaded(directory, kept, now_clock_s, self._count_saved)
            self._folders[folder.lease] = folder
            folder.observe(now_clock_s)
            if (
                has_booted_since and not folder.is_over
            ):  # its times are of another clock, and none of its processes runs
                folder.conclude(LeaseOutcome.LOST, "the node has rebooted since", now_clock_s)
            logger.info(
                "lease found", extra={"lease": folder.lease, "job": folder.job, "phase": folder.local.phase.value}
            )

    def observe(self, now_clock_s: float) -> OSError | None:
        """Observes all leases; returns the first disk error."""
        failure: OSError | None = None
        for folder in self._folders.values():
            try:
                folder.observe(now_clock_s)
            except OSError as error:
                failure = failure or error
        return failure

    def act(self, action: Action, now_clock_s: float) -> None:
        """Carries out one action."""
        match action:
            case Accept(order, assignment, start):
                folder = self._made(order.lease, order.job, assignment, order.until_clock_s, now_clock_s)
                if start:
                    self._started(folder, folder.assignment or assignment)
            case Refuse(order, outcome, detail):
                folder = self._made(order.lease, order.job, order.assignment, order.until_clock_s, now_clock_s)
                folder.conclude(outcome, detail, now_clock_s)
            case StartLease(lease, assignment):
                self._started(self._folders[lease], assignment)
            case Amend(lease, until_clock_s, stop, kill, saved):
                folder = self._folders[lease]
                terms = replace(folder.orders, until_clock_s=until_clock_s, stop=stop, kill=kill, steps_saved=saved)
                folder.amend(terms, now_clock_s)
            case Cancel(lease, detail):
                self._folders[lease].conclude(LeaseOutcome.STOPPED, detail, now_clock_s)
            case Withdraw(lease):
                self._folders[lease].is_withdrawn = True
            case Kill(lease):
                self._folders[lease].destroy(now_clock_s)
            case Forget(lease):
                self._forget(self._folders.pop(lease))

    def extend(self, until_clock_s: float, now_clock_s: float) -> OSError | None:
        """Extends running leases, as a majority of agents allows; returns the first disk error."""
        failure: OSError | None = None
        for action in extended([folder.local for folder in self.folders], until_clock_s, now_clock_s):
            try:
                self.act(action, now_clock_s)
            except OSError as error:
                failure = failure or error
        return failure

    def close(self) -> None:
        """Releases ports; the leases continue."""
        for folder in self._folders.values():
            folder.close_port()

    def by_token(self, token: str) -> LeaseDirectory | None:
        """The living lease of the job with this token."""
        living = (folder for folder in self.folders if not folder.is_over)
        return next((folder for folder in living if folder.has_token(token)), None)

    def _made(
        self, lease: int, job: int, assignment: NodeAssignment | None, until_clock_s: float, now_clock_s: float
    ) -> LeaseDirectory:
        """A new lease; its directory appears by one rename."""
        final = lease_files.lease_directory(self._state / LEASES, lease)
        new = final.with_name(f"{_NEW}{final.name}")
        if new.exists():
            shutil.rmtree(new)
        new.mkdir(mode=0o700)
        orders = LeaseTerms(1, until_clock_s, steps_max=assignment.steps_max if assignment else 0.0)
        folder = LeaseDirectory(new, lease, job, assignment, orders, count_saved=self._count_saved)
        folder.write_assignment()
        lease_files.write_lease(new, orders)
        new.rename(final)
        folder.directory = final
        _settle(folder, now_clock_s)
        self._folders[lease] = folder
        return folder

    def _started(self, folder: LeaseDirectory, assignment: NodeAssignment) -> None:
        folder.assignment = assignment
        folder.is_starting = True
        self._begin(folder)

    def _forget(self, folder: LeaseDirectory) -> None:
        """Keeps the log, without the environment of the job."""
        job_directory.discard(self._state, folder.lease)
        target = self._state / ENDED / folder.directory.name
        if target.exists():
            shutil.rmtree(target)
        with suppress(FileNotFoundError):  # the job can have removed it
            folder.directory.rename(target)
            scrub(target)

    def _quarantine(self, directory: Path) -> None:
        """Moves away a directory without a valid assignment record, and kills its processes."""
        target = self._state / DAMAGED / f"{directory.name}-{lease_files.clock_s():.6f}"
        target.parent.mkdir(mode=0o700, exist_ok=True)
        unknown = lease_files.ShimState(-1, 0, processes.boot_id(), lease_files.ShimPhase.STARTING)
        for place in (directory, self._state / lease_files.JOBS_DIRECTORY / directory.name):
            _retry(partial(processes.kill_lease, unknown, place))
        directory.rename(target)
        logger.error("lease directory is damaged: its processes were killed", extra={"directory": str(target)})


def log_action(action: Action) -> None:
    """Logs an action; Kill, which is repeated until it works, is logged elsewhere."""
    if isinstance(action, Kill):
        return
    name = type(action).__name__.lower()
    order = getattr(action, "order", None)
    details = {key: str(getattr(action, key)) for key in ("outcome", "detail") if hasattr(action, key)}
    lease = order.lease if order is not None else getattr(action, "lease", -1)
    logger.info("lease: %s", name, extra={"lease": lease, **details})


def _loaded(directory: Path, kept: AssignmentRecord, now_clock_s: float, count_saved: Begin | None) -> LeaseDirectory:
    try:
        orders = lease_files.read_lease(directory)
    except RemoteViolation:
        orders = None
    # Without its terms a lease is over: its end is unknown.
    orders = orders or LeaseTerms(0, now_clock_s, kill=True)
    folder = LeaseDirectory(directory, kept.lease, kept.job, kept.assignment, orders, count_saved=count_saved)
    folder.killed_clock_s = now_clock_s if folder.orders.kill else folder.killed_clock_s
    try:
        folder.launch = lease_files.read_launch(directory)
    except RemoteViolation as violation:
        logger.warning("file of a lease ignored: %s", violation, extra={"lease": kept.lease, "job": kept.job})
    folder.launched_clock_s = now_clock_s
    _settle(folder, now_clock_s)
    if folder.launch is None:
        folder.load_end()
    return folder


def _settle(folder: LeaseDirectory, now_clock_s: float) -> None:
    """Sets progress, and reserves the rendezvous port, from the assignment."""
    assignment = folder.assignment
    if assignment is None:
        return
    folder.progress = LeaseProgress(assignment.steps_done, assignment.steps_done)
    is_prepared = folder.local.phase is LocalPhase.PREPARED and now_clock_s < folder.orders.until_clock_s
    if is_prepared and assignment.is_first_node and not (folder.directory / lease_files.END_FILE).exists():
        folder.port = ReservedPort(assignment.rendezvous_port)
        folder.assignment = replace(assignment, rendezvous_port=folder.port.number)
        folder.write_assignment()


def _retry(is_done: Callable[[], bool]) -> None:
    """Calls until it returns true, for at most KILL_TIMEOUT_S."""
    deadline_s = time.monotonic() + KILL_TIMEOUT_S
    while not is_done() and time.monotonic() < deadline_s:
        time.sleep(0.01)


class ShimWatch:
    """Calls `ended` when a followed process ends. It need not be a child: shims of an earlier agent are not."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._descriptors: dict[int, int] = {}

    def follow(self, processes: Iterable[int]) -> None:
        """Follows these processes and no others; 0 = none."""
        wanted = set(processes) - {0}
        for process in set(self._descriptors) - wanted:
            self._forget(process)
        for process in wanted - set(self._descriptors):
            try:
                descriptor = os.pidfd_open(process)
            except OSError:
                continue  # it has ended already; the next observation finds that
            self._descriptors[process] = descriptor
            asyncio.get_running_loop().add_reader(descriptor, self._report_end, descriptor)

    def close(self) -> None:
        """Stops following."""
        self.follow(())

    def _report_end(self, descriptor: int) -> None:
        """Once per process."""
        asyncio.get_running_loop().remove_reader(descriptor)
        self._ended()

    def _forget(self, process: int) -> None:
        descriptor = self._descriptors.pop(process)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
