"""`gavel run` and `gavel forward`: an interactive job with a terminal, and TCP ports of a job on this machine."""

from __future__ import annotations

import os
import queue
import re
import select
import shlex
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import job_files as f
from gavelpy.cli import job_texts as t
from gavelpy.cli import options as o
from gavelpy.cli.output import FAILED, Output, echo_json, notify
from gavelpy.errors import CallFailed, GavelError, InvalidInput, SchedulerUnreachable

if TYPE_CHECKING:
    from gavelpy.runtime.client.connection import Client
    from gavelpy.runtime.wire import client_pb2

AWAY_S = 60.0  # the job ends when no client is attached for so long
_EXPECTED_S = 28_800.0  # of a session, unless given: an estimate for the policy, and no limit
_READ_BYTES = 16 << 10
_ATTACH_AGAIN_S = 0.5
_STATUS_EVERY_S = 1.0
_PORTS = re.compile(r"(?:(\d{1,5}):)?(\d{1,5})")
_SIZE = struct.Struct("HHHH")

ImageOption = Annotated[
    str, typer.Option(metavar="IMAGE", help="Run the command in a container of this image. Default command: /bin/sh.")
]


def run(
    command: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="Default: your shell.")] = None,
    pty: Annotated[
        bool, typer.Option("--pty", help="Attach this terminal to the job (the only kind of job that run starts).")
    ] = False,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the job. Default: job-NUMBER.")] = "",
    gpus: Annotated[int, typer.Option(metavar="N", parser=o.whole(1, o.GPUS_MAX), help="GPUs, on one node.")] = 1,
    priority: Annotated[str, typer.Option(metavar="CLASS", help="Priority class. Default: normal.")] = "",
    gpu_type: Annotated[
        list[str] | None, typer.Option("--gpu-type", metavar="TYPE", help="GPU type. Repeatable. Default: any.")
    ] = None,
    expected: Annotated[
        float,
        typer.Option(
            "--expected",
            metavar="S",
            parser=o.number(1),
            help="Expected duration, for forecasts and policies; no limit.",
        ),
    ] = _EXPECTED_S,
    directory: Annotated[
        Path | None, typer.Option("--directory", "-C", metavar="DIR", help="Working directory. Default: current.")
    ] = None,
    environment: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="Environment variable. Repeatable.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="NAME[=VARIABLE]", help="Set a variable to one of your secrets. Repeatable."),
    ] = None,
    venv: Annotated[str, typer.Option(metavar="DIR", help="Virtual environment to activate, by its path.")] = "",
    conda: Annotated[str, typer.Option(metavar="DIR", help="Conda environment to activate, by its path.")] = "",
    image: ImageOption = "",
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> int:
    """Run a command on allocated GPUs with this terminal attached; the exit code is that of the command.

    The job is not preempted. It ends with the command, and 60 s after this client has gone away. Ctrl-C goes to the
    command; while the job waits for GPUs, it cancels the job.

    \b
    Examples:
      gavel run --pty
      gavel run --pty --gpus 2 --gpu-type v100 -- python -m pdb train.py
      gavel run --pty --image docker.io/library/python:3.12 -- bash
    """
    if not pty:
        raise InvalidInput("run needs --pty, got none; for a job without a terminal use gavel submit --wait")
    where = str((directory or Path.cwd()).absolute())
    with c.connected(scheduler, token_file, timeout) as client:
        types = gpu_type or [found.gpu_type for found in client.cluster().types]
        job = f.JobTemplate(
            command=shlex.join(command or ["/bin/sh" if image else os.environ.get("SHELL", "/bin/sh")]),
            steps_total=expected,
            name=name,
            gpus=gpus,
            priority=priority,
            rates_steps_per_s=dict.fromkeys(types, 1.0),
            working_directory=where,
            environment={"TERM": os.environ.get("TERM", "dumb"), **t.pairs("--env", environment or [], "=")},
            secrets=t.secrets(secret or []),
            one_process_a_node=True,
            venv=venv and f.absolute(Path.cwd(), venv, "--venv"),
            conda=conda and f.absolute(Path.cwd(), conda, "--conda"),
            image=image,
        ).message()
        job.interactive = True
        number = str(client.submit([job]).jobs[0].job)
        return _session(client, number)


