"""The transition table of job states is complete and closed, and the diagram shows it."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

from gavelpy.mechanism import lifecycle
from gavelpy.mechanism.lifecycle import ALIVE, JOB_TRANSITIONS, LEASED, JobFact, JobState, states_after

OVER = tuple(state for state in JobState if state not in ALIVE)
ENDS = {"finished": JobFact.FINISHED, "cancelled": JobFact.CANCELLED, "given up": JobFact.GIVEN_UP}
IMPOSSIBLE = sorted(set(product(JobState, JobFact)) - set(JOB_TRANSITIONS))


@pytest.mark.parametrize(("before", "after"), JOB_TRANSITIONS.items(), ids=str)
def test_transition_in_the_table_is_made(before: tuple[JobState, JobFact], after: JobState) -> None:
    state, fact = before

    assert states_after(np.array([state, state]), fact).tolist() == [after, after]


@pytest.mark.parametrize(("state", "fact"), IMPOSSIBLE, ids=str)
def test_transition_that_is_not_in_the_table_is_a_bug(state: JobState, fact: JobFact) -> None:
    with pytest.raises(AssertionError, match=f"no transition for {fact.name} from .*{state.name}"):
        states_after(np.array([JobState.WAITING, state]), fact)


def test_every_pair_is_either_in_the_table_or_impossible() -> None:
    assert len(JOB_TRANSITIONS) + len(IMPOSSIBLE) == len(JobState) * len(JobFact)
    assert len(JOB_TRANSITIONS) == 13


def test_nothing_happens_to_a_job_that_is_over() -> None:
    assert {state for state, _ in JOB_TRANSITIONS} == set(ALIVE)


def test_a_living_job_can_always_end() -> None:
    assert {JOB_TRANSITIONS[state, fact] for state in ALIVE for fact in ENDS.values()} == set(OVER)


def test_states_that_live_come_before_those_that_do_not() -> None:
    """The job tables rely on this when they compare with ALIVE[-1]."""
    assert max(ALIVE) < min(OVER)
    assert set(LEASED) < set(ALIVE)


def test_diagram_shows_the_table() -> None:
    text = lifecycle.__doc__ or ""
    lines = text.splitlines()
    chain = next(line for line in lines if line.strip().startswith("WAITING"))
    back = next(line for line in lines if line.strip().startswith("└"))
    ends = next(line for line in lines if line.strip().startswith("any of the three"))

    drawn = {
        (JobState[state], JobFact[fact.upper()]): JobState[after]
        for state, fact, after in re.findall(r"(?=\b([A-Z]+) ──([a-z]+)──▶ ([A-Z]+))", chain)
    }
    corners = [k for k, sign in enumerate(back) if sign in "┴┘"]  # below the states that are left
    names = [next(m[0] for m in re.finditer(r"[A-Z]+", chain) if m.start() <= k < m.end()) for k in corners]
    drawn |= {(JobState[name], JobFact.STOPPED): JobState.WAITING for name in names}
    for fact, after in re.findall(r"──([a-z ]+)──▶ ([A-Z]+)", ends):
        drawn |= {(state, ENDS[fact]): JobState[after] for state in ALIVE}

    assert drawn == JOB_TRANSITIONS
