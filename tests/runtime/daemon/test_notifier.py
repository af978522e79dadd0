"""Notifications by a real scheduler to a real web server and a real mail server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MessageHandler

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, encode
from gavelpy.mechanism.events import JobSubmitted
from gavelpy.model.job import JobId, JobSpec
from gavelpy.model.notify import Notify
from gavelpy.runtime.daemon import notifier
from gavelpy.runtime.daemon.config_sections import NotificationSettings
from gavelpy.runtime.local_cluster import SCHEDULER, LocalCluster, LocalNode, free_port, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.cluster import patiently, submit

ALL = ("end", "failure", "preemption")


@dataclass(eq=False)
class Receiver:
    """A web server that answers with these statuses, then with 200, and records what it receives."""

    statuses: list[int] = field(default_factory=list)
    received: list[dict[str, Any]] = field(default_factory=list)  # Any: JSON values
    keys: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?secret=1"

    def events(self) -> list[tuple[str, str, str]]:
        return [(one["name"], one["event"], one["state"]) for one in self.received]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = found.statuses.pop(0) if found.statuses else 200
            found.received.append(body)
            found.keys.append(self.headers["Idempotency-Key"])
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


class Mailbox(MessageHandler):
    """Records messages."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    def handle_message(self, message: Message) -> None:
        self.messages.append(message)


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    box, port = Mailbox(), free_port()
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    yield box, port
    controller.stop()


def settings_for(receiver: Receiver, **more: Any) -> dict[str, dict[str, Any]]:
    return {
        "notifications": {"webhook_hosts": [f"127.0.0.1:{receiver.port}"], **more},
        "mechanism": {"failures_max": 2, "retry_s": 0.1, "retry_max_s": 0.2},
    }


def job(name: str, command: str, receiver: Receiver, *kinds: str, mail: str = "") -> pb.JobDescription:
    notify = pb.Notify(kinds=kinds or ALL, webhook=receiver.url, mail=mail)
    return pb.JobDescription(
        name=name,
        command=command,
        steps_total=5.0,
        rates_steps_per_s={"v100": 5.0},
        working_directory="/",
        notify=notify,
    )


def test_webhook_and_mail_arrive_once_also_after_a_crash_of_the_scheduler(
    tmp_path: Path, receiver: Receiver, mailbox: tuple[Mailbox, int]
) -> None:
    box, port = mailbox
    mail = {"smtp": f"127.0.0.1:{port}", "smtp_security": "none", "smtp_from": "g@x.org", "mail_domains": ["x.org"]}
    with LocalCluster(tmp_path / "c", (LocalNode("n0", "v100:1"),), settings_for(receiver, **mail)) as cluster:
        cluster.start()
        submit(cluster, [job("good", "true", receiver, mail="ann@x.org")], "1")
        wait_until(lambda: bool(receiver.received and box.messages), "both have arrived")
        submit(cluster, [job("next", "true", receiver)], "next")  # it is sent after the first is recorded as sent
        wait_until(lambda: ("next", "end", "finished") in receiver.events(), "the next has arrived")
        cluster.kill(SCHEDULER)
        cluster.start_scheduler()
        submit(cluster, [job("bad", "sh -c 'exit 3'", receiver)], "2")
        wait_until(lambda: ("bad", "end", "failed") in receiver.events(), "the second has arrived")

    assert receiver.events()[0] == ("good", "end", "finished")
    assert [name for name, _, _ in receiver.events()].count("good") == 1
    assert receiver.events()[-1] == ("bad", "end", "failed")
    assert receiver.keys == [one["id"] for one in receiver.received]
    assert [(one["To"], one["Subject"]) for one in box.messages] == [("ann@x.org", "[local] job 0 (good): finished")]


def test_pending_notification_survives_a_crash_and_is_tried_again(tmp_path: Path, receiver: Receiver) -> None:
    receiver.statuses[:] = [503]
    with LocalCluster(tmp_path / "c", (LocalNode("n0", "v100:1"),), settings_for(receiver)) as cluster:
        cluster.start()
        submit(cluster, [job("good", "true", receiver)], "1")
        wait_until(lambda: len(receiver.received) == 1, "the first attempt was refused")
        cluster.kill(SCHEDULER)
        cluster.start_scheduler()
        wait_until(lambda: len(receiver.received) == 2, "it was tried again")

    assert receiver.keys[0] == receiver.keys[1]
    assert receiver.received[1]["job"] == 0


