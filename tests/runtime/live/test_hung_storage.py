"""A checkpoint directory that hangs: jobs that do not use it are unaffected, and the node is soon in use again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gavelpy.runtime.local_cluster import LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.hanging import HangingDirectory, why_not
from tests.runtime.live.stage import StartStage

HANG_S = 9.0  # longer than the node waits for storage, and than the scheduler waits for the node
BACK_S = 30.0
RATES = {"k80": 10.0}
QUIET = "/bin/sh -c 'while :; do sleep 0.2; done'"

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be mounted")


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Callable[[str], HangingDirectory]]:
    """Mounts the cluster's checkpoint directory for a node."""
    made: list[HangingDirectory] = []

    def mount(node_id: str) -> HangingDirectory:
        directory = HangingDirectory(tmp_path / "cluster" / "checkpoints", tmp_path / f"mount-{node_id}")
        made.append(directory.__enter__())
        return directory

    yield mount
    for directory in made:
        directory.__exit__(None, None, None)


def test_hang_touches_no_job_that_does_not_use_the_directory_and_pins_none(
    start: StartStage, hanging: Callable[[str], HangingDirectory]
) -> None:
    mount = hanging("n1")
    stage = start(
        LocalNode("n0", "v100:1"),
        LocalNode("n1", "k80:2", checkpoint_directory=str(mount.mount)),
        settings={"nodes": {"mass_silence_s": 0.0}},
    )
    quiet = stage.submit("quiet", QUIET, 1e6, RATES)
    stage.wait(lambda: stage.job(quiet).state == pb.JOB_STATE_RUNNING, "the quiet job runs")
    assert stage.node("n0").checkpoint_directory_id == stage.node("n1").checkpoint_directory_id

    mount.hang()
    began_s = time.monotonic()
    stage.wait(lambda: stage.node("n1").checkpoints == "unknown", "the hang is noticed")
    newcomer = stage.submit("newcomer", QUIET, 1e6, RATES)
    states = set()
    while time.monotonic() < began_s + HANG_S:
        states.add((stage.node("n1").state, stage.job(quiet).lease, stage.node("n1").sees_checkpoints))
        time.sleep(0.2)
    waiting = stage.explained(newcomer).job
    mount.thaw()
    thawed_s = time.monotonic()
    stage.wait(lambda: stage.job(newcomer).state == pb.JOB_STATE_RUNNING, "the node is in use again")

    assert time.monotonic() - thawed_s < BACK_S
    assert states == {("up", stage.job(quiet).lease, True)}
    assert stage.job(quiet).restarts == 0
    assert waiting.state != pb.JOB_STATE_RUNNING
    assert f"the checkpoint directory ('{mount.mount}') does not answer" in waiting.reason
    assert stage.node("n1").checkpoints == "seen"