def forward(
    job: c.JobArgument,
    ports: Annotated[
        list[str], typer.Argument(metavar="[LOCAL:]REMOTE...", help="Ports: on this machine, and of the job.")
    ],
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Forward TCP ports of this machine's loopback to ports that a running job listens on, until Ctrl-C.

    The connections use those of the scheduler and its agents: no port of the node must be reachable. A port is
    forwarded only to a process of the job, on the job's first node.

    \b
    Examples:
      gavel forward notebook 8888
      gavel forward 12 6007:6006
    """
    pairs = [_ports(text) for text in ports]
    with c.connected(scheduler, token_file, timeout) as client:
        found = _status(client, job)
        listeners = [(_listener(local), remote) for local, remote in pairs]
        if output is Output.JSON:
            rows = [{"local": _port_of(listener), "remote": remote} for listener, remote in listeners]
            echo_json({"job": found.job, "ports": rows})
        else:
            for listener, remote in listeners:
                notify(
                    f"127.0.0.1:{_port_of(listener)} is port {remote} of job {found.job} ({found.name}); Ctrl-C ends it"
                )
        _serve(client, str(found.job), listeners)


# Sessions.


def _session(client: Client, job: str) -> int:
    """Attaches until the job is over; returns its exit code."""
    keys: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    try:
        _wait_until_it_runs(client, job)
    except KeyboardInterrupt:
        client.cancel([job])
        raise
    away_s = 0.0
    with _raw_terminal(keys):
        while True:
            try:
                code = _attached(client, job, keys)
            except (SchedulerUnreachable, CallFailed) as error:
                away_s = away_s or time.monotonic()
                if time.monotonic() - away_s > AWAY_S:
                    raise
                runs = _runs(client, job)
                if runs:
                    sys.stderr.write(f"\r\nnote: {error}; attaching again\r\n")
            else:
                away_s = 0.0
                if code is not None:
                    return code if code >= 0 else 128 - code
                runs = _runs(client, job)
            if not runs:
                found = _status(client, job)
                sys.stderr.write(f"\r\njob {found.job} is over: {found.detail}\r\n")
                return FAILED
            time.sleep(_ATTACH_AGAIN_S)


def _wait_until_it_runs(client: Client, job: str) -> None:
    """Waits for GPUs, and shows each new reason on stderr. Raises KeyboardInterrupt on Ctrl-C."""
    from gavelpy.runtime.client.connection import is_over
    from gavelpy.runtime.wire import client_pb2

    shown, interrupted = "", threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())  # within a call an exception can be lost
    try:
        while not interrupted.wait(_STATUS_EVERY_S / 5):
            found = _status(client, job)
            if found.state == client_pb2.JOB_STATE_RUNNING or is_over(found):
                return
            if found.reason and found.reason_kind != shown:
                shown = found.reason_kind
                notify(f"job {job} is waiting: {found.reason}")
    finally:
        signal.signal(signal.SIGINT, before)
    raise KeyboardInterrupt


def _runs(client: Client, job: str) -> bool:
    from gavelpy.runtime.client.connection import is_over

    try:
        return not is_over(_status(client, job))
    except SchedulerUnreachable:
        return True


def _status(client: Client, job: str) -> client_pb2.Job:
    """The state of a job, without the forecast that its explanation would take."""
    (found,) = client.wait([job], wait_s=0.0).jobs
    return found


def _attached(client: Client, job: str, keys: queue.SimpleQueue[bytes | None]) -> int | None:
    """One connection to the terminal; the exit code if the session has ended."""
    from gavelpy.runtime.wire import client_pb2

    over = threading.Event()

    def requests() -> Iterator[client_pb2.OpenTunnelRequest]:
        yield client_pb2.OpenTunnelRequest(job=job)
        size = (0, 0)
        while not over.is_set():
            if (now := _window()) != size:
                size = now
                yield client_pb2.OpenTunnelRequest(rows=size[0], columns=size[1])
            try:
                data = keys.get(timeout=0.1)
            except queue.Empty:
                continue
            yield client_pb2.OpenTunnelRequest(data=data or b"", last=data is None)

    code = None
    try:
        for message in client.tunnel(requests()):
            if message.data:
                _write_all(sys.stdout.fileno(), message.data)
            if message.HasField("exit_code"):
                code = message.exit_code
    finally:
        over.set()
    return code


@contextmanager
def _raw_terminal(keys: queue.SimpleQueue[bytes | None]) -> Iterator[None]:
    """Passes keys on while the context lasts, without the terminal's own editing and signals."""
    import termios  # not on every system that the other commands run on
    import tty

    source = sys.stdin.fileno()
    before = termios.tcgetattr(source) if os.isatty(source) else None
    if before is not None:
        tty.setraw(source, termios.TCSADRAIN)  # keeps what was typed while the job waited
    over = threading.Event()
    reading = threading.Thread(target=_read_keys, args=(source, keys, over), daemon=True)
    reading.start()
    try:
        yield
    finally:
        over.set()
        if before is not None:
            termios.tcsetattr(source, termios.TCSADRAIN, before)


def _read_keys(source: int, keys: queue.SimpleQueue[bytes | None], over: threading.Event) -> None:
    while not over.is_set():
        if not select.select([source], (), (), 0.2)[0]:
            continue
        try:
            content = os.read(source, _READ_BYTES)
        except OSError:
            content = b""
        keys.put(content or None)
        if not content:
            return


def _window() -> tuple[int, int]:
    """(rows, columns) of this terminal; (0, 0) without one."""
    import fcntl
    import termios

    try:
        found = fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, bytes(_SIZE.size))
    except OSError:
        return 0, 0
    rows, columns, _, _ = _SIZE.unpack(found)
    return int(rows), int(columns)


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


