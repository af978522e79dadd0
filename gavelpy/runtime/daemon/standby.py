"""Schedulers that share a PostgreSQL journal: one leads, the others stand by, follow the journal and take over.

A standby applies the events of the journal to a core of its own, so that it has little to read when it leads. It
refuses calls with the address of the leader. `leadership` decides when it takes over. A leader that loses its
leadership, or its database, stands by again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import TypeVar

from gavelpy import __version__
from gavelpy.errors import FencedOut, GavelError, InvalidInput, JournalFailed, JournalInUse, JournalTooNew
from gavelpy.journal.database import SchedulerMember
from gavelpy.journal.leadership import Leader, Leadership, TakeoverTimer, Turn
from gavelpy.journal.store import EventStore
from gavelpy.runtime.daemon.config import Config, read_config
from gavelpy.runtime.daemon.follower import Follower
from gavelpy.runtime.daemon.http_server import HttpServer
from gavelpy.runtime.daemon.listening import HttpPorts
from gavelpy.runtime.daemon.recovery import Recovered, recover
from gavelpy.runtime.daemon.rpc.standby_server import StandbyServer, refusal
from gavelpy.runtime.daemon.service import Service, begin_to_collect, open_state, watchdog
from gavelpy.runtime.service_manager import sd_notify

logger = logging.getLogger(__name__)
LOOK_S = 0.25  # between two looks at the leader
SIGN_S = 1.0  # between two signs that it stands by
AGAIN_S = 0.5  # after the database failed
REFUSED_S = 5.0  # until it looks again whether it can read a journal that a newer version has written
BEATS_A_LEASE = 4
LEASES_UNKNOWN = 2  # without a renewal, after which a leader stops
WEB_SERVER = "gavelpy.runtime.daemon.web.server"  # imported where it is configured: aiohttp takes long
Answer = TypeVar("Answer")


class StandbyScheduler:
    """Stands by until it leads, or until it is stopped."""

    def __init__(self, config: Config, *, accept_loss: bool = False, take_over: bool = False) -> None:
        settings = config.standby
        self.config = config
        self.member = SchedulerMember(settings.address_of(config.scheduler.listen), __version__)
        self.leader = Leader(0, is_connected=False)
        self.leadership: Leadership | None = None
        self._accept_loss, self._take_over = accept_loss, take_over
        self._patience = TakeoverTimer(self.member.address, settings.lease_s)
        self._follower = Follower(config)
        self._sign_due_s = 0.0
        self._refused, self._refused_until_s = "", 0.0  # why it did not take over
        self._thread = ThreadPoolExecutor(1, "standby")

    async def run(self, stopping: asyncio.Event) -> tuple[EventStore, Recovered] | None:
        """The journal and the state to lead with; None if stopped before."""
        server = StandbyServer(self.config, lambda: self.leader.address, self._follower)
        http, page = None, None
        ports = HttpPorts(self.config.scheduler)
        try:
            await server.start()
            if ports.http:
                http = await asyncio.to_thread(HttpServer, self._metrics, self._unready)
                await http.start(ports.http)
            if ports.web:
                web = await asyncio.to_thread(import_module, WEB_SERVER)
                page = web.WebServer(self.config, web.standby_routes(lambda: self.leader.address))
                await page.start(ports.web)
            sd_notify("READY=1")
            while not stopping.is_set():
                if (turn := await self._in_thread(self._look)) is not Turn.WAIT:
                    await server.reads.pause()
                    if (found := await self._in_thread(self._take_turn, turn)) is not None:
                        return found
                    server.reads.resume()
                await self._follower.apply()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await stopping.wait()
        finally:
            await server.stop()
            for one in filter(None, (page, http)):
                await one.stop()
            ports.close()
            self._thread.shutdown(wait=True)
            self._follower.end()
        self._leave()
        return None

    def _metrics(self) -> bytes:
        lines = (
            "# HELP gavel_standby_sequence Last event of the journal that this standby applied; -1 = none.",
            "# TYPE gavel_standby_sequence gauge",
            f"gavel_standby_sequence {self._follower.sequence}",
        )
        return "".join(f"{line}\n" for line in lines).encode()

    def _unready(self) -> str:
        why = f"; it cannot take over: {self._follower.refused}" if self._follower.refused else ""
        return f"{refusal(self.leader.address)}{why}"

    async def _in_thread(self, work: Callable[..., Answer], *arguments: object) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _look(self) -> Turn:
        """Looks at the leader once, and reads what is new in the journal; returns what to do."""
        try:
            if self.leadership is None:
                self.leadership = Leadership(self.config.scheduler.journal_url, self.member)
            before, self.leader = self.leader, self.leadership.leader()
            if self.leader.incarnation != before.incarnation:
                logger.info("standing by", extra={"leader": self.leader.address, "follows": self.leader.incarnation})
            turn = self._patience.turn(self.leader, time.monotonic())
            if self._take_over:
                turn = Turn.FENCE if self.leader.is_connected else Turn.LEAD
            if time.monotonic() < self._refused_until_s:
                turn = Turn.WAIT
            if turn is Turn.WAIT:
                self._follower.fetch()
                self._follower.leads(self.leader.address, self.leader.incarnation)
            if time.monotonic() >= self._sign_due_s:
                self._sign_due_s = time.monotonic() + SIGN_S
                self.leadership.stand_by(self._follower.sequence)
        except JournalFailed as error:
            self._wait_for_database(error)
            return Turn.WAIT
        return turn

    def _take_turn(self, turn: Turn) -> tuple[EventStore, Recovered] | None:
        """Takes over; None if another one is faster, or if only a newer version can."""
        try:
            self._follower.check_readable()
            return self._lead(turn)
        except JournalTooNew as error:
            if str(error) != self._refused:
                logger.error("this version cannot take over: upgrade it", extra={"detail": str(error)})
            self._refused, self._refused_until_s = str(error), time.monotonic() + REFUSED_S
        except (JournalInUse, FencedOut) as error:  # another standby was faster
            logger.info("another scheduler leads", extra={"detail": str(error)})
        except JournalFailed as error:
            self._wait_for_database(error)
        return None

    def _wait_for_database(self, error: JournalFailed) -> None:
        logger.warning("the journal's database does not answer", extra={"detail": str(error)})
        time.sleep(AGAIN_S)

    def _lead(self, turn: Turn) -> tuple[EventStore, Recovered]:
        assert self.leadership is not None
        logger.warning("taking over", extra={"from": self.leader.address, "silent": turn is Turn.FENCE})
        self._follower.close()
        if turn is Turn.FENCE:
            self.leadership.end_session(self.leader.incarnation)
        config = self.config
        store = open_state(config, accept_loss=self._accept_loss, take_over=turn is Turn.FENCE, member=self.member)
        try:
            recovered = recover(store, config, replica=self._follower.replica, after=self.leader.incarnation)
            self.leadership.leave()
        except (GavelError, OSError):
            store.close()
            self._follower.forget()
            raise
        return store, recovered

    def _leave(self) -> None:
        self._follower.close()
        if self.leadership is not None:
            with suppress(JournalFailed):
                self.leadership.leave()
            self.leadership.close()


async def keep_leading(leadership: Leadership, incarnation: int, lease_s: float) -> None:
    """Renews this leader's row; returns when a standby is to take over.

    Raises FencedOut if another one leads, JournalFailed if that is not known: no renewal succeeded for two leases.
    """
    thread = ThreadPoolExecutor(1, "leader")
    loop = asyncio.get_running_loop()
    renewed_s = loop.time()
    renewing: asyncio.Future[str] | None = None
    try:
        while loop.time() - renewed_s < LEASES_UNKNOWN * lease_s:
            renewing = renewing or loop.run_in_executor(thread, leadership.renew, incarnation)
            await asyncio.wait({renewing}, timeout=lease_s)
            if not renewing.done():  # the database does not answer
                continue
            try:
                successor, renewed_s = renewing.result(), loop.time()
            except JournalFailed as error:
                logger.warning("leadership not renewed", extra={"detail": str(error)})
                successor = ""
            renewing = None
            if successor not in ("", leadership.member.address):
                logger.warning("handing over", extra={"to": successor})
                return
            await asyncio.sleep(lease_s / BEATS_A_LEASE)
        raise JournalFailed(f"no leadership was renewed for {loop.time() - renewed_s:.1f} s: another one may lead")
    finally:
        thread.shutdown(wait=False)


async def serve_in_turn(config: Config, *, accept_loss: bool = False, take_over: bool = False) -> None:
    """Stands by and leads in turn until it is stopped."""
    stopping = asyncio.Event()
    service: Service | None = None
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopping.set()
        if service is not None:
            service.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    begin_to_collect()
    watching = asyncio.create_task(watchdog())
    try:
        while not stopping.is_set():
            loop.add_signal_handler(signal.SIGHUP, lambda: None)  # the file is read again before it leads
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
            standby = StandbyScheduler(_read_again(config), accept_loss=accept_loss, take_over=take_over)
            found = await standby.run(stopping)
            if found is None or standby.leadership is None:
                return
            accept_loss = take_over = False
            store, recovered = found
            leading = keep_leading(standby.leadership, recovered.incarnation, standby.config.standby.lease_s)
            try:
                service = Service(standby.config, store, recovered)
                loop.add_signal_handler(signal.SIGHUP, service.reload_soon)
                await service.run(leading)
            except (FencedOut, JournalFailed) as error:
                logger.error("this scheduler leads no more", extra={"detail": str(error)})
                await asyncio.sleep(AGAIN_S)
            finally:
                service = None
                with suppress(JournalFailed):  # the database may be away
                    store.close()
                with suppress(JournalFailed):
                    standby.leadership.close()
    finally:
        watching.cancel()


def _read_again(config: Config) -> Config:
    """The configuration as the file has it now; as before if it is not valid."""
    if not config.path:
        return config
    try:
        return read_config(config.path)
    except InvalidInput as error:
        logger.error("configuration not read again", extra={"detail": str(error)})
        return config
