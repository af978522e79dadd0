"""Pages of 100,000 jobs: each takes less than 200 ms of CPU time, of the scheduler and its client together."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.runtime.client.serving import Serving, make_description, serving, until
from tests.runtime.web.http import call

pytestmark = pytest.mark.slow  # half a minute of submissions
JOBS, AT_ONCE = 100_000, 10_000
LIMIT_S = 0.2
PATHS = (
    "jobs",
    "jobs?limit=500",
    "jobs?sort=urgency&order=descending",
    "jobs?sort=progress&offset=50000",
    "jobs?name=99&state=all",
    "jobs/5?forecast=false",
    "jobs/5/samples",
    "cluster",
    "nodes",
    "events",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    sections: dict[str, dict[str, Any]] = {
        "scheduler": {"web_listen": "127.0.0.1:0"},
        "mechanism": {"round_s": 600.0},
        "nodes": {"silent_after_s": 600.0},
    }
    with serving(tmp_path_factory.mktemp("many"), **sections) as found, found.client() as client:
        leave = found.join_node("n0", gpus=8)
        for first in range(0, JOBS, AT_ONCE):
            client.submit([make_description(f"job-{first + k}", hold=k % 5 == 0) for k in range(AT_ONCE)])
        until(lambda: call(found, "/api/v1/cluster").json["objective"] > 0, "an allocation")
        yield found
        leave()


@pytest.mark.parametrize("path", PATHS)
def test_page_takes_less_than_200_ms(served: Serving, path: str) -> None:
    took_s = [_took_s(served, path) for _ in range(5)]

    print(f"{path:40s} {1e3 * statistics.median(took_s):6.1f} ms")  # noqa: T201 with -s
    assert statistics.median(took_s) < LIMIT_S


def _took_s(served: Serving, path: str) -> float:
    began_s = time.process_time()
    assert call(served, f"/api/v1/{path}").status == 200
    return time.process_time() - began_s
