"""Runs the daemon: journal, scheduler, servers, signals and sd_notify."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gavelpy.errors import GavelError, InvalidInput
from gavelpy.journal.database import SchedulerMember
from gavelpy.journal.sqlite import BackupSettings
from gavelpy.journal.store import EventStore, open_store
from gavelpy.runtime.checkpoint_directory import check_owner, mark
from gavelpy.runtime.daemon.config import Config, read_config
from gavelpy.runtime.daemon.http_server import HttpServer
from gavelpy.runtime.daemon.listening import HttpPorts
from gavelpy.runtime.daemon.metrics import scraped
from gavelpy.runtime.daemon.notifier import Notifier
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.daemon.recovery import CLOCK, DATE_EVERY_S, Recovered, recover
from gavelpy.runtime.daemon.rpc.server import STOP_GRACE_S, Server
from gavelpy.runtime.daemon.scheduler import Scheduler
from gavelpy.runtime.service_manager import sd_notify
from gavelpy.runtime.storage import StorageSilent, StorageWorkers

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

logger = logging.getLogger(__name__)
COLLECTED_EVERY = (20_000, 20, 20)  # new objects, collections of these, and collections of those
DIRECTORY_MODE = 0o700
MARK_S = 5.0  # time limit of the checkpoint directory at the start; the scheduler starts without an answer, too
MARK_AGAIN_S = 60.0
WAKE_UPS_AT_ONCE = 4_096
WEB_PAGE = "gavelpy.runtime.daemon.web.page"  # imported where it is configured: aiohttp takes long
HAND_OVER_GRACE_S = 0.3  # for pending calls, while a standby waits


def open_state(
    config: Config, *, accept_loss: bool = False, take_over: bool = False, member: SchedulerMember | None = None
) -> EventStore:
    """Creates the state directory and opens the journal; raises InvalidInput, and EventsLost unless accepted."""
    directory = Path(config.scheduler.state_directory)
    try:
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"scheduler.state_directory = {str(directory)!r} cannot be made: {error.strerror}", file=config.path
        ) from None
    settings = config.scheduler
    elsewhere = settings.journal_backup_directory
    backups = BackupSettings(settings.journal_backups, Path(elsewhere) if elsewhere else None)
    return open_store(
        settings.journal_url, accept_loss=accept_loss, take_over=take_over, backups=backups, member=member
    )


class Service:
    """One scheduler in one process. `run` returns after `stop`, and raises the first error."""

    def __init__(self, config: Config, store: EventStore, recovered: Recovered | None = None) -> None:
        recovered = recovered or recover(store, config)
        self.config = config
        self.scheduler = Scheduler(config, store, recovered)
        self.port = 0
        self.http_port = 0
        self.web_port = 0
        self._stop = asyncio.Event()
        self._is_marking_late = False
        self._reloads: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Ends `run`, with a snapshot."""
        self._stop.set()

    async def run(self, leading: Coroutine[None, None, None] | None = None) -> None:
        """Serves until stopped, or until `leading` returns, which is given where a standby may wait to take over."""
        try:
            ports = HttpPorts(self.config.scheduler)
        except InvalidInput:
            self.scheduler.storage.close()
            raise
        with closing(ports):
            await self._run(ports, leading)

    async def _run(self, ports: HttpPorts, leading: Coroutine[None, None, None] | None) -> None:
        scheduler = self.scheduler
        marking = await self._begin_to_mark()
        server = Server(scheduler)
        running = asyncio.create_task(scheduler.run())
        notifying = asyncio.create_task(Notifier(scheduler, JobQueries(scheduler)).run())
        stopping = asyncio.create_task(self._stop.wait())
        watching = asyncio.create_task(watchdog())
        dating = asyncio.create_task(keep_dates(scheduler))
        tasks = {running, stopping}
        if leading is not None:
            tasks.add(handing_over := asyncio.create_task(leading))
        http, page = None, None
        try:
            await _until(scheduler.is_ready.wait(), running)
            self.port = await server.start()
            await server.set_health(is_serving=True)
            _notify_ready(self)
            begin_to_collect()
            if ports.http:
                http = await asyncio.to_thread(HttpServer, self._metrics, self._unready)  # imports for long
                self.http_port = await http.start(ports.http)
            if ports.web:
                page = (await asyncio.to_thread(import_module, WEB_PAGE)).WebPage(scheduler)
                self.web_port = await page.start(ports.web)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if leading is None or stopping.done():
                sd_notify("STOPPING=1")
            await server.stop(STOP_GRACE_S if leading is None else HAND_OVER_GRACE_S)
            for one in filter(None, (page, http)):
                await one.stop()
            await scheduler.stop()
            for task in (*(tasks - {running}), watching, dating, marking, notifying):
                task.cancel()
            await asyncio.wait({running})
        running.result()
        if leading is not None and handing_over.done() and not handing_over.cancelled():
            handing_over.result()

    def _metrics(self) -> bytes:
        return scraped(self.scheduler)

    def _unready(self) -> str:
        return "" if self.scheduler.is_ready.is_set() else "reading the journal"

    async def _begin_to_mark(self) -> asyncio.Task[None]:
        """Marks the checkpoint directory; if it hangs, the scheduler starts and marks it later."""
        marking = asyncio.create_task(self._mark_checkpoints())
        await asyncio.wait({marking}, timeout=MARK_S)
        if not marking.done():
            logger.warning("the checkpoint directory does not answer: it will be marked later")
        elif marking.exception() is not None:
            self.scheduler.storage.close()
            marking.result()
        self._is_marking_late = True
        return marking

    async def _mark_checkpoints(self) -> None:
        """Repeats until the checkpoint directory answers. Nodes use it before, by its id."""
        scheduler, directory = self.scheduler, self.config.nodes.checkpoint_directory
        while True:
            try:
                await _mark_checkpoints(scheduler.storage, directory, scheduler.cluster_id, MARK_AGAIN_S)
            except StorageSilent:
                continue
            except InvalidInput as error:
                if not self._is_marking_late:
                    raise
                logger.error("the checkpoint directory is not marked", extra={"detail": str(error)})
            return

    def handle_signals(self) -> None:
        """SIGTERM and SIGINT stop it, SIGHUP reads the configuration again."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload_soon)
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, {signal.SIGHUP}
        )  # one that came while the journal was read is due now

    def reload_soon(self) -> None:
        """Reads the configuration again."""
        task = asyncio.create_task(self.reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def reload(self) -> None:
        """What may change while it runs is changed, the rest is named; a file that is not right changes nothing."""
        sd_notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            ignored = await self.scheduler.reload(read_config(self.config.path))
        except InvalidInput as error:
            logger.error("configuration not reloaded", extra={"detail": str(error)})
        else:
            logger.info("configuration reloaded", extra={"policy": self.scheduler.choice.name})
            if ignored:
                logger.warning("changes that need a restart were left out", extra={"fields": ignored})
        sd_notify("READY=1")


class EventLoop(asyncio.SelectorEventLoop):
    """Reads all wake-ups of gRPC's poller in one turn.

    The poller writes a byte to a socket for each of its events, and gRPC's reader reads one byte and then handles all
    events. With several events a turn the bytes pile up, until the poller waits for room in the socket: then there is
    only one event a turn, and calls wait for hundreds of turns while one of them keeps the loop busy.
    """

    def add_reader(self, fd: FileDescriptorLike, callback: Callable[..., object], *args: object) -> None:
        """As its base; a socket of gRPC is emptied but for the byte that its reader expects."""
        if isinstance(fd, socket.socket) and fd.family == socket.AF_UNIX:
            callback = partial(_read_but_one, fd, callback)
        super().add_reader(fd, callback, *args)


def _read_but_one(source: socket.socket, callback: Callable[..., object], *args: object) -> None:
    waiting = len(source.recv(WAKE_UPS_AT_ONCE, socket.MSG_PEEK))
    if waiting > 1:
        source.recv(waiting - 1)
    callback(*args)


async def serve(config: Config, *, accept_loss: bool = False, take_over: bool = False) -> None:
    """Runs the daemon until it is stopped.

    If the configuration is refused, a state directory that this start created is removed.
    """
    directory = Path(config.scheduler.state_directory)
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    has_served = False
    try:
        store = open_state(config, accept_loss=accept_loss, take_over=take_over)
        try:
            service = Service(config, store)
            service.handle_signals()
            try:
                await service.run()
            finally:
                has_served = service.port > 0
        finally:
            store.close()
    except InvalidInput:
        if made and not has_served:
            _remove_made(made)
        raise


def _remove_made(made: Sequence[Path]) -> None:
    """Removes the first of these directories with its contents, then the others if they are empty."""
    shutil.rmtree(made[0], ignore_errors=True)
    for path in made[1:]:
        with contextlib.suppress(OSError):  # not empty: it has other contents
            path.rmdir()


def begin_to_collect() -> None:
    """Enables garbage collection, without the objects that were loaded until now.

    Jobs and leases live long: with Python's thresholds, collections are up to half of the time in which a round with
    thousands of leases is planned.
    """
    gc.freeze()
    gc.set_threshold(*COLLECTED_EVERY)
    gc.enable()


def _notify_ready(service: Service) -> None:
    logger.info(
        "scheduler is up",
        extra={
            "cluster": service.config.scheduler.name,
            "incarnation": service.scheduler.incarnation,
            "listen": service.config.scheduler.listen,
            "port": service.port,
            "jobs": len(service.scheduler.core.jobs.active),
        },
    )
    sd_notify("READY=1")


async def _until(wait: object, running: asyncio.Task[None]) -> None:
    """Waits, unless the scheduler ends first: then raises its error."""
    waiting = asyncio.ensure_future(wait)  # type: ignore[call-overload]  # any awaitable
    await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if running.done():
        running.result()


async def watchdog() -> None:
    """Notifies the service manager, if it has a watchdog, that the event loop runs."""
    period_us = os.environ.get("WATCHDOG_USEC", "")
    while period_us.isdecimal() and int(period_us) > 0:
        sd_notify("WATCHDOG=1")
        await asyncio.sleep(int(period_us) / 2e6)


async def keep_dates(scheduler: Scheduler) -> None:
    """Corrects the dates of all times whenever the system's date was set."""
    while True:
        await asyncio.sleep(DATE_EVERY_S)
        try:
            await follow_date(scheduler)
        except GavelError as error:  # the scheduler stops, or the driver fails, too
            logger.warning("dates not kept", extra={"detail": str(error)})


async def follow_date(scheduler: Scheduler) -> None:
    """Corrects the dates of all times if the system's date was set since the last look."""
    clock = scheduler.clock.dated(scheduler.clock.now_s(), time.time())
    if clock is not scheduler.clock:
        logger.warning("the date was set", extra={"by_s": clock.epoch_s - scheduler.clock.epoch_s})
        scheduler.clock = clock
        await scheduler.read_journal(lambda store: store.set_meta(CLOCK, clock.text))


async def _mark_checkpoints(storage: StorageWorkers, directory: str, cluster_id: str, limit_s: float) -> None:
    """Marks the checkpoint directory as this cluster's. Raises InvalidInput, StorageSilent where it does not answer."""
    if not directory:
        return
    try:
        owner = await storage.call(mark, directory, cluster_id, limit_s=limit_s)
    except StorageSilent:
        raise
    except OSError as error:
        raise InvalidInput(f"nodes.checkpoint_directory = {directory!r} cannot be used: {error}") from None
    check_owner(directory, cluster_id, owner)
