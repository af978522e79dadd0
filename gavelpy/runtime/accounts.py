"""Accounts of the operating system: find the account of a job's owner, act with its rights, become it.

An agent that runs as root starts each job as the account of its owner. The shim stays root, so that the job cannot
signal it or falsify its records; a rank becomes the account between fork and exec. What the agent does in directories
of users, it does in a worker process that acts as the account meanwhile (`acting_as`): a symbolic link of a user leads
only where that user may go. Look-ups can wait for a directory service: call them in such a worker. Standard library
only: the shim loads this.
"""

from __future__ import annotations

import ctypes
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gavelpy.errors import RemoteViolation

UMASK: Final = 0o022  # of jobs that run as another account than the agent
NO_ACCOUNT: Final = -1
_PR_SET_NO_NEW_PRIVS = 38


class OwnerRefused(RemoteViolation):
    """A node runs no job of this owner; with the reason."""


@dataclass(frozen=True)
class Account:
    """An account of this machine."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str


def find_account(owner: str, name: str, node_id: str, allow_root: bool, only_uid: int) -> Account:
    """The account `name`, as which jobs of `owner` run on a node. Raises OwnerRefused.

    `only_uid`: the agent has no root and runs jobs of this account only; NO_ACCOUNT = it may become any.
    """
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        mapped = "" if name == owner else f": the account {name!r} does not exist"
        raise OwnerRefused(f"node {node_id} does not know user {owner!r}{mapped}") from None
    if only_uid not in (NO_ACCOUNT, entry.pw_uid):
        raise OwnerRefused(
            f"node {node_id} runs jobs of {_name_of(only_uid)!r} only, because its agent is not root; "
            f"the owner is {owner!r}"
        )
    if entry.pw_uid == 0 and not allow_root:
        raise OwnerRefused(f"node {node_id} runs no job as root (allow_root = false); user {owner!r} is root there")
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell or "/bin/sh")


@contextmanager
def acting_as(account: Account | None) -> Iterator[None]:
    """Accesses files with the rights of an account meanwhile, in the whole process; None = changes nothing.

    The process must be root. It ends at once if it cannot become root again.
    """
    if account is None:
        yield
        return
    groups, gid, uid = os.getgroups(), os.getegid(), os.geteuid()
    try:
        os.setgroups(account.groups)
        os.setegid(account.gid)
        os.seteuid(account.uid)
        yield
    finally:
        try:
            os.seteuid(uid)
            os.setegid(gid)
            os.setgroups(groups)
        except OSError:  # it must not continue with a mixture of rights
            os._exit(1)


class Identity(NamedTuple):
    """Whose rights a process has."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    may_gain_rights: bool = False  # by set-uid programs: podman maps the ids of a container by one


def become(identity: Identity) -> None:
    """Makes this process, which is root, an account's, for good; it can gain no rights by executing a program.

    Raises OSError. Clears PR_SET_PDEATHSIG.
    """
    uid, gid, groups, may_gain_rights = identity
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    os.umask(UMASK)
    if not may_gain_rights and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def environment_of(account: Account) -> dict[str, str]:
    """The variables by which programs find the account."""
    return {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}


def account_fields(account: Account) -> dict[str, Any]:
    """The account as JSON."""
    return {**vars(account), "groups": list(account.groups)}


def account_of(fields: dict[str, Any]) -> Account:
    """The account that `account_fields` wrote."""
    return Account(**{**fields, "groups": tuple(fields["groups"])})


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
