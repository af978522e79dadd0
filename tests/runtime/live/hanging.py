"""A directory on storage that a test can hang: mounted through sshfs, by stopping and continuing its server.

While it hangs, every system call below the mount point waits, in a state that not even SIGKILL ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from types import TracebackType

from gavelpy.runtime.local_cluster import wait_until

_SERVERS = tuple(
    Path("/usr") / folder / "sftp-server" for folder in ("lib/openssh", "libexec/openssh", "lib/ssh", "libexec")
)


@cache
def why_not() -> str:
    """The reason why no directory can be mounted here; empty = one can. In CI, only FUSE itself may be missing."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be used"
    missing = [program for program in ("sshfs", "fusermount3") if shutil.which(program) is None]
    if not any(server.exists() for server in _SERVERS):
        missing.append("sftp-server")
    if missing:
        complaint = f"no {' and '.join(missing)} here (Debian: apt-get install sshfs openssh-sftp-server)"
        assert os.environ.get("CI") != "true" or os.geteuid() != 0, complaint
        return complaint
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        try:
            stack.enter_context(HangingDirectory(Path(place, "backing"), Path(place, "mount")))
        except subprocess.SubprocessError:
            return "nothing can be mounted by FUSE here"
    return ""


class HangingDirectory:
    """`mount` shows the contents of `backing`. As a context manager, it is thawed and unmounted at the end."""

    def __init__(self, backing: Path, mount: Path) -> None:
        self.backing = backing
        self.mount = mount
        self._server = 0  # process id

    def __enter__(self) -> HangingDirectory:
        for directory in (self.backing, self.mount):
            directory.mkdir(parents=True, exist_ok=True)
        server = next(server for server in _SERVERS if server.exists())
        wrapper, name = self.mount.with_name(f"{self.mount.name}.sh"), self.mount.with_name(f"{self.mount.name}.pid")
        wrapper.write_text(f'#!/bin/sh\necho $$ > "{name}"\nexec {server}\n')
        wrapper.chmod(0o700)
        options = f"ssh_command={wrapper},cache=no"
        subprocess.run(["sshfs", "-o", options, f"none:{self.backing}", str(self.mount)], check=True, timeout=30.0)
        wait_until(lambda: name.exists() and name.read_text().strip() != "", "the server of the mount runs")
        self._server = int(name.read_text())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thaw()
        subprocess.run(["fusermount3", "-u", "-z", str(self.mount)], check=False, timeout=30.0)

    def hang(self) -> None:
        """Blocks all calls below the mount point."""
        os.kill(self._server, signal.SIGSTOP)

    def thaw(self) -> None:
        """Answers all blocked calls."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._server, signal.SIGCONT)
