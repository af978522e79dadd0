"""A temporary Slurm: munged, slurmctld and a slurmd per node, on loopback, in one directory.

Debian's packages: slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins; for accounting (`sacct`) also slurmdbd
slurm-wlm-mysql-plugin mariadb-server. Slurm must run as root.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from gavelpy.errors import InvalidInput
from gavelpy.runtime.local_cluster import free_port, wait_until

ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacct")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo")
GPUS = 2
START_S = 30.0
_NULL_DEVICE = os.makedev(1, 3)  # used as a GPU
_CONFIG = """\
ClusterName=benchmark
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
MaxJobCount=100000
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={directory}/munge.socket
AccountingStorageTRES=gres/gpu,gres/gpu:{gpu_type}
JobAcctGatherType=jobacct_gather/none
"""
_DATABASE = """\
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
PidFile={directory}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage_port}
StorageUser=root
StorageLoc=slurm
"""


def missing(*, accounting: bool = False) -> str:
    """Why Slurm cannot be started here; empty = it can."""
    names = (*PROGRAMS, *(ACCOUNTING_PROGRAMS if accounting else ()))
    absent = [name for name in names if shutil.which(name, path=_path()) is None]
    if absent:
        more = " slurmdbd slurm-wlm-mysql-plugin mariadb-server" if accounting else ""
        return f"no {', '.join(absent)} here; Debian: slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins{more}"
    return "" if os.geteuid() == 0 else "Slurm must be started by root"


class SlurmServer:
    """A context manager; `slurmctld` can be killed and restarted."""

    def __init__(self, directory: Path, nodes: Sequence[str], *, accounting: str = "") -> None:
        self.directory = directory
        self.nodes = nodes
        self.accounting = accounting  # GPU type that accounting names; empty = no accounting
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> SlurmServer:
        if problem := missing(accounting=bool(self.accounting)):
            raise InvalidInput(problem)
        self._configure()
        key, log, socket_file = (self.directory / name for name in ("munge.key", "munge.log", "munge.socket"))
        self._start(
            "munged", "--force", "--foreground", f"--key-file={key}", f"--log-file={log}", f"--socket={socket_file}",
            f"--pid-file={self.directory / 'munge.pid'}", f"--seed-file={self.directory / 'munge.seed'}",
        )  # fmt: skip
        wait_until(socket_file.exists, "munged listens", START_S)
        if self.accounting:
            self._start_accounting()
        self.start_controller()
        for node in self.nodes:
            self._start("slurmd", "-D", "-N", node, name=node)
        wait_until(lambda: self.run("sinfo", "-h", "-o", "%D", "-t", "idle") == f"{len(self.nodes)}", "nodes are idle")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()
        self._end_steps()

    def start_controller(self) -> float:
        """Starts slurmctld; returns the seconds until it answers."""
        began_s = time.monotonic()
        self._start("slurmctld", "-D")
        wait_until(lambda: self.run("squeue", "-h") is not None, "slurmctld answers", START_S)
        return time.monotonic() - began_s

    def _start_accounting(self) -> None:
        data, socket_file, port = self.directory / "data", self.directory / "maria.socket", free_port()
        made = self.run("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root")
        assert made is not None, "mariadb-install-db failed"
        self._start(
            "mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={socket_file}", f"--port={port}",
            "--bind-address=127.0.0.1", "--user=root", "--skip-grant-tables", f"--pid-file={self.directory}/maria.pid",
        )  # fmt: skip
        wait_until(socket_file.exists, "MariaDB listens", START_S)
        file = self.directory / "slurmdbd.conf"
        file.write_text(_DATABASE.format(directory=self.directory, port=self._accounting_port, storage_port=port))
        file.chmod(0o600)
        self._start("slurmdbd", "-D")
        wait_until(lambda: self.run("sacctmgr", "-n", "show", "cluster") is not None, "slurmdbd answers", START_S)

    def kill_controller(self) -> None:
        """Kills slurmctld with SIGKILL."""
        self._processes["slurmctld"].kill()
        self._processes["slurmctld"].wait()

    def run(self, *command: str) -> str | None:
        """The output of a command; None if it fails."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of Slurm's commands."""
        return {**os.environ, "SLURM_CONF": str(self.directory / "slurm.conf"), "PATH": _path()}

    def _configure(self) -> None:
        self.directory.chmod(0o755)
        host = socket.gethostname()
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (self.directory / name).mkdir()
        for number in range(GPUS):
            os.mknod(self.directory / f"gpu{number}", stat.S_IFCHR | 0o600, _NULL_DEVICE)
        key = self.directory / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        kind = f"gpu:{self.accounting}" if self.accounting else "gpu"
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=64 Gres={kind}:{GPUS}"
            for node in self.nodes
        )
        text = _CONFIG.format(host=host, port=free_port(), directory=self.directory, nodes=nodes)
        if self.accounting:
            self._accounting_port = free_port()
            text += _ACCOUNTING.format(directory=self.directory, port=self._accounting_port, gpu_type=self.accounting)
        (self.directory / "slurm.conf").write_text(text)
        files = f"{self.directory}/gpu[0-{GPUS - 1}]"
        of_type = f"Type={self.accounting} " if self.accounting else ""
        (self.directory / "gres.conf").write_text(f"Name=gpu {of_type}File={files}\n")

    def _start(self, program: str, *arguments: str, name: str = "") -> None:
        path = shutil.which(program, path=_path())
        assert path is not None, "checked before"
        with (self.directory / f"{name or program}.out").open("ab") as log:
            self._processes[name or program] = subprocess.Popen(
                [path, *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _end_steps(self) -> None:
        """Kills the slurmstepd processes, which outlive their slurmd."""
        mark = str(self.directory).encode()
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if mark in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                    os.kill(int(entry.name), 9)


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
