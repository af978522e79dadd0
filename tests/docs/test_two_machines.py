"""Every line of docs/two-machines.md runs, with real processes: the head on 127.0.0.1, the worker on 127.0.0.2.

The two machines are two shells. Each has its own /etc/gavel, /var/lib and home below the test's directory, `ssh` runs
its command there, and `scp` copies from one to the other; everything else is as written.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import free_port, processes_below
from tests.conftest import PROJECT

PAGE = (PROJECT / "docs" / "two-machines.md").read_text(encoding="utf-8")
PATIENCE_S = 150.0  # on a busy machine; about 20 s otherwise
ADDRESS = {"head": "127.0.0.1", "worker": "127.0.0.2"}
PLACES = re.compile(r"(?<![\w.])(/etc/gavel|/var/lib|/srv/gavel)\b")
SSH = '#!/bin/bash\nshift\nfor word in "$@"; do words+=("${word//\\/etc/$WORKER/etc}"); done\n"${words[@]}"\n'
SCP = '#!/bin/bash\ncp "${@:1:$#-1}" "$WORKER/${!##*:/}"\n'
SHARED = "/srv"


def blocks() -> list[tuple[str, str]]:
    """(machine, commands) in the page's order: the last heading, or sentence "On the worker", names the machine."""
    found, machine = [], ""
    for indented, plain in re.findall(r"((?:^    .*\n|^\n(?=    ))+)|(^\S.*\n)", PAGE, re.MULTILINE):
        if indented.strip():
            found.append((machine, re.sub(r"^    ", "", indented, flags=re.MULTILINE).strip("\n")))
        elif named := re.match(r"(?:## \d\. |On the )(head|worker)", plain, re.IGNORECASE):
            machine = named[1].lower()
        elif plain.startswith("## 5"):
            machine = "head"
    return found


class Machine:
    """A shell with its own root directory."""

    def __init__(self, name: str, folder: Path, port: int, http_port: int) -> None:
        self.root = folder / name
        self.shared = folder / "shared"
        self.ports = {":7077": f":{port}", "[scheduler]\n": f'[scheduler]\nhttp_listen = "127.0.0.1:{http_port}"\n'}
        (self.root / "home").mkdir(parents=True)
        bin_directory = Path(sys.executable).parent
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GAVEL_", "XDG_"))}
        own = {
            "PATH": f"{folder / 'bin'}:{bin_directory}:{os.environ['PATH']}",
            "HOME": str(self.root / "home"),
            "WORKER": str(folder / "worker"),
            "GAVEL_TOKENS": str(self.root / "etc/gavel/tokens.json"),
            "GAVEL_TLS_DIR": str(self.root / "etc/gavel/tls"),
            "GAVEL_TIMEOUT_S": "60",
        }
        reading, writing = os.pipe()
        self.done = os.fdopen(reading)  # one line per block: its exit status
        self.say = f">&{writing}"
        with (self.root / "log").open("w") as log:
            self.shell = subprocess.Popen(
                ["bash"], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, text=True,
                env=kept | own, cwd=self.root, start_new_session=True, pass_fds=[writing],
            )  # fmt: skip
        os.close(writing)

    def run(self, commands: str) -> tuple[int, str]:
        """Runs commands as written, but in this machine's root; returns the last failure's exit status, and output."""
        assert self.shell.stdin is not None
        for old, new in self.ports.items():
            commands = commands.replace(old, new)
        for name, address in ADDRESS.items():
            commands = commands.replace({"head": "10.0.0.1", "worker": "10.0.0.2"}[name], address)
        commands = PLACES.sub(lambda found: self.place(found[1]), commands)
        commands = re.sub(r"(127\.0\.0\.2:)\S*(/etc/gavel/)", r"\1\2", commands)  # scp names the other machine's path
        commands = re.sub(r"(ssh \S+ mkdir -p )\S*(/etc/gavel)", r"\1\2", commands)
        self.shell.stdin.write(f"failed=0; trap 'failed=$?' ERR\n{commands}\necho $failed {self.say}\n")
        self.shell.stdin.flush()
        code = int(self.done.readline())
        return code, self.printed()

    def close(self) -> None:
        """Kills the shell and the daemons that it started; jobs are killed by their directory."""
        os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.communicate()
        self.done.close()

    def printed(self) -> str:
        """All output so far, and the logs of the daemons."""
        return (self.root / "log").read_text()

    def place(self, path: str) -> str:
        """The path on this machine; /srv is the file system that both mount."""
        return f"{self.shared if path.startswith(SHARED) else self.root}{path}"


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that the account of a job can pass through, as pytest's own are not."""
    directory = Path(tempfile.mkdtemp(prefix="gavel-page-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def machines(open_path: Path) -> Iterator[dict[str, Machine]]:
    tmp_path = open_path
    (tmp_path / "bin").mkdir()
    for name, content in (("ssh", SSH), ("scp", SCP)):
        (tmp_path / "bin" / name).write_text(content)
        (tmp_path / "bin" / name).chmod(0o755)
    port, http_port = free_port(), free_port()
    both = {name: Machine(name, tmp_path, port, http_port) for name in ADDRESS}

    def too_long(*_: object) -> None:
        printed = "\n".join(machine.printed() for machine in both.values())
        raise TimeoutError(f"the page took more than {PATIENCE_S:g} s\n{printed}")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    yield both
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    for machine in both.values():
        machine.close()
    for number in processes_below(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def test_page_names_the_machine_of_every_block() -> None:
    assert {machine for machine, _ in blocks()} == {"head", "worker"}
    assert len(blocks()) == 8


def test_every_line_of_the_page_runs(machines: dict[str, Machine]) -> None:
    for machine, commands in blocks():
        code, out = machines[machine].run(commands)
        assert code == 0, f"{machine}:\n{commands}\n{out}"

    printed = machines["head"].printed()
    assert re.search(r"^worker +.*v100", printed, re.MULTILINE), printed
    assert re.search(r"hello from the worker$", printed, re.MULTILINE), printed
    assert re.search(r"hello again$", printed, re.MULTILINE), printed
    keys = [*machines["head"].root.rglob("*.key"), *machines["worker"].root.rglob("*.key")]
    assert len(keys) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
