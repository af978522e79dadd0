"""Where real containers of rootless podman run in tests: an account, its home directory and an image of busybox."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.runtime.agent.owners import open_place

IMAGE = "localhost/gavel-test:1"
CGROUPS = Path("/sys/fs/cgroup/unified")


@dataclass(frozen=True)
class Place:
    """Where real containers run: an account with subordinate ids, and its home directory with an image."""

    account: pwd.struct_passwd
    home: Path
    prefix: tuple[str, ...]  # of the shim's command

    def launch(self, *argv: str, **more: object) -> dict[str, object]:
        """The fields of a launch that runs a command in a container."""
        software = {"image": IMAGE, "tool": "podman", "program": "/usr/bin/podman", "home": str(self.home)}
        return {
            "argv": argv,
            "software": software,
            "working_directory": str(self.home / "work"),
            "uid": self.account.pw_uid,
            "gid": self.account.pw_gid,
            "groups": (self.account.pw_gid,),
            "job_directory": str(self.home / "job"),
            "prefix": self.prefix,
            **more,
        }


def account_with_subordinate_ids() -> pwd.struct_passwd | None:
    file = Path("/etc/subuid")
    names = [line.split(":")[0] for line in file.read_text().splitlines()] if file.exists() else []
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next((known[name] for name in names if name in known and known[name].pw_uid), None)


def open_container_place() -> Iterator[Place]:
    """Yields the place, with an image; skips the test where rootless podman cannot run, or fails if CI is "true"."""
    account = account_with_subordinate_ids()
    needed = ("/usr/bin/podman", "/usr/bin/crun", "/usr/bin/newuidmap", "/bin/busybox")
    if os.geteuid() != 0 or account is None or not all(map(os.path.exists, needed)):
        complaint = "rootless podman needs root, an account in /etc/subuid, podman, crun, newuidmap and busybox"
        if os.environ.get("CI") == "true" and os.geteuid() == 0:
            pytest.fail(complaint)
        pytest.skip(complaint)
    with open_place() as home:
        prefix = ("unshare", "--mount", "sh", "-c", f'if [ -d {CGROUPS} ]; then umount {CGROUPS}; fi; exec "$@"', "sh")
        found = Place(account, home, prefix)
        import_image(found)
        yield found


def import_image(place: Place) -> None:
    """An image of busybox alone; crun refuses hybrid control groups, so the part of version 2 is unmounted."""
    root, home = place.home / "image", place.home
    for name in ("bin", "etc", "proc", "sys", "dev", "tmp", "run"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    for name in ("sh", "cat", "id", "sleep", "env", "ls", "grep", "touch", "tr", "setsid", "stty", "tty"):
        (root / "bin" / name).symlink_to("busybox")
    (home / ".config/containers").mkdir(parents=True)
    (home / ".config/containers/storage.conf").write_text('[storage]\ndriver = "vfs"\n')
    for directory in (home / "job", home / "work"):
        directory.mkdir()
    owner = f"{place.account.pw_uid}:{place.account.pw_gid}"
    subprocess.run(["chown", "-R", owner, str(home)], check=True)
    become = [f"--reuid={place.account.pw_uid}", f"--regid={place.account.pw_gid}", "--clear-groups"]
    load = f"tar -C {root} -cf - . | podman import -q - {IMAGE}"
    found = subprocess.run(
        [*place.prefix, "setpriv", *become, "sh", "-c", load], env={"HOME": str(home), "PATH": os.environ["PATH"]},
        cwd="/", capture_output=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr.decode()


def left_of(place: Place) -> list[str]:
    """podman's records of containers."""
    storage = place.home / ".local/share/containers/storage/vfs-containers/containers.json"
    return [each["names"][0] for each in json.loads(storage.read_text() or "[]")] if storage.exists() else []
