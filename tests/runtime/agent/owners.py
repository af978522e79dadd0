"""Nodes whose jobs run as their owners: accounts that every Debian has, and a directory that they can pass through."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.runtime.agent.conftest import Node

ALICE, BOB = "games", "news"  # the accounts of the owners alice and bob; nothing else runs as these
OWNERS = f'run_as = "owner"\nusers = {{ alice = "{ALICE}", bob = "{BOB}", boss = "root" }}\n'
# A Python that the owners can execute; the tests' own may be in root's home directory.
PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
# Becomes alice, with the right to read the files of this Python and its packages.
AS_ALICE = (
    "setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--init-groups", "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
)  # fmt: skip


@contextmanager
def open_place(parent: str | None = None) -> Iterator[Path]:
    """A directory that all accounts can pass through, as pytest's own are not; default: in the temporary directory."""
    directory = Path(tempfile.mkdtemp(prefix="gavel-owners-", dir=parent))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@contextmanager
def owners_node(state: Path, port: int, more: str = OWNERS) -> Iterator[Node]:
    """A started node."""
    node = Node(state, f"127.0.0.1:{port}", more=more)
    node.start()
    try:
        yield node
    finally:
        node.close()