def test_receiver_that_is_no_longer_allowed_does_not_stop_the_others(tmp_path: Path, receiver: Receiver) -> None:
    receiver.statuses[:] = [503]
    other = Receiver(port=free_port())  # never listens
    both = {"notifications": {"webhook_hosts": [f"127.0.0.1:{receiver.port}", f"127.0.0.1:{other.port}"]}}
    with LocalCluster(tmp_path / "c", (LocalNode("n0", "v100:1"),), both) as cluster:
        cluster.start()
        submit(cluster, [job("removed", "true", other), job("good", "true", receiver)], "1")
        wait_until(lambda: len(receiver.received) == 1, "the first attempt was refused")
        cluster.kill(SCHEDULER)
        text = cluster.config.read_text(encoding="utf-8")
        cluster.config.write_text(text.replace(f'"127.0.0.1:{other.port}"', '"elsewhere.example.org"'), "utf-8")
        cluster.start_scheduler()
        wait_until(lambda: len(receiver.received) == 2, "the other was tried again")
        log = cluster.log(SCHEDULER)

    assert "notification not delivered" in log
    assert "webhook must be on a host that the operator lists" in log


def test_redirects_are_not_followed_and_cancelled_jobs_have_ended(tmp_path: Path, receiver: Receiver) -> None:
    receiver.statuses[:] = [302]
    with LocalCluster(tmp_path / "c", (LocalNode("n0", "v100:1"),), settings_for(receiver)) as cluster:
        cluster.start()
        submit(cluster, [job("moved", "true", receiver)], "1")
        wait_until(lambda: len(receiver.received) == 1, "the redirect was answered")
        submit(cluster, [job("long", "sleep 600", receiver)], "2")
        request = pb.CancelJobsRequest(jobs=["long"])
        patiently(cluster, lambda client: client.CancelJobs(request, timeout=30.0))
        wait_until(lambda: len(receiver.received) == 2, "the end of the second has arrived")
        detail = patiently(cluster, lambda client: client.GetJob(pb.GetJobRequest(job="0"), timeout=30.0))

    assert receiver.events() == [("moved", "end", "finished"), ("long", "end", "cancelled")]
    assert detail.description.notify.webhook == f"http://127.0.0.1:{receiver.port}/***"


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("https://hooks.example.org/x", True),
        ("http://hooks.example.org/x", True),
        ("https://HOOKS.example.org:443/x", True),
        ("https://hooks.example.org:8443/x", False),
        ("http://other.example.org:8080/x", True),
        ("http://other.example.org/x", False),
        ("http://169.254.169.254/latest/meta-data", False),
        ("http://localhost:7077/", False),
        ("http://hooks.example.org.evil.org/", False),
    ],
)
def test_webhooks_reach_listed_hosts_only(url: str, is_allowed: bool) -> None:
    settings = NotificationSettings(webhook_hosts=("hooks.example.org", "other.example.org:8080"))
    spec = JobSpec(JobId("a"), 1.0, notify=Notify(("end",), url))

    expected: AbstractContextManager[object] = (
        nullcontext() if is_allowed else pytest.raises(InvalidInput, match="on a host that the operator lists")
    )
    with expected:
        notifier.check_notify(settings, spec)


def test_by_default_no_notification_is_allowed() -> None:
    for notify in (Notify(("end",), "https://a.org/"), Notify(("end",), mail="ann@a.org")):
        with pytest.raises(InvalidInput, match="that the operator lists"):
            notifier.check_notify(NotificationSettings(), JobSpec(JobId("a"), 1.0, notify=notify))


@pytest.mark.parametrize(
    ("kinds", "webhook", "mail", "message"),
    [
        (("start",), "https://a.org/", "", "notify must be of end, failure, preemption"),
        (("end", "end"), "https://a.org/", "", "each once"),
        (("end",), "", "", "notify needs webhook or mail"),
        ((), "https://a.org/", "", "webhook and mail need notify"),
        (("end",), "ftp://a.org/", "", "webhook must be a URL"),
        (("end",), "https://user:pw@a.org/", "", "without a user name"),
        (("end",), "https://a.org/\nx", "", "webhook must be a URL"),
        (("end",), "", "ann@a.org\nBcc: bob@b.org", "mail must be an address"),
        (("end",), "", "ann", "mail must be an address"),
    ],
)
def test_meaningless_request_is_refused(kinds: tuple[str, ...], webhook: str, mail: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Notify(kinds, webhook, mail)


def test_request_is_in_the_journal() -> None:
    spec = JobSpec(JobId("a"), 1.0, notify=Notify(("end", "failure"), "https://a.org/", "ann@a.org"))
    _, event = decode(encode(JobSubmitted(spec), 5.0))

    assert isinstance(event, JobSubmitted)
    assert event.spec == spec
