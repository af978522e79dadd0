"""Interactive jobs in containers: a terminal of podman's and of Apptainer's, and its end with the lease."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gavelpy.runtime.lease_files import LeaseOutcome
from gavelpy.runtime.terminal_frames import window_frame
from tests.runtime.shim.container_place import Place, left_of
from tests.runtime.shim.driver import Shim, processes_left, started, wait_for
from tests.runtime.shim.test_containers import launch_with
from tests.runtime.shim.test_terminal import Attached, attached


def test_program_of_apptainer_has_the_terminal_of_the_session(tmp_path: Path) -> None:
    program, image = tmp_path / "apptainer", tmp_path / "image.sif"
    program.write_text(f"#!{sys.executable}\nimport os, sys\nprint(os.ttyname(0), os.ttyname(1), *sys.argv[-1:])\n")
    program.chmod(0o755)
    image.touch()
    software = {**launch_with("apptainer").software, "program": str(program), "image": str(image)}

    with (
        started(tmp_path / "lease", "", argv=("sh",), software=software, terminal_away_s=600.0) as shim,
        attached(shim.directory) as client,
    ):
        client.reads("sh\r\n")

    own, out, command = client.text.split()
    assert own == out
    assert own.startswith("/dev/pts/")
    assert command == "sh"


@contextmanager
def session(place: Place, tmp_path: Path) -> Iterator[tuple[Shim, Attached]]:
    """A shell with a terminal in a container, and a client of it."""
    environment = {"PS1": "", "ENV": "", "TERM": "dumb"}
    fields = place.launch("/bin/sh", "-i", environment=environment, terminal_away_s=600.0)
    with started(tmp_path, "", **fields) as shim, attached(shim.directory) as client:
        yield shim, client


def test_shell_in_a_container_has_the_terminal_of_its_client(place: Place, tmp_path: Path) -> None:
    with session(place, tmp_path) as (shim, client):
        client.type("tty && id -u && echo $((6*7))\n")
        client.reads("42\r\n")
        client.connection.sendall(window_frame(50, 101))
        client.type("while [ \"$(stty size)\" != '50 101' ]; do sleep 0.1; done; echo re''sized\n")
        client.reads("resized\r\n")
        client.type("sh -c 'echo re\"\"ady; exec sleep 600'\n")
        client.reads("ready\r\n")
        client.type("\x03")
        client.type("echo still he''re\n")
        client.reads("still here")
        client.type("exit 3\n")
        while client.read():
            pass
        end = shim.end()

    assert f"\n{place.account.pw_uid}\r\n" in client.text
    assert "/dev/pts/" in client.text
    assert client.code == 3
    assert (end.outcome, end.exit_code) == (LeaseOutcome.FINISHED, 3)
    assert left_of(place) == []


def test_shell_in_a_container_ends_with_its_lease(place: Place, tmp_path: Path) -> None:
    with session(place, tmp_path) as (shim, client):
        client.type("trap '' HUP TERM; echo re''ady\n")
        client.reads("ready\r\n")
        seen = processes_left(shim)
        shim.order(kill=True)
        end = shim.end()

    assert end.outcome is LeaseOutcome.STOPPED
    wait_for(lambda: not any(Path(f"/proc/{process}").exists() for process in seen))
    assert left_of(place) == []
