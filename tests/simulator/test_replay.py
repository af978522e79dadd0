"""Same arguments give the same bytes; a journal cut anywhere and continued gives the same end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode_state, encode, encode_state
from gavelpy.journal.file import JournalWriter, recover
from gavelpy.journal.history import History
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AllocationSolved, Event
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.simulator.settings import preset
from gavelpy.simulator.simulate import Simulation
from tests.simulator.builders import make_simulation, random_trace, timeless

CLUSTER = "v100:4,p100:4,k80:8"


def make_recorded(policy: str, name: str) -> tuple[Simulation, list[tuple[float, Event]]]:
    events: list[tuple[float, Event]] = []
    simulation = make_simulation(random_trace(11, jobs=25), CLUSTER, policy, preset(name))
    simulation.observers.append(lambda event, now_s: events.append((now_s, event)))
    return simulation, events


def test_same_seed_gives_the_same_bytes() -> None:
    journals = []
    for _ in range(2):
        simulation, events = make_recorded("isolated", "gavel-osdi20")
        simulation.run()
        journals.append(b"".join(encode(event, now_s) for now_s, event in events))

    assert journals[0] == journals[1]


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("policy", "name"), [("max_min_fairness", "default"), ("isolated", "gavel-osdi20")])
def test_a_journal_cut_anywhere_and_continued_ends_the_same(policy: str, name: str, count: int) -> None:
    simulation, events = make_recorded(policy, name)
    whole = timeless(simulation.run())
    seed = 5
    cuts = np.random.default_rng(seed).integers(0, len(events), count).tolist()

    ends = {cut: timeless(continued(policy, name, events[:cut]).run()) for cut in cuts}

    assert {cut: end for cut, end in ends.items() if end != whole} == {}, f"seed {seed}"


def continued(policy: str, name: str, recorded: list[tuple[float, Event]]) -> Simulation:
    return make_simulation(random_trace(11, jobs=25), CLUSTER, policy, preset(name), recorded=recorded)


def test_answers_are_taken_from_the_journal_and_not_solved_again() -> None:
    simulation, events = make_recorded("max_min_fairness", "default")
    simulation.run()
    last_answer = max(k for k, (_, event) in enumerate(events) if isinstance(event, AllocationSolved))

    again = continued("max_min_fairness", "default", events[: last_answer + 1])
    again.run()

    assert again.engine.cpu_s == 0.0


def test_a_journal_of_another_trace_is_refused_by_the_event_that_differs() -> None:
    simulation, events = make_recorded("max_min_fairness", "default")
    simulation.run()
    other = make_simulation(random_trace(12, jobs=25), CLUSTER, settings=preset("default"), recorded=events)

    with pytest.raises(InvalidInput, match=r"journal must come from this trace.* JobSubmitted at"):
        other.run()


def test_a_torn_file_continues_to_the_same_end(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    simulation, _ = make_recorded("max_min_fairness", "default")
    with JournalWriter(path) as journal:
        simulation.observers.append(journal.append)
        whole = timeless(simulation.run())
    path.write_bytes(path.read_bytes()[:-1000])

    good, complaint = recover(path)
    end = timeless(continued("max_min_fairness", "default", good).run())

    assert "torn" in complaint
    assert end == whole


def test_a_core_restored_from_a_snapshot_goes_on_as_the_original() -> None:
    """Snapshots at 40 points of a run: a core restored from each reaches the same end, byte for byte."""
    simulation, events = make_recorded("max_min_fairness", "default")
    simulation.run()
    end = encode_state(snapshot(simulation.core))
    places = np.linspace(0, len(events) - 1, 40).astype(int).tolist()

    core = SchedulerCore()
    copies = []
    for k, (now_s, event) in enumerate(events):
        copies += [(k, restore(decode_state(encode_state(snapshot(core)))))] * (k in places)
        core.handle(event, now_s)
    for place, copy in copies:
        for now_s, event in events[place:]:
            copy.handle(event, now_s)

    assert encode_state(snapshot(core)) == end
    assert [place for place, copy in copies if encode_state(snapshot(copy)) != end] == []


def test_history_folded_from_a_file_equals_that_of_the_run() -> None:
    simulation, events = make_recorded("max_min_fairness", "default")
    result = simulation.run()

    history = History()
    for now_s, event in events:
        history.apply(event, now_s)

    n = history.count
    assert (history.finish_s[:n] - history.arrival_s[:n]).tolist() == result.jobs["jct_s"].tolist()
    assert history.preemptions[:n].sum() == result.metrics.preemptions
