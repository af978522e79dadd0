"""Sends notifications by webhook and mail: at least once, outside of the core, and never in the way of scheduling.

Theory of operation. The job history collects notices (`notices`) as events are applied; a replay collects the same
ones. The notifier turns new notices into deliveries and writes them, with the time and the ids of the last notices
taken, into the journal before it sends any. So a restart continues with the pending deliveries, adds the notices that
it had not taken, and sends none twice, except one whose acknowledgement was lost. Each has an id that receivers can use
to detect that.

A delivery that fails is tried again, after 5 s first and up to an hour later, for a day. At most PENDING_MAX wait; more
are dropped and logged, as are those to a receiver that the operator no longer allows. Webhooks reach only hosts that
the operator lists, and redirects are not followed; mail goes only to domains that the operator lists. All calls have
time limits.
"""

from __future__ import annotations

import asyncio
import json
import logging
import smtplib
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from email.message import EmailMessage
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gavelpy.errors import GavelError, InvalidInput
from gavelpy.mechanism.identities import JobGone
from gavelpy.model.job import JobSpec
from gavelpy.model.notify import host_and_port
from gavelpy.runtime.daemon.config_sections import NotificationSettings
from gavelpy.runtime.daemon.job_history import name_of
from gavelpy.runtime.daemon.notices import Notice
from gavelpy.runtime.daemon.queries.jobs import JobQueries

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler

logger = logging.getLogger(__name__)

NOTIFICATIONS: Final = "notifications"  # name of the state in the journal
PENDING_MAX: Final = 1_000
AT_ONCE: Final = 8
FIRST_RETRY_S: Final = 5.0
RETRY_S_MAX: Final = 3_600.0
GIVE_UP_S: Final = 86_400.0
LOOK_EVERY_S: Final = 30.0
LOOK_APART_S: Final = 0.1
_TRY_AGAIN = frozenset({408, 425, 429})  # other statuses of 400 to 499 are final
_DETAIL_MAX = 300


class DeliveryFailed(GavelError):
    """A delivery failed; `is_final`: another attempt would fail, too."""

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(frozen=True)
class Delivery:
    """One notice on its way to one receiver."""

    notice: Notice
    channel: str  # webhook or mail
    attempts: int = 0
    due_s: float = 0.0  # the scheduler's time


def check_notify(settings: NotificationSettings, spec: JobSpec) -> None:
    """Raises InvalidInput if the operator does not allow where a job's notifications are to be sent."""
    if spec.notify.webhook:
        host, port, is_secure = host_and_port(spec.notify.webhook)
        named = {f"{host}:{port}", host if port == (443 if is_secure else 80) else f"{host}:{port}"}
        if named.isdisjoint(entry.lower() for entry in settings.webhook_hosts):
            allowed = ", ".join(settings.webhook_hosts) or "no host (notifications.webhook_hosts is empty)"
            raise InvalidInput(f"webhook must be on a host that the operator lists: {allowed}; got {host}:{port}")
    if spec.notify.mail:
        domain = spec.notify.mail.rpartition("@")[2].lower()
        if not settings.smtp or domain not in (entry.lower() for entry in settings.mail_domains):
            allowed = ", ".join(settings.mail_domains) if settings.smtp else ""
            raise InvalidInput(f"mail must be in a domain that the operator lists: {allowed or 'none'}; got {domain}")


