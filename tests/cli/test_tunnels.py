"""`gavel run --pty` on real terminals, and `gavel forward` to real servers, through a scheduler with two users."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import SCHEDULER, LocalCluster, LocalNode, processes_below, wait_until
from gavelpy.runtime.security.tokens import Role, TokenFile
from tests.cli.commands import Gavel
from tests.cli.test_cluster import FAST
from tests.cli.test_main import RUN

PATIENCE_S = 60.0  # on a busy machine; every wait returns as soon as it can
USERS = {"alice": Role.USER, "bob": Role.USER, "root": Role.ADMIN, "n1": Role.NODE}
SERVER = """
import http.server, os
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"hello " * 50_000)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
print("port", server.server_port, flush=True)
server.serve_forever()
"""


class ClusterWithTokens(LocalCluster):
    """A cluster whose scheduler refuses calls without a token, also those that check whether it answers."""

    def is_serving(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
            return True
        return False


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tokens of the scheduler, and a file for each user."""
    directory = tmp_path_factory.mktemp("tokens")
    known = TokenFile(directory / "tokens.json")
    for name, role in USERS.items():
        secret = known.create(name, role, now_s=time.time())
        (directory / name).write_text(secret)
    return directory


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, tokens: Path) -> Iterator[LocalCluster]:
    settings = {**FAST, "security": {"tokens": str(tokens / "tokens.json")}}
    with (
        pytest.MonkeyPatch.context() as patch,
        ClusterWithTokens(tmp_path_factory.mktemp("cluster"), (LocalNode("n1", "v100:1"),), settings) as started,
    ):
        config = tokens / "node.toml"  # users of this test have no accounts
        config.write_text(f'[node]\nrun_as = "agent"\ntoken_file = "{tokens / "n1"}"\n')
        patch.setenv("GAVEL_NODE_CONFIG", str(config))
        started.start_scheduler()
        started.start_agent(started.nodes[0])
        yield started


