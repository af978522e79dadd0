"""A checkpoint's location is a directory with an id, whichever directory its nodes see at the moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.domains import pinned_directory
from gavelpy.mechanism.events import DirectorySeen, JobSubmitted, NodeJoined, NodeLost, NodeUnhealthy, Outcome
from gavelpy.mechanism.gpus import CLUSTERS
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.reasons import reasons
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.job import NodeId
from tests.mechanism.builders import answer, end, make_spec, tell, wake
from tests.mechanism.test_domains import lose, node_of, run_and_save

SHARED, OTHER = "aaaa", "bbbb"


def core_with(*directories: tuple[str, bool] | None, jobs: str = "a", **settings: object) -> SchedulerCore:
    """Nodes n0, n1, ... with a V100 each; each sees (directory, is the cluster's), or None if not known yet."""
    core = SchedulerCore(MechanismSettings(**settings))  # type: ignore[arg-type]  # fields of any type
    for i, seen in enumerate(directories):
        tell(core, NodeJoined(NodeId(f"n{i}"), "v100", 1, False))
        if seen is not None:
            see(core, i, *seen)
    for name in jobs:
        tell(core, JobSubmitted(make_spec(name)))
    return core


def see(core: SchedulerCore, node: int, directory: str, is_clusters: bool = True) -> None:
    tell(core, DirectorySeen(NodeId(f"n{node}"), directory, is_clusters))


def save_on(core: SchedulerCore, node: int) -> None:
    """Job 0 runs on a node and saves there; then its lease ends."""
    others = [NodeId(name) for name in core.pool.node_ids if name != f"n{node}"]
    for name in others:
        tell(core, NodeUnhealthy(name, "not now"))
    wake(core)
    answer(core, (0, 0, 1.0))
    run_and_save(core, 0)
    end(core, 0, int(core.jobs.lease[0]), Outcome.LOST)
    for name in others:
        tell(core, NodeUnhealthy(name, ""))


def test_nodes_that_see_one_directory_are_one_lot_also_where_no_scheduler_has_marked_it() -> None:
    core = core_with((SHARED, False), (SHARED, False))
    save_on(core, 0)

    lose(core, {0})
    wake(core)
    answer(core, (0, 0, 1.0))

    assert node_of(core, 0) == 1


def test_nodes_with_directories_of_their_own_keep_their_jobs() -> None:
    core = core_with((SHARED, False), (OTHER, False))
    save_on(core, 0)

    lose(core, {0})

    assert reasons(core)[0].text == "its checkpoint is only on n0 (lost)"


def test_directory_that_every_node_sees_makes_lots_types_once_it_is_marked() -> None:
    core = core_with((SHARED, False), (SHARED, False))
    assert not core.pool.shares_checkpoints

    see(core, 1, SHARED)

    assert core.pool.shares_checkpoints
    assert core.pool.directories[CLUSTERS] == SHARED


def test_node_that_joined_before_its_storage_answered_unpins_its_jobs_when_it_does() -> None:
    core = core_with((SHARED, True), None)
    save_on(core, 1)
    lose(core, {0})
    assert pinned_directory(core.jobs, core.jobs.active).tolist() != [CLUSTERS]
    tell(core, NodeJoined(NodeId("n0"), "v100", 1, True))

    see(core, 1, SHARED)
    lose(core, {1})
    wake(core)
    answer(core, (0, 0, 1.0))

    assert node_of(core, 0) == 0


def test_storage_that_does_not_answer_for_a_while_changes_nothing_about_checkpoints() -> None:
    core = core_with((SHARED, True), (SHARED, True))
    save_on(core, 1)

    tell(core, NodeUnhealthy(NodeId("n1"), "the checkpoint directory does not answer"))
    tell(core, NodeJoined(NodeId("n1"), "v100", 1, True))
    wake(core)
    answer(core, (0, 0, 1.0))

    assert node_of(core, 0) == 0
    assert core.pool.shares_checkpoints


def test_node_that_sees_another_directory_than_before_loses_nothing_that_others_see() -> None:
    """The mount is gone, and the node sees the local directory below it."""
    core = core_with((SHARED, True), (SHARED, True))
    save_on(core, 1)

    see(core, 1, OTHER, False)
    tell(core, NodeLost(NodeId("n0")))

    assert reasons(core)[0].text.startswith("needs 1 GPU of one type; on nodes that see its checkpoint")
    tell(core, NodeJoined(NodeId("n0"), "v100", 1, True))
    wake(core)
    answer(core, (0, 0, 1.0))
    assert node_of(core, 0) == 0


def test_checkpoint_in_a_directory_that_no_node_sees_any_more_is_waited_for() -> None:
    core = core_with((OTHER, False))
    save_on(core, 0)

    see(core, 0, SHARED)
    assert reasons(core)[0].text == f"its checkpoint is only in directory {OTHER}, which no node sees now"
    assert not core.pool.shares_checkpoints
    see(core, 0, OTHER, False)
    wake(core)
    answer(core, (0, 0, 1.0))

    assert core.jobs.state[0] == JobState.GRANTED


def test_lease_saves_where_it_began_whatever_its_node_sees_by_then() -> None:
    core = core_with((SHARED, True), (SHARED, True))
    wake(core)
    answer(core, (0, 0, 1.0))
    here = node_of(core, 0)

    see(core, here, OTHER, False)
    run_and_save(core, 0)

    assert core.jobs.saved_in[0] == CLUSTERS


def test_the_same_directory_seen_again_is_no_news() -> None:
    core = core_with((SHARED, True), (SHARED, True))
    wake(core)
    answer(core, (0, 0, 1.0))
    before = encode_state(snapshot(core))

    see(core, 1, SHARED)

    assert encode_state(snapshot(core)) == before


def test_directories_outlive_a_snapshot() -> None:
    core = core_with((SHARED, True), (OTHER, False), None, jobs="ab")
    save_on(core, 1)

    again = restore(decode_state(encode_state(snapshot(core))))

    check(again)
    assert encode_state(snapshot(again)) == encode_state(snapshot(core))


# Journals and snapshots of versions that knew only whether a node saw the cluster's directory ---------------------

VERSION_5 = Path(__file__).parent / "fixtures" / "snapshot_version_5_directories.msgpack"
"""n0 sees the directory, n1 and n2 do not. Job 0 saved on n0 and is stopping there, job 1 runs on n1 and saved there,
job 2 runs on n2 and has saved nothing, job 3 has the promise of n0."""


def old_core() -> SchedulerCore:
    return restore(decode_state(VERSION_5.read_bytes()))


def test_a_snapshot_of_version_5_binds_jobs_as_before() -> None:
    core = old_core()

    check(core)

    directories = core.pool.node_directory
    assert directories[0] == CLUSTERS
    assert len(set(directories)) == 3
    assert core.jobs.saved_in[:4].tolist() == [CLUSTERS, directories[1], -1, -1]
    assert core.jobs.lease_in[:4].tolist() == [-1, *directories[1:], CLUSTERS]
    assert core.jobs.stopping_in[:4].tolist() == [CLUSTERS, -1, -1, -1]


def test_what_an_older_version_took_for_blind_is_free_once_the_node_names_the_directory() -> None:
    core = old_core()

    for node in range(3):
        see(core, node, SHARED)

    assert core.pool.shares_checkpoints
    assert core.jobs.saved_in[:2].tolist() == [CLUSTERS] * 2


@pytest.mark.parametrize("sees", [False, True])
def test_events_of_an_older_version_keep_what_a_node_has_named(sees: bool) -> None:
    core = core_with((OTHER, False))
    named = core.pool.node_directory[0]

    tell(core, NodeJoined(NodeId("n0"), "v100", 1, sees))

    assert core.pool.node_directory[0] == (CLUSTERS if sees else named)