class Notifier:
    """Runs next to a scheduler."""

    def __init__(self, scheduler: Scheduler, jobs: JobQueries) -> None:
        self._scheduler = scheduler
        self._settings = scheduler.config.notifications
        self._jobs = jobs
        self._pending: list[Delivery] = []
        self._taken_s = -1.0  # time of the last notice taken
        self._taken: tuple[str, ...] = ()  # ids of the notices taken at that time
        self._threads = ThreadPoolExecutor(AT_ONCE, "mail")

    async def run(self) -> None:
        """Runs until it is cancelled or the scheduler stops."""
        scheduler = self._scheduler
        await scheduler.is_ready.wait()
        try:
            self._restore(await scheduler.read_journal(lambda store: store.meta(NOTIFICATIONS)))
            while True:
                version = scheduler.version
                if self._take():
                    await self._store()
                if await self._deliver(scheduler.now_s()):
                    await self._store()
                    continue
                next_s = min((one.due_s for one in self._pending), default=float("inf")) - scheduler.now_s()
                await scheduler.wait_changed(version, max(LOOK_APART_S, min(next_s, LOOK_EVERY_S)))
                await asyncio.sleep(LOOK_APART_S)  # many changes are one look
        except GavelError as error:  # the journal is closed: the scheduler stops
            logger.info("notifications end", extra={"detail": str(error)[:_DETAIL_MAX]})
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _restore(self, text: str) -> None:
        if not text:
            return
        state = json.loads(text)
        self._taken_s, self._taken = float(state["taken_s"]), tuple(state["taken"])
        self._pending = [
            Delivery(Notice(*one["notice"]), one["channel"], int(one["attempts"])) for one in state["pending"]
        ]

    async def _store(self) -> None:
        state = {"taken_s": self._taken_s, "taken": self._taken, "pending": [asdict(one) for one in self._pending]}
        text = json.dumps(state)
        await self._scheduler.read_journal(lambda store: store.set_meta(NOTIFICATIONS, text))

    def _take(self) -> bool:
        """Turns new notices into deliveries; whether there were any."""
        new = [
            notice
            for notice in self._scheduler.history.notices
            if notice.now_s > self._taken_s or (notice.now_s == self._taken_s and notice.id not in self._taken)
        ]
        for notice in new:
            at_once = self._taken if notice.now_s == self._taken_s else ()
            self._taken_s, self._taken = notice.now_s, (*at_once, notice.id)
            notify = self._scheduler.core.jobs.by_serial.specs[notice.job].notify
            for channel in ("webhook", "mail"):
                if getattr(notify, channel) and len(self._pending) < PENDING_MAX:
                    self._pending.append(Delivery(notice, channel))
                elif getattr(notify, channel):
                    logger.error("notification dropped, as too many wait", extra={"job_id": notice.job})
        return bool(new)

    async def _deliver(self, now_s: float) -> bool:
        """Sends what is due, several at a time; whether anything was."""
        due = [one for one in self._pending if one.due_s <= now_s][:AT_ONCE]
        results = await asyncio.gather(*(self._attempt(one, now_s) for one in due))
        for one, after in zip(due, results, strict=True):
            row = self._pending.index(one)
            self._pending[row : row + 1] = [] if after is None else [after]
        return bool(due)

    async def _attempt(self, one: Delivery, now_s: float) -> Delivery | None:
        """One attempt; the delivery to try again, or None."""
        extra: dict[str, Any] = {"job_id": one.notice.job, "channel": one.channel, "kind": one.notice.kind}
        try:
            async with asyncio.timeout(3 * self._settings.timeout_s):
                await (self._post(one) if one.channel == "webhook" else self._mail(one))
        except (InvalidInput, DeliveryFailed, JobGone, TimeoutError, OSError, smtplib.SMTPException) as error:
            extra |= {"detail": str(error)[:_DETAIL_MAX] or "no answer in time", "attempts": one.attempts + 1}
            is_final = isinstance(error, InvalidInput | JobGone) or (
                isinstance(error, DeliveryFailed) and error.is_final
            )
            if is_final or now_s - one.notice.now_s > GIVE_UP_S:
                logger.error("notification not delivered", extra=extra)
                return None
            logger.warning("notification will be sent again", extra=extra)
            wait_s = min(FIRST_RETRY_S * 2 ** min(one.attempts, 20), RETRY_S_MAX)
            return replace(one, attempts=one.attempts + 1, due_s=now_s + wait_s)
        logger.info("notification sent", extra=extra)
        return None

    def _content(self, one: Delivery) -> dict[str, Any]:
        scheduler, notice = self._scheduler, one.notice
        (status,) = self._jobs.statuses([notice.job])
        return {
            "version": 1,
            "id": f"{scheduler.cluster_id}-{notice.id}",
            "event": notice.kind,
            "time_s": scheduler.wall_s(notice.now_s),
            "cluster": scheduler.name,
            "job": notice.job,
            "name": name_of(scheduler.core.jobs.by_serial.specs[notice.job].id),
            "owner": status.owner,
            "lease": notice.lease,
            "state": status.state.name.lower(),
            "detail": status.detail,
            "reason": status.reason,
            "steps_done": status.steps_done,
            "steps_total": status.steps_total,
        }

    async def _post(self, one: Delivery) -> None:
        import aiohttp  # only where it is used: it takes long to load

        check_notify(self._settings, self._scheduler.core.jobs.by_serial.specs[one.notice.job])
        content = self._content(one)
        limit = aiohttp.ClientTimeout(total=self._settings.timeout_s)
        headers = {"Idempotency-Key": content["id"], "User-Agent": "gavel"}
        url = self._scheduler.core.jobs.by_serial.specs[one.notice.job].notify.webhook
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as session,
                session.post(url, json=content, headers=headers, allow_redirects=False) as answer,
            ):
                status = answer.status
        except aiohttp.ClientError as error:
            raise DeliveryFailed(str(error), is_final=False) from None
        if not 200 <= status < 300:
            is_final = 300 <= status < 500 and status not in _TRY_AGAIN
            raise DeliveryFailed(f"the webhook answered {status}", is_final=is_final)

    async def _mail(self, one: Delivery) -> None:
        check_notify(self._settings, self._scheduler.core.jobs.by_serial.specs[one.notice.job])
        content = self._content(one)
        message = EmailMessage()
        message["From"] = self._settings.smtp_from
        message["To"] = self._scheduler.core.jobs.by_serial.specs[one.notice.job].notify.mail
        message["Subject"] = f"[{content['cluster']}] job {content['job']} ({content['name']}): {content['state']}"
        message["Message-ID"] = f"<{content['id']}@gavel>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content("\n".join(f"{name}: {value}" for name, value in content.items()) + "\n")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, _send_mail, self._settings, message)


def _send_mail(settings: NotificationSettings, message: EmailMessage) -> None:
    """Sends one message, in a thread; every call on the connection has a time limit."""
    host, _, port = settings.smtp.rpartition(":")
    kind: Any = smtplib.SMTP_SSL if settings.smtp_security == "tls" else smtplib.SMTP
    with kind(host, int(port), timeout=settings.timeout_s) as server:
        if settings.smtp_security == "starttls":
            server.starttls(context=ssl.create_default_context())
        if settings.smtp_user:
            password = Path(settings.smtp_password_file).read_text(encoding="utf-8").strip()
            server.login(settings.smtp_user, password)
        server.send_message(message)
