"""Cost of LeaseIterator per step: CPU time of the wrapped loop minus that of the bare loop, lowest of several rounds.

CPU time of the thread, so that other processes of the machine do not count.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from unittest.mock import patch

from gavelpy import LeaseIterator
from gavelpy.runtime import lease_files
from gavelpy.runtime.lease_files import Launch, LeaseTerms, clock_s

STEPS = 200_000
ROUNDS = 9
LIMIT_US = 1.0


def run() -> None:
    """Prints microseconds per step outside a lease, in one, and in a gang."""
    bare_us = _lowest_us(lambda: range(STEPS))
    for name, world, leased in (("outside a lease", 1, False), ("in a lease", 1, True), ("in a gang of 2", 2, True)):
        extra_us = _measured(world, leased) - bare_us
        print(f"{name:>16}: {extra_us:6.3f} us a step over the bare loop's {bare_us:.3f} us (limit {LIMIT_US:g})")


def _measured(world: int, leased: bool) -> float:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        lease_files.write_launch(directory, Launch(1, 1, ("x",), "/", {}, ({},)))
        lease_files.write_lease(directory, LeaseTerms(1, clock_s() + 3600.0))
        variables = {"WORLD_SIZE": str(world), "RANK": "0"}
        if leased:
            variables |= {"GAVEL_LEASE_DIR": name, "GAVEL_CHECKPOINT_DIR": str(directory / "checkpoints")}
        with patch.dict(os.environ, variables):
            return _lowest_us(lambda: LeaseIterator(range(STEPS), lambda _: None))


def _lowest_us(loop: Callable[[], Iterable[int]]) -> float:
    return min(_timed_us(loop()) for _ in range(ROUNDS))


def _timed_us(items: Iterable[int]) -> float:
    steps = iter(items)
    began_s = time.thread_time()
    for _ in range(STEPS - 1):  # the last step ends the loop, which writes a checkpoint
        next(steps)
    took_us = 1e6 * (time.thread_time() - began_s) / (STEPS - 1)
    if isinstance(items, LeaseIterator):
        items.close()
    return took_us


if __name__ == "__main__":
    run()
