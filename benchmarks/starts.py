"""Start of a one-GPU job: from the call that submits it to the first instruction of its command.

On one machine with a scheduler and an agent, measured with jobs that run as the agent, as their owner, and as their
owner with limits and a /tmp of their own. Needs root.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.slurm import SETTINGS, STARTS, load_of_machine, request, start_s
from gavelpy.runtime.local_cluster import LocalCluster, LocalNode

ACCOUNT = "games"  # of Debian; nothing else runs as this
OWNER = f'run_as = "owner"\nusers = {{ local = "{ACCOUNT}" }}\n'
LIMITS = "private_tmp = true\nmemory_bytes_per_gpu = 1073741824\nprocesses_per_gpu = 1000\n"
LIMIT_S = 0.5
NODES = {"as the agent": "", "as its owner": OWNER, "as its owner, limited, own /tmp": OWNER + LIMITS}


def run() -> None:
    """Prints medians and ranges, each node's when it is measured: some 40 s for a node, of which 22 are pauses."""
    if os.geteuid() != 0:
        print("left out: only root can run jobs as other accounts")
        return
    for name, more in NODES.items():
        print(f"{name:>31}: {STARTS} jobs, one after the other", flush=True)
        with _cluster(more) as cluster, cluster.client() as client:
            taken = start_s(
                cluster.directory / "started",
                lambda command, client=client: client.SubmitJobs(request(command), timeout=10.0),
            )
        print(
            f"{name:>31}: median {statistics.median(taken):.3f} s, {min(taken):.3f} to {max(taken):.3f} s, "
            f"{len(taken)} jobs (limit {LIMIT_S:g} s); {load_of_machine()}",
            flush=True,
        )


@contextmanager
def _cluster(more: str) -> Iterator[LocalCluster]:
    """A cluster of one node, in a directory that the account of the jobs can pass through."""
    directory = Path(tempfile.mkdtemp(prefix="gavel-starts-", dir="/var/lib"))
    directory.chmod(0o755)
    file = directory / "node.toml"
    file.write_text(f"[node]\n{more}")
    os.environ["GAVEL_NODE_CONFIG"] = str(file)
    try:
        with LocalCluster(directory / "cluster", (LocalNode("n0", "v100:1"),), SETTINGS) as cluster:
            cluster.checkpoints.chmod(0o711)
            started = cluster.directory / "started"
            started.mkdir()
            started.chmod(0o777)
            cluster.start()
            yield cluster
    finally:
        del os.environ["GAVEL_NODE_CONFIG"]
        shutil.rmtree(directory)


if __name__ == "__main__":
    run()
