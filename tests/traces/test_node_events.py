"""Node events: our CSV, and SkyPilot's availability of spot nodes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.model.cluster_changes import ChangeKind
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.simulator.compare import simulate
from gavelpy.traces.node_events import read_node_events

HEADER = "at_s,event,node,gpu_type,gpus,zone\n"
ROWS = HEADER + "0,joined,n1,v100,4,a\n60,draining,n1,,,\n90.5,lost,n1,,,\n"
SPOT = "availability-2-node-aws-02-15-2023-us-west-2a_v100_8.json"


def make_spot(data: object, gap_seconds: object = 100) -> str:
    return json.dumps({"metadata": {"gap_seconds": gap_seconds}, "data": data})


def test_csv_has_nodes_and_times(tmp_path: Path) -> None:
    file = tmp_path / "nodes.csv"
    file.write_text(ROWS)

    found = read_node_events([file])

    assert [(one.at_s, one.kind.value, one.node.node_id) for one in found] == [
        (0.0, "joined", "n1"),
        (60.0, "draining", "n1"),
        (90.5, "lost", "n1"),
    ]
    assert (found[0].node.gpu_type, found[0].node.gpu_count, found[0].node.zone) == ("v100", 4, "a")


def test_spot_instances_join_and_are_lost_in_order(tmp_path: Path) -> None:
    file = tmp_path / SPOT
    file.write_text(make_spot([0, 2, 2, 1, 0, 1]))

    found = read_node_events([file])

    assert [(one.at_s, one.kind.value, one.node.node_id[-1]) for one in found] == [
        (100.0, "joined", "0"),
        (100.0, "joined", "1"),
        (300.0, "lost", "1"),
        (400.0, "lost", "0"),
        (500.0, "joined", "0"),
    ]
    node = found[0].node
    assert (node.gpu_type, node.gpu_count, node.zone, node.region) == ("v100", 8, "us-west-2a", "us-west-2")


BROKEN = {
    "event": (ROWS.replace("lost", "died"), 4, "'died'"),
    "time": (ROWS.replace("60", "x"), 3, "'x'"),
    "negative": (ROWS.replace("60", "-1"), 3, "'-1'"),
    "backwards": (ROWS.replace("90.5", "5"), 4, "'5'"),
    "type": (ROWS.replace("v100", ""), 2, "''"),
    "gpus": (ROWS.replace(",4,", ",0,", 1), 2, "'0'"),
    "no gpus": (ROWS.replace(",4,", ",,", 1), 2, "''"),
    "node": (ROWS.replace("joined,n1", "joined,"), 2, "''"),
    "cells": (ROWS.replace(",4,a", ",4"), 2, "5 cells"),
    "column": (ROWS.replace("zone", "site"), 1, "'site'"),
    "no event": (HEADER, 0, "'no event'"),
    "gap": (make_spot([1], 0), 1, "0"),
    "no gap": (make_spot([1], None), 1, "None"),
    "data": (make_spot([1, -1]), 1, "-1"),
    "half an instance": (make_spot([0.5]), 1, "0.5"),
    "text": (make_spot(["1"]), 1, "'1'"),
    "no data": (make_spot([]), 1, "'data': []"),
    "cut": (make_spot([1, 1])[:-3], 1, "end of the file"),
}


@pytest.mark.parametrize(("text", "line", "value"), BROKEN.values(), ids=BROKEN)
def test_broken_file_gives_one_line_with_its_place(tmp_path: Path, text: str, line: int, value: str) -> None:
    file = tmp_path / SPOT
    file.write_text(text)

    with pytest.raises(InvalidInput) as caught:
        read_node_events([file])

    message = str(caught.value)
    assert message.startswith(f"{file}:{line}: " if line else f"{file}: ")
    assert value in message.rpartition("got ")[2]
    assert "\n" not in message


def test_name_of_a_spot_file_must_have_its_zone(tmp_path: Path) -> None:
    file = tmp_path / "spot.json"
    file.write_text(make_spot([1]))

    with pytest.raises(InvalidInput, match=r"ZONE_TYPE_GPUS\.json.*got 'spot\.json'"):
        read_node_events([file])


@pytest.mark.reference
def test_spot_files_are_read_whole(reference_directory: Path) -> None:
    """The node is there for as many points as the data have ones."""
    files = sorted((reference_directory / "data" / "spot").glob("*.json"))
    assert len(files) == 7

    for file in files:
        document = json.loads(file.read_text())
        gap_s, data = document["metadata"]["gap_seconds"], document["data"]
        found = read_node_events([file])
        assert all(one.kind is not two.kind for one, two in pairwise(found))
        ends = [*(one.at_s for one in found), *([len(data) * gap_s] if len(found) % 2 else [])]
        assert found[0].kind is ChangeKind.JOINED
        assert sum(end - begin for begin, end in zip(ends[::2], ends[1::2], strict=True)) == sum(data) * gap_s


@pytest.mark.reference
def test_spot_nodes_of_two_zones_run_jobs_between_their_losses(reference_directory: Path) -> None:
    """No more GPU time is leased than the nodes were there, and every job ends."""
    names = [f"availability-1-node-aws-02-15-2023-{zone}_v100_1.json" for zone in ("us-east-2a", "us-west-2a")]
    changes = read_node_events([reference_directory / "data" / "spot" / name for name in names])
    jobs = tuple(JobSpec(JobId(f"j{i}"), 20_000.0, rates_steps_per_s={"v100": 1.0}) for i in range(12))
    trace = Trace(jobs, np.arange(12) * 3_600.0, node_changes=changes)

    result = simulate(trace, Cluster((), ()), "fifo")

    finish_s = result.history.finish_s[:12]
    assert np.isfinite(finish_s).all()
    last_s, up_s, since_s = float(finish_s.max()), 0.0, dict[str, float]()
    for change in (one for one in changes if one.at_s < last_s):
        if change.kind is ChangeKind.JOINED:
            since_s[change.node.node_id] = change.at_s
        else:
            up_s += change.at_s - since_s.pop(change.node.node_id)
    up_s += sum(last_s - at_s for at_s in since_s.values())
    assert 12 * 20_000.0 <= result.history.gpu_s[:12].sum() <= up_s + 1.0
    assert {change.node.zone for change in changes} == {"us-east-2a", "us-west-2a"}
