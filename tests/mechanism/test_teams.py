"""Teams: validation, the tree in the policy's problem, who may submit for which, and journals."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.commands import SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import ConfigChanged, JobSubmitted
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.mechanism.teams import Team, check_entities, check_teams, entities_of, of_team, of_token
from gavelpy.model.problem import AllocationProblem, Entity, EntityPolicy
from gavelpy.policies.hierarchical import Hierarchical
from tests.mechanism.builders import make_core, make_spec, questions, tell, wake

TREE = (
    Team("speech", parent="research"),
    Team("research", weight=3.0),
    Team("vision", 2.0, EntityPolicy.FIFO, "research", ("ann", "bob")),
    Team("product", members=("cid",)),
)


def asked(core: SchedulerCore, now_s: float | None = None) -> SolveAllocation:
    """The core's next request for an allocation."""
    (question,) = questions(wake(core, now_s))
    return question


def test_the_problem_has_the_tree_of_teams_and_each_job_in_its_team() -> None:
    names = ("vision", "product", "vision", "speech", "")
    core = make_core(*(make_spec(f"j{k}", entity=name) for k, name in enumerate(names)), teams=TREE)

    problem = asked(core).problem

    expected = AllocationProblem.of(
        problem.job_ids, problem.gpu_types, problem.gpu_counts, problem.member_rate_steps_per_s,
        entity=[2, 3, 2, 0, -1],
        entities=[
            Entity("speech", 1.0, EntityPolicy.FAIRNESS, "research"),
            Entity("research", 3.0),
            Entity("vision", 2.0, EntityPolicy.FIFO, "research"),
            Entity("product"),
        ],
    )  # fmt: skip
    assert (problem.entities, problem.entity.tolist()) == (expected.entities, expected.entity.tolist())
    share = Hierarchical().allocate(problem).share
    assert np.array_equal(share, Hierarchical().allocate(expected).share)
    assert share.sum(axis=1) == pytest.approx([0.4, 0.2, 0.0, 0.2, 0.2])


def test_without_teams_entities_are_what_jobs_name() -> None:
    core = make_core(*(make_spec(name, entity=name) for name in "bab"[:2]))

    assert asked(core).problem.entities == (Entity("b"), Entity("a"))


def test_an_entity_of_before_the_teams_keeps_a_weight_of_one() -> None:
    core = make_core(make_spec("a", entity="old"), make_spec("b", entity="product"))
    before = asked(core)
    tell(core, ConfigChanged(replace(core.settings, teams=TREE)))
    core.question.forget()

    problem = asked(core, 1.0).problem

    assert before.problem.entities == (Entity("old"), Entity("product"))
    assert problem.entities[4:] == (Entity("old"),)
    assert [problem.entities[row].id for row in problem.entity] == ["old", "product"]


@pytest.mark.parametrize(
    ("teams", "error"),
    [
        ((Team("a"), Team("a")), "teams must have each name once, got 'a' twice"),
        ((Team("a b"),), "teams must be named by 1 to 63 letters, digits, .* got 'a b'"),
        ((Team("a", 0.0),), r"teams.a.weight must be in \[1e-06, 1e\+06\], got 0.0"),
        ((Team("a", float("nan")),), "teams.a.weight must be in"),
        ((Team("a", parent="b"),), "teams.a.parent must be one of a, or empty, got 'b'"),
        ((Team("a", parent="a"),), "teams.a.parent must not lead back to a team below it, got 'a'"),
        ((Team("a", parent="b"), Team("b", parent="c"), Team("c", parent="b")), "teams.a.parent must not lead back"),
        ((Team("a", members=("ann", "")),), r"teams.a.members must be names of users, got \['ann', ''\]"),
        (
            tuple(Team(f"t{k}", parent=f"t{k - 1}" if k else "") for k in range(33)),
            "teams.t32.parent must leave 32 levels of teams at most, got 't31'",
        ),
        (tuple(Team(f"t{k}") for k in range(1001)), "teams must be at most 1000, got 1001"),
    ],
)
def test_teams_that_are_no_trees_are_refused(teams: tuple[Team, ...], error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        check_teams(teams)


@pytest.mark.parametrize(
    ("owner", "entity", "team"),
    [
        ("ann", "vision", "vision"),
        ("ann", "speech", "speech"),
        ("dan", "research", "research"),
        ("cid", "product", "product"),
    ],
)
def test_a_job_has_the_team_that_it_names(owner: str, entity: str, team: str) -> None:
    assert of_team(make_spec("a", entity=entity), MechanismSettings(teams=TREE), owner).entity == team


def test_a_job_without_a_team_has_the_only_one_of_its_owner() -> None:
    settings = MechanismSettings(teams=(Team("a", members=("ann",)), Team("b", members=("bob",))))

    assert of_team(make_spec("a"), settings, "ann").entity == "a"
    assert of_team(make_spec("a"), MechanismSettings(), "ann").entity == ""


@pytest.mark.parametrize(
    ("teams", "owner", "entity", "error"),
    [
        (TREE, "cid", "vision", "team must be one of speech, research, product, which 'cid' may use, got 'vision'"),
        (TREE, "ann", "", "team must be one of speech, research, vision, which 'ann' may use, got none"),
        (TREE, "ann", "sales", "which 'ann' may use, got 'sales'"),
        (TREE[2:], "dan", "", "team must be one that is open to 'dan', but none is, got none"),
    ],
)
def test_other_teams_are_refused(teams: tuple[Team, ...], owner: str, entity: str, error: str) -> None:
    settings = MechanismSettings(teams=tuple(replace(team, parent="") for team in teams))

    with pytest.raises(InvalidInput, match=re.escape(error)):
        of_team(make_spec("a", entity=entity), settings, owner)


def test_jobs_of_a_trace_must_name_teams() -> None:
    check_entities([make_spec("a", entity="vision")], MechanismSettings(teams=TREE))
    with pytest.raises(InvalidInput, match=r"entity of job 'b' must be a team, one of speech, .*, got none"):
        check_entities([make_spec("b")], MechanismSettings(teams=TREE))


def test_teams_survive_the_journal_and_the_snapshot() -> None:
    core = make_core(make_spec("a", entity="vision"), teams=TREE)
    event = ConfigChanged(core.settings)

    _, read = decode(encode(event, 1.0))
    assert isinstance(read, ConfigChanged)
    restored = restore(decode_state(encode_state(snapshot(core))))

    assert read.settings == event.settings
    assert restored.settings.teams == TREE
    tell(restored, JobSubmitted(make_spec("b", entity="speech")))
    assert asked(restored).problem.entity.tolist() == [2, 0]


def test_settings_without_teams_are_written_as_before() -> None:
    without, some = (encode(ConfigChanged(MechanismSettings(teams=teams)), 1.0) for teams in ((), TREE))

    assert b"teams" in some
    assert b"teams" not in without


def test_rows_of_names_end_with_none() -> None:
    entities, row = entities_of(("product", "old"), TREE)

    assert (len(entities), row.tolist()) == (5, [3, 4, -1])


def test_a_job_has_the_team_of_its_owners_token_unless_the_owner_is_a_member_of_another() -> None:
    settings = MechanismSettings(teams=TREE)
    jobs = [make_spec("a"), make_spec("b", entity="vision")]

    assert [job.entity for job in of_token(jobs, settings, "ann", "speech")] == ["speech", "vision"]
    assert of_token(jobs, settings, "dan", "") == jobs
    with pytest.raises(InvalidInput, match="team must be speech, which the token of 'dan' names, got 'vision'"):
        of_token(jobs, settings, "dan", "speech")
