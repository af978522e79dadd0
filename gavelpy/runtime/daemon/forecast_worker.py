"""The process that looks ahead: `python -m gavelpy.runtime.daemon.forecast_worker`, spoken to as the engine's is."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from dataclasses import replace
from typing import BinaryIO

from gavelpy.engine import Engine
from gavelpy.mechanism.events import JobSubmitted, SchedulerRestarted
from gavelpy.model.problem import BlindView
from gavelpy.model.throughput import ThroughputTable
from gavelpy.runtime.daemon.forecast_values import Ahead, LookAhead
from gavelpy.runtime.daemon.forecast_world import Costs, World
from gavelpy.runtime.daemon.pipe_messages import read_message, write_message

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serves until standard input ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the parent, which ends this process in its own time
    os.nice(10)  # nothing waits for a forecast but a person
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """One question after the other; a table of throughputs is read once, and again when it has changed."""
    table: ThroughputTable | None = None
    known = ("", 0)  # file and version of the table
    while (question := read_message(requests)) is not None:
        assert isinstance(question, LookAhead), f"not a question: {question!r}"
        wanted = question.choice.throughputs_file, question.choice.throughputs_version
        if wanted != known:
            known, table = wanted, throughputs_in(question.choice.throughputs_file)
        write_message(answers, look_ahead(question, table))


def throughputs_in(path: str) -> ThroughputTable | None:
    """The table of a file; None for no file. The reader is loaded where one is named only."""
    if not path:
        return None
    from gavelpy.runtime.daemon.rate_table import believable_table

    return believable_table(path).table


def look_ahead(question: LookAhead, throughputs: ThroughputTable | None) -> Ahead:
    """Runs the copy of the core forward."""
    core, choice = question.core, question.choice
    core.jobs.specs = [spec for part in question.specs for spec in pickle.loads(part)]
    blind = BlindView(choice.blind) if choice.blind else None
    engine = Engine(replace(choice, round_s=core.settings.round_s).policy, blind, throughputs)
    world = World(core, engine, question.rates, Costs(), question.now_s)
    world.tell(SchedulerRestarted(core.incarnation + 1))  # so that no answer to an older question is waited for
    for spec in question.submitted:
        world.tell(JobSubmitted(spec))
    if question.everything:
        why_not = world.run(core.jobs.active.tolist(), question.horizon_s, question.wall_s)
        return Ahead((), why_not, dict(world.expected))
    why_not = world.run(question.wanted, question.horizon_s, question.wall_s)
    return Ahead(tuple(world.expected[job] for job in question.wanted), why_not)


if __name__ == "__main__":
    main()
