"""Real shims give an interactive job a terminal, to which clients attach."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gavelpy.runtime.lease_files import LeaseOutcome, ShimPhase, read_shim
from gavelpy.runtime.shim.supervisor import LINGER_S
from gavelpy.runtime.terminal_frames import (
    DATA,
    EXIT,
    FrameReader,
    data_frame,
    exit_frame,
    exit_of,
    socket_path,
    window_frame,
)
from tests.runtime.shim.driver import DEADLINE_S, Shim, processes_left, started, wait_for

SHELL = ("/bin/sh", "-i")
QUIET = {"PS1": "", "ENV": "", "TERM": "dumb"}
FAR_S = 600.0
NOBODY = 65_534


class Attached:
    """A client of a terminal."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.reader = FrameReader()
        self.text = ""
        self.code: int | None = None

    def type(self, text: str) -> None:
        self.connection.sendall(data_frame(text.encode()))

    def reads(self, wanted: str) -> None:
        """Reads until the text has appeared."""
        while wanted not in self.text:
            assert self.read(), f"{wanted!r} not in {self.text!r}"

    def read(self) -> bool:
        """Reads once; False at the end."""
        content = self.connection.recv(1 << 16)
        for kind, part in self.reader.feed(content):
            self.text += part.decode() if kind == DATA else ""
            self.code = exit_of(part) if kind == EXIT else self.code
        return bool(content)


@contextmanager
def attached(directory: Path) -> Iterator[Attached]:
    def connect() -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(DEADLINE_S)
        try:
            with socket_path(directory) as path:
                connection.connect(path)
        except OSError:
            connection.close()
            return None
        return connection

    with wait_for(connect) as connection:
        yield Attached(connection)


@contextmanager
def session(tmp_path: Path, away_s: float = FAR_S, argv: tuple[str, ...] = SHELL) -> Iterator[Shim]:
    with started(tmp_path / "lease", "", argv=argv, environment=QUIET, terminal_away_s=away_s, steps_total=5.0) as shim:
        yield shim


def test_shell_has_a_terminal_and_its_exit_code_arrives(tmp_path: Path) -> None:
    with session(tmp_path) as shim, attached(shim.directory) as client:
        client.type("tty && echo $((6*7))\n")
        client.reads("42\r\n")
        client.type("exit 3\n")
        while client.read():
            pass
        end = shim.end()

    assert "/dev/pts/" in client.text
    assert client.code == 3
    assert (end.outcome, end.exit_code, end.detail) == (LeaseOutcome.FINISHED, 3, "the session exited with code 3")
    assert end.steps_done == 5.0
    assert not processes_left(shim)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a program as another user")
def test_terminal_of_another_user_is_theirs(tmp_path: Path) -> None:
    options = {"argv": SHELL, "environment": QUIET, "terminal_away_s": FAR_S, "working_directory": "/"}
    with (
        started(tmp_path / "lease", "", uid=NOBODY, gid=NOBODY, **options) as shim,
        attached(shim.directory) as client,
    ):
        client.type('id -u; stat -c "owner %u" $(tty); echo as $((1+1)) user > $(tty)\n')
        client.reads("as 2 user")

    assert f"\n{NOBODY}\r\n" in client.text
    assert f"owner {NOBODY}" in client.text


def test_ctrl_c_ends_the_program_in_the_foreground_only(tmp_path: Path) -> None:
    """The program writes once it is in the foreground."""
    with session(tmp_path) as shim, attached(shim.directory) as client:
        client.type("sh -c 'echo re\"\"ady; exec sleep 600'\n")
        client.reads("ready\r\n")
        client.type("\x03")
        client.reads("^C")
        client.type("echo still he''re $?\n")
        client.reads("still here 130")


def test_program_sees_the_size_of_the_window(tmp_path: Path) -> None:
    with session(tmp_path) as shim, attached(shim.directory) as client:
        client.connection.sendall(window_frame(33, 101))
        client.type("stty size\n")
        client.reads("33 101")


def test_end_of_input_ends_the_shell(tmp_path: Path) -> None:
    with session(tmp_path) as shim, attached(shim.directory) as client:
        client.type("echo on''e\n")
        client.reads("one\r\n")
        client.connection.sendall(data_frame(b""))
        end = shim.end()

    assert (end.outcome, end.exit_code) == (LeaseOutcome.FINISHED, 0)


