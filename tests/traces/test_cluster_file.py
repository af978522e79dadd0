"""Cluster files: nodes with racks, resources and prices; one clear line for each broken variant."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.traces.cluster_file import read_cluster

ROWS = """node,gpu_type,gpus,cpus,memory_gib,rack,zone,region,price_usd_per_gpu_h
a0,a100,8,128,1024,r1,hall-1,north,3.5
a1,a100,8,128,1024,r2,hall-1,north,3.5
k0,k80,4,,,,,,
"""
GROUPS = """
[prices_usd_per_gpu_h]
a100 = 3.5

[[nodes]]
name = "a"
gpu_type = "a100"
gpus = 8
count = 4
nodes_per_rack = 2
rack = "r"
zone = "hall-1"
cpus = 128

[[nodes]]
name = "k0"
gpu_type = "k80"
gpus = 4
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_are_nodes_with_places_and_prices(tmp_path: Path) -> None:
    cluster = read_cluster(written(tmp_path, "cluster.csv", ROWS))

    assert cluster.gpu_types == ("a100", "k80")
    assert cluster.gpu_counts.tolist() == [16, 4]
    assert [(node.rack, node.zone, node.region) for node in cluster.nodes] == [
        ("r1", "hall-1", "north"),
        ("r2", "hall-1", "north"),
        ("", "", ""),
    ]
    assert (cluster.nodes[0].cpus, cluster.nodes[0].memory_gib, cluster.nodes[2].cpus) == (128, 1024, 0)
    assert cluster.prices.tolist() == [3.5, 0.0]


def test_groups_are_counted_and_filled_rack_by_rack(tmp_path: Path) -> None:
    cluster = read_cluster(written(tmp_path, "cluster.toml", GROUPS))

    assert [(node.node_id, node.rack) for node in cluster.nodes] == [
        ("a-0", "r-0"),
        ("a-1", "r-0"),
        ("a-2", "r-1"),
        ("a-3", "r-1"),
        ("k0", ""),
    ]
    assert cluster.prices.tolist() == [3.5, 0.0]


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("node,gpu_type", "name,gpu_type", 1, "'node'"),
        ("a0,a100,8", "a0,a100,0", 2, "gpus must be a whole number in"),
        ("a1,a100", "a0,a100", 0, "node ids must be unique"),
        ("a1,a100", "a1,", 3, "gpu_type must be a name"),
        ("north,3.5\na1", "north,3\na1", 3, "price_usd_per_gpu_h must be the price of other a100 nodes, 3"),
        ("r2", "rack 2", 0, "rack of 'a1' must be at most 63 printable characters without spaces"),
        ("128,1024,r1", "many,1024,r1", 2, "cpus must be a finite number"),
    ],
)
def test_broken_rows_give_one_line(tmp_path: Path, old: str, new: str, line: int, what: str) -> None:
    path = written(tmp_path, "cluster.csv", ROWS.replace(old, new))

    with pytest.raises(InvalidInput, match=what) as caught:
        read_cluster(path)

    assert (caught.value.file, caught.value.line) == (str(path), line)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("gpus = 8\n", "", r"nodes\[0\] must have name, gpu_type and gpus, got none of 'gpus'"),
        ("gpus = 8", "gpus = true", r"nodes\[0\].gpus must be a whole number in \[1, 1000000\], got True"),
        ("count = 4", "count = 0", r"nodes\[0\].count must be a whole number"),
        ("cpus = 128", "cpus = -1", r"nodes\[0\].cpus must be a number in"),
        ("zone =", "hall =", r"nodes\[0\] must have the options .*, got 'hall'"),
        ('rack = "r"', "rack = 3", r"nodes\[0\].rack must be text, got 3"),
        ("a100 = 3.5", "h100 = 3.5", "prices_usd_per_gpu_h must name types of the cluster, got 'h100'"),
        ("[prices_usd_per_gpu_h]", "[prices]", "table must be nodes or prices_usd_per_gpu_h, got 'prices'"),
        ("[[nodes]]", "[[nodes", "text must be TOML"),
    ],
)
def test_broken_groups_give_one_line(tmp_path: Path, old: str, new: str, what: str) -> None:
    path = written(tmp_path, "cluster.toml", GROUPS.replace(old, new))

    with pytest.raises(InvalidInput, match=what) as caught:
        read_cluster(path)

    assert caught.value.file == str(path)