# Ports.


def _ports(text: str) -> tuple[int, int]:
    """`8888` as (8888, 8888), `6007:6006` as (6007, 6006); local port 0 = any that is free."""
    match = _PORTS.fullmatch(text)
    remote = int(match[2]) if match else 0
    local = int(match[1]) if match and match[1] else remote
    if not 1 <= remote <= 65_535 or local > 65_535:
        raise InvalidInput(f"ports must look like 8888 or 6007:6006, each at most 65535, got {text[:60]!r}")
    return local, remote


def _listener(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        raise InvalidInput(f"local port {port} cannot be used: {error.strerror}") from None
    listener.listen(64)
    return listener


def _port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def _serve(client: Client, job: str, listeners: Sequence[tuple[socket.socket, int]]) -> None:
    """Accepts connections until interrupted or the job is over."""
    remote_of = dict(listeners)
    while _runs(client, job):
        ready, _, _ = select.select(list(remote_of), (), (), _STATUS_EVERY_S)
        for listener in ready:
            connection, _ = listener.accept()
            work = (client, job, remote_of[listener], connection)
            threading.Thread(target=_forward_connection, args=work, daemon=True).start()
    notify(f"job {job} is over")


def _forward_connection(client: Client, job: str, port: int, connection: socket.socket) -> None:
    """One connection, in its own thread; errors end it and are shown."""
    from gavelpy.runtime.wire import client_pb2

    def requests() -> Iterator[client_pb2.OpenTunnelRequest]:
        yield client_pb2.OpenTunnelRequest(job=job, port=port)
        with suppress(OSError):
            while content := connection.recv(_READ_BYTES):
                yield client_pb2.OpenTunnelRequest(data=content)
        yield client_pb2.OpenTunnelRequest(last=True)

    try:
        for message in client.tunnel(requests()):
            connection.sendall(message.data)
    except GavelError as error:
        notify(f"note: port {port}: {error}")
    except OSError:
        return  # the program on this machine has closed the connection
    finally:
        with connection, suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # ends the thread that waits for its bytes, too
