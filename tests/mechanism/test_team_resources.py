"""CPU cores and memory in the limits of teams: plans, reclaim, reasons, records, and a random run against loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import ConfigChanged, JobSubmitted, NodeJoined, Outcome
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.mechanism.teams import Team, check_teams
from gavelpy.model.job import NodeId
from tests.mechanism.builders import answer, end, make_spec, start, tell, wake

QUOTA = (Team("a", quota={"v100:cpus": 8}), Team("b"))
FLOOR = (Team("a", guaranteed={"v100:cpus": 8}), Team("b"))


def core_of(teams: tuple[Team, ...], *, gpus: int = 8, cpus: float = 32.0, **options: object) -> SchedulerCore:
    core = SchedulerCore(MechanismSettings(round_s=100.0, teams=teams, **options))  # type: ignore[arg-type]
    tell(core, NodeJoined(NodeId("n0"), "v100", gpus, cpus=cpus, memory_gib=64.0))
    return core


def submit(core: SchedulerCore, team: str, cpus: float, now_s: float = 0.0, gpus: int = 1) -> int:
    spec = make_spec(f"j{core.jobs.count}", gpus=gpus, entity=team, cpus_per_gpu=cpus)
    tell(core, JobSubmitted(spec), now_s)
    return core.jobs.count - 1


def shared(core: SchedulerCore, now_s: float) -> list[int]:
    """A wake-up, and full shares for all jobs; the jobs with leases afterwards."""
    wake(core, now_s)
    if core.question.open_epoch >= 0:
        answer(core, *((row, 0, 1.0) for row in core.jobs.active.tolist()), now_s=now_s)
    starting = [row for row in core.jobs.leased.tolist() if core.jobs.state[row] == JobState.GRANTED]
    if starting := [row for row in starting if core.jobs.stopping[row] < 0]:
        start(core, *starting)
    return core.jobs.leased.tolist()


def test_no_more_cpu_cores_than_the_quota_are_held() -> None:
    core = core_of(QUOTA)
    for team in ("a", "a", "a", "b"):
        submit(core, team, 4.0)

    assert shared(core, 0.0) == [0, 1, 3]
    assert reasons(core)[2].kind is ReasonKind.TEAM_QUOTA
    assert reasons(core)[2].text == "team a holds 8 of its quota of 8 CPU cores of v100 nodes"


def test_a_job_that_needs_more_than_the_quota_waits_with_a_reason() -> None:
    core = core_of(QUOTA)
    submit(core, "a", 3.0, gpus=3)

    assert shared(core, 0.0) == []
    assert reasons(core)[0].text == "needs 9 CPU cores; the quota of team a is 8 CPU cores of v100 nodes"


def test_guaranteed_cpu_cores_are_lent_and_reclaimed_at_the_end_of_the_round() -> None:
    core = core_of(FLOOR, cpus=16.0)
    for _ in range(4):
        submit(core, "b", 4.0)
    assert shared(core, 0.0) == [0, 1, 2, 3], "b borrows what a cannot use"
    for _ in range(2):
        submit(core, "a", 4.0, 10.0)
    assert shared(core, 10.0) == [0, 1, 2, 3], "no lease ends within a round"

    assert [core.jobs.specs[row].entity for row in shared(core, 100.0)] == ["b", "b", "a", "a"]


def test_guaranteed_cpu_cores_are_kept_from_new_jobs() -> None:
    core = core_of(FLOOR, cpus=16.0)
    for _ in range(3):
        submit(core, "b", 4.0)
    submit(core, "a", 8.0)

    assert shared(core, 0.0) == [0, 1, 3]


@pytest.mark.parametrize(
    ("team", "what"),
    [
        (Team("a", quota={"v100:disk": 1}), '"v100:cpus" or "v100:memory_gib", got \'v100:disk\''),
        (Team("a", quota={":cpus": 1}), "must be GPUs by GPU type, got the type ':cpus'"),
        (Team("a", quota={"v100:cpus": -1}), "must be numbers of whole units in"),
        (Team("a", quota={"v100:cpus": 1}, guaranteed={"v100:cpus": 2}), "at least the 2 v100:cpus guaranteed"),
    ],
)
def test_limits_that_mean_nothing_are_refused(team: Team, what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        check_teams([team])


def test_limits_pass_through_journal_and_snapshot() -> None:
    core = core_of(FLOOR)

    event = decode(record := encode(ConfigChanged(core.settings), 1.0))[1]

    assert isinstance(event, ConfigChanged)
    assert event.settings == core.settings
    assert record[1] == 16  # version: older programs would take "v100:cpus" for a GPU type
    assert snapshot(core)["version"] == 15
    assert restore(decode_state(encode_state(snapshot(core)))).settings == core.settings


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32))
def test_quotas_hold_after_each_event(seed: int) -> None:
    rng = np.random.default_rng(seed)
    quota = {"a": int(rng.integers(4, 20)), "b": int(rng.integers(2, 12))}
    teams = (
        Team("a", quota={"v100:cpus": quota["a"]}, guaranteed={"v100:cpus": int(rng.integers(0, 4))}),
        Team("b", parent="a", quota={"v100:cpus": quota["b"]} if quota["b"] < quota["a"] else {}),
        Team("c", guaranteed={"v100:memory_gib": 8, "v100": 1}),
    )
    core, now_s = core_of(teams, cpus=float(rng.choice([0.0, 16.0, 24.0, 64.0]))), 0.0
    for _ in range(30):
        now_s = min(now_s + float(rng.exponential(20.0)), max(core.wakeup_s, now_s))
        submit(
            core, str(rng.choice(["a", "b", "c"])), float(rng.choice([0.0, 1.5, 3.0])), now_s, int(rng.integers(1, 4))
        )
        for row in core.jobs.leased.tolist():
            if rng.random() < 0.3 and core.jobs.state[row] == JobState.RUNNING:
                end(core, row, int(core.jobs.lease[row]), Outcome.FINISHED, now_s=now_s)
        shared(core, now_s)
        for row in np.flatnonzero(core.jobs.stopping[: core.jobs.count] >= 0).tolist():
            end(core, row, int(core.jobs.stopping[row]), Outcome.STOPPED, now_s=now_s)
        held = {"a": 0.0, "b": 0.0, "c": 0.0}
        for row in core.jobs.leased.tolist():
            held[core.jobs.specs[row].entity] += core.jobs.gpus[row] * core.jobs.specs[row].cpus_per_gpu
        assert held["a"] + held["b"] <= quota["a"]
        assert held["b"] <= min(quota["a"], quota["b"])