@pytest.fixture
def cli(gavel: Gavel, cluster: LocalCluster, tokens: Path, monkeypatch: pytest.MonkeyPatch) -> Gavel:
    """The command line of alice."""
    monkeypatch.setenv("GAVEL_SCHEDULER", cluster.address)
    monkeypatch.setenv("GAVEL_TIMEOUT_S", "60")  # on a busy machine
    monkeypatch.setenv("GAVEL_TOKEN_FILE", str(tokens / "alice"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(gavel.folder))
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.setenv("PS1", "")
    wait_until(lambda: '"state": "up"' in gavel("nodes", "-o", "json").out, "the node is up")
    return gavel


@dataclass
class Screen:
    """A command on a terminal of its own."""

    process: subprocess.Popen[bytes]
    master: int
    text: str = field(default="")

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def shows(self, wanted: str) -> None:
        """Waits until the text is on the screen."""
        ends_s = time.monotonic() + PATIENCE_S
        while not re.search(wanted, self.text):
            assert time.monotonic() < ends_s, self.text
            self._read(1.0)

    def code(self) -> int:
        """The exit code, once the command has ended."""
        ends_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < ends_s, self.text
            self._read(0.1)
        self._read(0.1)
        return self.process.returncode

    def _read(self, timeout_s: float) -> None:
        if select.select([self.master], (), (), timeout_s)[0]:
            try:
                self.text += os.read(self.master, 1 << 16).decode(errors="replace")
            except OSError:  # the last process has closed the terminal
                time.sleep(0.05)


@contextmanager
def screen(*arguments: str) -> Iterator[Screen]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
    command = ["setsid", "--ctty", "--wait", *RUN, *arguments]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    try:
        yield Screen(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def job_named(cli: Gavel, name: str) -> dict[str, object]:
    found: list[dict[str, object]] = cli("status", name, "-o", "json").json["jobs"]
    return found[0]


def test_shell_on_a_gpu_with_size_ctrl_c_and_exit_code(cli: Gavel) -> None:
    with screen("run", "--pty", "--name", "shell") as shown:
        shown.type("stty size; echo gpu=$CUDA_VISIBLE_DEVICES\n")
        shown.shows("31 97")
        shown.shows(r"gpu=\d")
        shown.type("sh -c 'echo in the fore\"\"ground; exec sleep 600'\n")
        shown.shows("in the foreground")
        shown.type("\x03")
        fcntl.ioctl(shown.master, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 45, 0, 0))
        time.sleep(0.5)
        shown.type("stty size\n")
        shown.shows("12 45")
        running = job_named(cli, "shell")
        shown.type("exit 7\n")
        code = shown.code()

    assert code == 7
    assert (running["state"], running["preemptible"]) == ("running", False)
    wait_until(lambda: job_named(cli, "shell")["state"] == "finished", "the job is over")
    assert job_named(cli, "shell")["restarts"] == 0


def test_command_with_piped_input_and_output(cli: Gavel) -> None:
    command = [*RUN, "run", "--pty", "--", "sh", "-c", "read word; echo got $word; exit 5"]

    done = subprocess.run(command, input=b"something\n", capture_output=True, timeout=PATIENCE_S, check=False)

    assert done.returncode == 5, done.stderr
    assert b"got something" in done.stdout


def test_command_that_ends_at_once_shows_its_output_and_exit_code(cli: Gavel) -> None:
    command = [*RUN, "run", "--pty", "--", "sh", "-c", "echo short; exit 6"]

    done = subprocess.run(command, input=b"", capture_output=True, timeout=PATIENCE_S, check=False)

    assert (done.returncode, b"short" in done.stdout) == (6, True), done.stderr


def workers(cluster: LocalCluster) -> int:
    """Number of the scheduler's worker processes: one solves, and a second one starts with the first forecast."""
    scheduler, found = str(cluster.processes[SCHEDULER].pid), 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            found += parent == scheduler and b"spawn_main" in (process / "cmdline").read_bytes()
    return found


def test_ctrl_c_while_waiting_cancels_the_job(cli: Gavel, cluster: LocalCluster) -> None:
    blocker = cli("submit", "--name", "blocker", "--steps", "1e6", "--rate", "v100:1", "--", "sleep", "600")
    assert blocker.code == 0, blocker.err
    wait_until(lambda: job_named(cli, "blocker")["state"] == "running", "the only GPU is in use")
    with screen("run", "--pty", "--name", "late") as shown:
        shown.shows("job [0-9]+ is waiting: ")
        shown.type("\x03")
        code = shown.code()

    assert code == 130, shown.text
    assert job_named(cli, "late")["state"] == "cancelled"
    assert cli("cancel", "blocker").code == 0
    assert workers(cluster) == 1  # a forecast at each look would cost more than the session


def test_session_survives_a_killed_client_for_a_while_and_another_users_attach_is_refused(
    cli: Gavel, cluster: LocalCluster, tokens: Path
) -> None:
    from gavelpy.errors import NotFound
    from gavelpy.runtime.client.connection import Client
    from gavelpy.runtime.client.settings import ClientSettings

    with screen("run", "--pty", "--name", "owned") as shown:
        shown.type("echo re''ady\n")
        shown.shows("ready")
        number, over = str(job_named(cli, "owned")["job"]), threading.Event()
        for user in ("bob", "alice"):
            settings = ClientSettings(scheduler=cluster.address, token=(tokens / user).read_text())
            with Client(settings) as client:
                request = opening(number, over)
                if user == "bob":
                    with pytest.raises(NotFound, match="one of yours"):
                        next(client.tunnel(request))
                else:
                    assert next(client.tunnel(request)).data == b""
        os.killpg(os.tcgetpgrp(shown.master), signal.SIGKILL)
    over.set()
    assert job_named(cli, "owned")["state"] == "running"
    assert cli("cancel", "owned").code == 0
    wait_until(lambda: not processes_below(cluster.directory / "n1"), "no process is left")


def test_port_of_a_job_is_forwarded_and_no_other_port_of_the_node(cli: Gavel, cluster: LocalCluster) -> None:
    submitted = cli("submit", "--name", "web", "--steps", "1e6", "--rate", "v100:1", "--", sys.executable, "-c", SERVER)
    assert submitted.code == 0, submitted.err
    wait_until(lambda: "port " in cli("logs", "web").out, "the server listens")
    port = cli("logs", "web").out.split()[1]
    with screen("forward", "web", f"0:{port}", f"0:{cluster.port}") as shown:
        shown.shows(rf"127\.0\.0\.1:\d+ is port {cluster.port} ")
        local, refused = (int(found) for found in re.findall(r"127\.0\.0\.1:(\d+) is port", shown.text))
        answers = [fetched(local) for _ in range(3)]
        nothing = fetched(refused)
        shown.shows(rf"no process of job \d+ listens on port {cluster.port}")
        cli("cancel", "web")
        shown.shows("is over")

    assert [answer.partition(b"\r\n\r\n")[2] for answer in answers] == [b"hello " * 50_000] * 3
    assert nothing == b""


def opening(job: str, over: threading.Event) -> Iterator[object]:
    """The first request of a client that sends nothing until it is over."""
    from gavelpy.runtime.wire import client_pb2 as pb

    yield pb.OpenTunnelRequest(job=job)
    over.wait()


def fetched(port: int) -> bytes:
    """The whole answer of a server on this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        found = b""
        try:
            while content := connection.recv(1 << 16):
                found += content
        except ConnectionResetError:
            return found
        return found


@pytest.mark.parametrize("ports", ["0", "x", "1:2:3", "70000", "70000:80", "80:0"])
def test_ports_that_mean_nothing_are_refused(gavel: Gavel, ports: str) -> None:
    answer = gavel("forward", "job", ports)

    assert answer.code == 2
    assert "ports must look like 8888 or 6007:6006" in answer.err


def test_run_without_a_terminal_is_refused(gavel: Gavel) -> None:
    answer = gavel("run", "--", "true")

    assert answer.code == 2
    assert "run needs --pty" in answer.err
