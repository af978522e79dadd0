"""haproxy cuts schedulers from their database, clients or agents: no acknowledged job is lost, none is disturbed."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import make_url

from gavelpy.runtime.local_cluster import LocalNode, reserved_port, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.haproxy import Links, links
from tests.runtime.live.several import Several, several
from tests.runtime.live.test_standby import LIMIT_S, Submitters, sleeping

NODE = LocalNode("n1", "v100:2")
CUTS = 24
WHO = ("clients", "agents")
KINDS = ("database", "clients", "agents", "database of the standby", "all of the leader")


def through(postgres_url: str, port: int) -> str:
    """The URL of a journal by another address."""
    return make_url(postgres_url).update_query_dict({"host": f"127.0.0.1:{port}"}).render_as_string(hide_password=False)


def cut_links(kind: str, leader: str, other: str) -> list[str]:
    """The links that a cut of this kind has."""
    match kind:
        case "database of the standby":
            return [f"database-{other}"]
        case "all of the leader":
            return [f"{what}-{leader}" for what in ("database", "clients", "agents")]
    return [f"{kind}-{leader}"]


def settled(them: Several) -> tuple[str, str]:
    """The scheduler that leads and the one that stands by; waits until there are both."""
    found: list[str] = []

    def are_both() -> bool:
        found[:] = [name for name in them.ports if them.leads(name)]
        return len(found) == 1 and all(them.stands_by(name) for name in them.ports.keys() - set(found))

    wait_until(are_both, "one leads and one stands by", 60.0)
    return found[0], next(name for name in them.ports if name != found[0])


@contextlib.contextmanager
def behind_haproxy(directory: Path, postgres_url: str) -> Iterator[tuple[Several, Links]]:
    """Two schedulers, each with links of its own to the database, from clients and from agents."""
    socket = f"unix@{make_url(postgres_url).query['host']}/.s.PGSQL.5432"
    with contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(reserved_port()) for name in "ab"}
        targets = {f"database-{name}": socket for name in ports}
        for who, (name, port) in itertools.product(WHO, ports.items()):
            targets[f"{who}-{name}"] = f"127.0.0.1:{port}"
        cutter = stack.enter_context(links(directory / "haproxy", targets))
        own = {name: {"journal": through(postgres_url, cutter.ports[f"database-{name}"])} for name in ports}
        proxies = {who: ",".join(f"127.0.0.1:{cutter.ports[f'{who}-{name}']}" for name in ports) for who in WHO}
        cluster = several(directory / "cluster", postgres_url, NODE, ports=ports, own=own, proxies=proxies)
        yield stack.enter_context(cluster), cutter


@pytest.mark.slow  # about four minutes: 24 cuts
def test_no_acknowledged_job_is_lost_or_disturbed_where_links_are_cut(tmp_path: Path, postgres_url: str) -> None:
    rng, gaps_s = np.random.default_rng(27), []
    with behind_haproxy(tmp_path, postgres_url) as (them, cutter), them.client() as client:
        steady = client.submit([sleeping("steady")]).jobs[0].job
        wait_until(lambda: client.job(str(steady)).job.state == pb.JOB_STATE_RUNNING, "it runs")
        lease, expected = client.job(str(steady)).job.lease, {"steady": steady}
        with Submitters(them, 4) as clients:
            for k in range(CUTS):
                leader, other = settled(them)
                cut = cut_links(str(rng.choice(KINDS)), leader, other)
                healing = threading.Timer(rng.uniform(0.5, 4.0), lambda cut=cut: [*map(cutter.heal, cut)])
                began_s = time.monotonic()
                for link in cut:
                    cutter.cut(link)
                healing.start()
                expected[f"f{k}"] = client.submit([sleeping(f"f{k}")], key=f"f{k}").jobs[0].job
                gaps_s.append(time.monotonic() - began_s)
                healing.join()
                assert client.job(str(steady)).job.lease == lease, "a running job was disturbed"
        found = client.jobs()

    expected |= clients.acknowledged
    there = {job.name: job.job for job in found}
    assert len(found) == len(there), "a job exists twice"
    assert expected.items() <= there.items()
    assert there.keys() - expected.keys() <= set(clients.refused)
    median_s, p99_s = np.quantile(gaps_s, [0.5, 0.99])
    (tmp_path / "figures").write_text(f"median {median_s:.2f} s, p99 {p99_s:.2f} s, {len(expected)} jobs\n")
    assert p99_s <= LIMIT_S
