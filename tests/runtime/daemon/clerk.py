"""A scheduler without an event loop: appends each event to the journal and applies it to the core, like the driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gavelpy.journal.codec import encode_state
from gavelpy.journal.store import EventStore, Submission, open_store
from gavelpy.mechanism.commands import Command, RoundPlan
from gavelpy.mechanism.events import Event, JobCancelled, JobSubmitted, NodeJoined, WakeupDue
from gavelpy.mechanism.snapshot import snapshot
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.recovery import Recovered, recover
from gavelpy.runtime.daemon.written import numbers_after
from tests.runtime.daemon.harness import make_config, make_spec

JOURNAL = "journal.sqlite"


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder / JOURNAL}"


class Clerk:
    """A scheduler with records of every job and lease number that it has acknowledged."""

    def __init__(self, store: EventStore, recovered: Recovered) -> None:
        self.store, self.recovered, self.core = store, recovered, recovered.core
        self.jobs: list[int] = []
        self.leases: list[int] = []
        self.sequence = recovered.sequence

    def tell(self, *events: Event, key: str = "") -> None:
        now_s, first = self.core.now_s + 1.0, self.core.jobs.count
        answers = [Submission("alice", key, "digest", first, 1, now_s)] if key else []
        self.sequence = self.store.append(
            [(now_s, event) for event in events], answers, numbers_after(self.core, events)
        )
        for event in events:
            self._note(self.core.handle(event, now_s))
            self.recovered.history.apply(event, now_s, self.core)

    def submit(self, *, key: str = "") -> int:
        """Submits a job; returns its serial."""
        job = self.core.jobs.count
        self.tell(JobSubmitted(make_spec(f"name#{job}")), key=key)
        self.jobs.append(job)
        return job

    def work(self) -> None:
        """Submits a job, which gets a lease immediately, and cancels it."""
        job = self.submit(key=f"key-{self.core.jobs.count}")
        self.tell(WakeupDue())
        self.tell(JobCancelled(job))

    def snapshot(self) -> None:
        """Saves a snapshot after all events so far."""
        state = {"core": snapshot(self.core), "facts": self.recovered.history.snapshot()}
        self.store.save_snapshot(self.sequence, encode_state(state))

    def _note(self, commands: list[Command]) -> None:
        plans = [command for command in commands if isinstance(command, RoundPlan)]
        self.leases.extend(np.concatenate([plan.grant_leases for plan in plans]).tolist() if plans else ())


@contextmanager
def clerk(folder: Path, *, accept_loss: bool = False) -> Iterator[Clerk]:
    """Opens the journal of a folder; one node joins."""
    with open_store(url_in(folder), accept_loss=accept_loss) as store:
        found = Clerk(store, recover(store, make_config(folder, mechanism={"solve_patience_s": 0.0})))
        found.tell(*found.recovered.events)
        found.tell(NodeJoined(NodeId("n0"), "v100", 1))
        yield found