def test_second_client_continues_the_session_of_the_first(tmp_path: Path) -> None:
    with session(tmp_path) as shim:
        with attached(shim.directory) as client:
            client.type("word=secret; echo se''t\n")
            client.reads("set\r\n")
        with attached(shim.directory) as client:
            client.type("echo $word again\n")
            client.reads("secret again")


def test_newer_client_replaces_the_older(tmp_path: Path) -> None:
    with session(tmp_path) as shim, attached(shim.directory) as older:
        older.type("echo fir''st\n")
        older.reads("first\r\n")
        with attached(shim.directory) as newer:
            newer.type("echo ne''wer\n")
            newer.reads("newer\r\n")
            while older.read():
                pass

    assert "newer" not in older.text


def test_session_without_a_client_is_ended_and_counts_as_finished(tmp_path: Path) -> None:
    with session(tmp_path, away_s=0.5) as shim:
        with attached(shim.directory) as client:
            client.type("echo be''gun; (trap '' HUP; sleep 600) & sleep 600\n")
            client.reads("begun\r\n")
        end = shim.end()

    assert end.outcome is LeaseOutcome.FINISHED
    assert end.detail == "the session was ended, because no client was attached for 0.5 s"
    assert not processes_left(shim)


def has_run(shim: Shim) -> bool:
    state = read_shim(shim.directory)
    return state is not None and state.phase is ShimPhase.RUNNING and not processes_left(shim)


def test_client_that_attaches_after_the_end_gets_the_output_and_the_exit_code(tmp_path: Path) -> None:
    with session(tmp_path, argv=("/bin/sh", "-c", "echo short; exit 5")) as shim:
        wait_for(lambda: has_run(shim))
        with attached(shim.directory) as client:
            while client.read():
                pass
        end = shim.end()

    assert (client.text, client.code) == ("short\r\n", 5)
    assert (end.outcome, end.exit_code) == (LeaseOutcome.FINISHED, 5)


def test_ended_session_is_not_kept_for_a_client_if_its_lease_is_stopped(tmp_path: Path) -> None:
    with session(tmp_path, argv=("/bin/true",)) as shim:
        wait_for(lambda: has_run(shim))
        shim.order(stop=True)
        asked_s = time.monotonic()
        end = shim.end()

    # On a busy machine the shim may read the order before it sees the exit, and then the order counts.
    assert end.outcome in (LeaseOutcome.FINISHED, LeaseOutcome.STOPPED)
    assert time.monotonic() - asked_s < LINGER_S / 2


def test_stopped_session_is_not_finished(tmp_path: Path) -> None:
    with session(tmp_path) as shim, attached(shim.directory) as client:
        client.type("echo be''gun\n")
        client.reads("begun\r\n")
        shim.order(stop=True)
        end = shim.end()

    assert (end.outcome, end.detail) == (LeaseOutcome.STOPPED, "the session was stopped")


def test_much_output_arrives_whole(tmp_path: Path) -> None:
    with session(tmp_path) as shim, attached(shim.directory) as client:
        client.type("seq 100000; exit\n")
        while client.read():
            pass
        shim.end()

    numbers = [line for line in client.text.split("\r\n") if line.isdecimal()]
    assert numbers == [str(number) for number in range(1, 100_001)]


def test_client_that_breaks_the_protocol_is_disconnected(tmp_path: Path) -> None:
    with session(tmp_path) as shim, attached(shim.directory) as client:
        client.connection.sendall(b"?????garbage")
        with suppress(ConnectionResetError):  # it had more to read
            while client.read():
                pass
        with attached(shim.directory) as second:
            second.type("echo al''ive\n")
            second.reads("alive\r\n")


@pytest.mark.parametrize("size", [1, 2, 5, 7, 1000])
def test_messages_are_read_in_pieces_of_any_size(size: int) -> None:
    sent = data_frame(b"hello") + window_frame(1, 2) + data_frame(b"") + exit_frame(-9)
    reader = FrameReader()

    found = [frame for first in range(0, len(sent), size) for frame in reader.feed(sent[first : first + size])]

    assert [kind for kind, _ in found] == [b"d", b"w", b"d", b"x"]
    assert (found[0][1], exit_of(found[3][1])) == (b"hello", -9)
