"""Computes forecasts, in a process of its own."""

from __future__ import annotations

import pickle
from functools import lru_cache

from gavelpy.engine import Engine
from gavelpy.mechanism.events import ConfigChanged, JobSubmitted, SchedulerRestarted
from gavelpy.model.problem import BlindView
from gavelpy.model.throughput import ThroughputTable
from gavelpy.runtime.daemon.engine.forecast import Ahead, LookAhead
from gavelpy.runtime.daemon.engine.throughput_files import believable_table
from gavelpy.simulator.forecast import Forecast


def forecast(question: LookAhead) -> Ahead:
    """The answer to a request of the scheduler."""
    return look_ahead(question, _table(question.choice.throughputs_file, question.choice.throughputs_version))


@lru_cache(maxsize=1)
def _table(file: str, version: int) -> ThroughputTable | None:  # noqa: ARG001 the file is read again when it has changed
    return believable_table(file).table if file else None


def look_ahead(question: LookAhead, throughputs: ThroughputTable | None) -> Ahead:
    """Runs the copy of the core forward."""
    core, choice = question.core, question.choice
    core.jobs.specs = [spec for part in question.specs for spec in pickle.loads(part)]
    blind = BlindView(choice.blind) if choice.blind else None
    changed = [event.settings for event in question.supposed if isinstance(event, ConfigChanged)]
    engine = Engine(choice.within(changed[-1] if changed else core.settings).policy, blind, throughputs)
    future = Forecast(core, engine, question.rates, question.submitted, question.now_s)
    future.handle(SchedulerRestarted(core.incarnation + 1))  # cancels requests to the engine that are in flight
    for event in question.supposed:
        future.handle(event)
    for spec in question.submitted:
        future.handle(JobSubmitted(spec))
    if question.everything:
        why_not = future.run(core.jobs.active.tolist(), question.horizon_s, question.cpu_s, question.until_s)
        return Ahead((), why_not, dict(future.expected))
    why_not = future.run(question.wanted, question.horizon_s, question.cpu_s, question.until_s)
    return Ahead(tuple(future.expected[job] for job in question.wanted), why_not)
