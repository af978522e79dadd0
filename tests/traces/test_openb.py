"""Alibaba's openb: node and pod lists, and one clear line for each broken variant."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.traces.openb import read_openb_nodes, read_openb_pods

NODES = """sn,cpu_milli,memory_mib,gpu,model
openb-node-0000,64000,262144,2,P100
openb-node-0001,96000,393216,8,G2
openb-node-0002,32000,65536,0,
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,12000,16384,1,1000,,LS,Running,0,12537496,0
p1,6000,12288,1,460,G2|G3,BE,Pending,427061,12902960,
p2,1000,1024,0,0,,BE,Failed,5,6,5
p3,1000,1024,8,1000,P100,BE,Failed,5,6,5
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "list.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_nodes_have_their_gpus_and_amounts(tmp_path: Path) -> None:
    nodes = read_openb_nodes(written(tmp_path, NODES))

    assert nodes.models == ("P100", "G2")
    assert nodes.gpus.tolist() == [2, 8, 0]
    assert nodes.cpu_milli.tolist() == [64000, 96000, 32000]
    assert nodes.capacity_milli == 10_000


def test_pods_have_fractions_models_and_times(tmp_path: Path) -> None:
    pods = read_openb_pods(written(tmp_path, PODS), ("P100", "G2"))

    assert pods.names == ("p0", "p1", "p2", "p3")
    assert pods.tasks.gpu_milli.tolist() == [1000, 460, 0, 1000]
    assert pods.tasks.may_use.tolist() == [[True, True], [False, True], [True, True], [True, False]]
    assert pods.tasks.total_milli.tolist() == [1000, 460, 0, 8000]
    assert pods.created_s.tolist() == [0, 427061, 5, 5]
    assert math.isnan(pods.scheduled_s[1])


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("sn,cpu_milli", "name,cpu_milli", 1, "'sn'"),
        ("64000", "-1", 2, "cpu_milli must be a whole number"),
        (",8,G2", ",99,G2", 3, "gpu must be a whole number in"),
        (",8,G2", ",8,", 3, "model must be the model of the node's GPUs"),
        ("openb-node-0001", "openb-node-0000", 0, "node_ids must be unique"),
    ],
)
def test_broken_node_lists_give_one_line(tmp_path: Path, old: str, new: str, line: int, what: str) -> None:
    path = written(tmp_path, NODES.replace(old, new))

    with pytest.raises(InvalidInput, match=what) as caught:
        read_openb_nodes(path)

    assert (caught.value.file, caught.value.line) == (str(path), line)


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("num_gpu", "gpus", 1, "'num_gpu'"),
        ("1,460", "1,0", 3, "gpu_milli must be a whole number in"),
        ("8,1000,P100", "8,500,P100", 5, "gpu_milli must be 1000 for a pod on several GPUs"),
        ("p1,6000", "p1,many", 3, "cpu_milli must be a whole number"),
        ("427061,12902960", "then,12902960", 3, "creation_time must be a finite number"),
    ],
)
def test_broken_pod_lists_give_one_line(tmp_path: Path, old: str, new: str, line: int, what: str) -> None:
    path = written(tmp_path, PODS.replace(old, new))

    with pytest.raises(InvalidInput, match=what) as caught:
        read_openb_pods(path, ("P100", "G2"))

    assert (caught.value.file, caught.value.line) == (str(path), line)
