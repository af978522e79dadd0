"""Who follows a log goes on over a restart of the scheduler: every line once, in order."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.client.settings import ClientSettings
from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
from gavelpy.runtime.wire import client_pb2 as pb
from tests.cli.test_cluster import FAST
from tests.runtime.client.serving import make_description, until

COUNTING = "import time\nfor n in range(2000): print(n, flush=True); time.sleep(0.003)"
LINES = [str(n) for n in range(2000)]
NODE = LocalNode("n1", "v100:2")


class Follower:
    """Reads a log in a thread of its own."""

    def __init__(self, cluster: LocalCluster, tail_lines: int) -> None:
        self.lines: list[str] = []
        self._client = Client(ClientSettings(scheduler=cluster.address, timeout_s=30.0))
        self._request = pb.ReadLogsRequest(job="count", rank=-1, follow=True, tail_lines=tail_lines)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self._client as client:
            for message in client.logs(self._request):
                self.lines.extend(message.batch.text)

    def is_over(self) -> bool:
        return not self._thread.is_alive()


@pytest.mark.parametrize("is_over_meanwhile", [False, True])
def test_every_line_comes_once_though_the_scheduler_is_killed(tmp_path: Path, is_over_meanwhile: bool) -> None:
    with LocalCluster(tmp_path, (NODE,), FAST) as cluster, Client(ClientSettings(scheduler=cluster.address)) as client:
        cluster.start()
        client.submit([make_description("count", steps=1e9, command=f'{sys.executable} -c "{COUNTING}"')])
        follower = Follower(cluster, 0)
        until(lambda: len(follower.lines) > 300, "lines come")
        later = Follower(cluster, 5)
        until(lambda: len(later.lines) > 20, "lines come to who asked for the last ones")

        cluster.kill("scheduler")
        log = next((tmp_path / "n1" / "leases").rglob("rank-0.out"))
        wanted = LINES[-1] if is_over_meanwhile else str(len(follower.lines) + 300)
        until(lambda: f" {wanted}\n" in log.read_text(), "the job goes on")
        cluster.start_scheduler()
        until(follower.is_over, "the first has read all")
        until(later.is_over, "the second has read all")

    assert follower.lines == LINES
    assert later.lines == LINES[-len(later.lines) :]
    assert len(later.lines) > 25
