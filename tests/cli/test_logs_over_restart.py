"""`gavel logs --follow` continues across a restart of the scheduler: every line once, in order."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.local_cluster import SCHEDULER, LocalCluster, LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.client.serving import make_description, until

COUNTING = """
import itertools, pathlib, sys, time
for n in itertools.takewhile(lambda _: not pathlib.Path(sys.argv[1]).exists(), itertools.count()):
    print(n, flush=True)
    time.sleep(0.003)
print("end", flush=True)
"""
NODE = LocalNode("n1", "v100:2")
LONG = {"nodes": {"heartbeat_interval_s": 0.1}, "mechanism": {"round_s": 60.0}}  # leases outlast a restart


class Follower:
    """Reads a log in its own thread."""

    def __init__(self, cluster: LocalCluster, tail_lines: int) -> None:
        self.lines: list[str] = []
        self._client = Client(ClientSettings(scheduler=cluster.address))
        self._client.wait_through_outages(lambda _: None)
        self._request = pb.ReadLogsRequest(job="count", rank=-1, follow=True, tail_lines=tail_lines)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self._client as client:
            for message in client.logs(self._request):
                self.lines.extend(message.batch.text)

    def is_over(self) -> bool:
        return not self._thread.is_alive()


class Scene:
    """A job that counts until a file exists, and two readers of its log: from its start, and from its last lines."""

    def __init__(self, cluster: LocalCluster, over: Path) -> None:
        self.cluster = cluster
        self.over = over
        self.first = Follower(cluster, 0)
        until(lambda: len(self.first.lines) > 300, "there are lines")
        self.later = Follower(cluster, 5)
        until(lambda: len(self.later.lines) > 20, "the reader of the last lines gets lines")

    def until_printed(self, text: str) -> None:
        log = next((self.cluster.directory / NODE.node_id / "leases").rglob("rank-0.out"))
        until(lambda: f" {text}\n" in log.read_text(), f"the job prints {text}")

    def until_read(self) -> None:
        until(self.first.is_over, "the first has read all")
        until(self.later.is_over, "the second has read all")

    def check(self) -> None:
        """Checks that both readers have every line once, the second from its first line on."""
        lines = self.first.lines
        assert lines == [*map(str, range(len(lines) - 1)), "end"]
        assert self.later.lines == lines[-len(self.later.lines) :]
        assert len(self.later.lines) > 25


@contextmanager
def followed(folder: Path) -> Iterator[Scene]:
    script, over = folder / "counting.py", folder / "over"
    script.write_text(COUNTING)
    with LocalCluster(folder / "cluster", (NODE,), LONG) as cluster:
        cluster.start()
        with Client(ClientSettings(scheduler=cluster.address)) as client:
            client.submit([make_description("count", steps=1e9, command=f"{sys.executable} {script} {over}")])
        yield Scene(cluster, over)


def test_every_line_is_read_once_although_the_scheduler_is_killed(tmp_path: Path) -> None:
    with followed(tmp_path) as scene:
        scene.cluster.kill(SCHEDULER)
        scene.until_printed(str(len(scene.first.lines) + 300))

        scene.cluster.start_scheduler()
        scene.over.touch()
        scene.until_read()

    scene.check()


@pytest.mark.slow
def test_every_line_is_read_once_although_the_job_ends_while_the_scheduler_is_down(tmp_path: Path) -> None:
    with followed(tmp_path) as scene:
        scene.cluster.kill(SCHEDULER)
        scene.over.touch()
        scene.until_printed("end")

        scene.cluster.start_scheduler()
        scene.until_read()

    scene.check()
