"""Clusters are built from counts or text; bad values are refused with field, value and accepted range."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import GPU_COUNT_MAX, Cluster, ClusterNode
from gavelpy.model.job import NodeId

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)


def test_nodes_have_the_gpus_in_the_order_given() -> None:
    cluster = Cluster.of({"v100": 6, "k80": 2}, gpus_per_node=4)

    assert [(s.node_id, s.gpu_type, s.gpu_count) for s in cluster.nodes] == [
        ("v100-0", "v100", 4),
        ("v100-1", "v100", 2),
        ("k80-0", "k80", 2),
    ]


def test_a_type_without_gpus_keeps_its_place() -> None:
    cluster = Cluster.of({"v100": 0, "k80": 2})

    assert cluster.gpu_types == ("v100", "k80")
    assert cluster.gpu_counts.tolist() == [0, 2]


def test_unknown_prices_are_zero() -> None:
    cluster = Cluster.of({"v100": 1, "k80": 1}, price_usd_per_gpu_h={"k80": 0.45})

    assert cluster.prices.tolist() == [0.0, 0.45]


@given(gpus=st.dictionaries(NAMES, st.integers(0, 50), min_size=1), gpus_per_node=st.integers(1, 9))
def test_text_and_counts_give_the_same_cluster(gpus: dict[str, int], gpus_per_node: int) -> None:
    gpus["one"] = 1  # a cluster has at least one GPU
    text = ",".join(f"{name}:{count}" for name, count in gpus.items())

    parsed = Cluster.parse(text, gpus_per_node=gpus_per_node)

    assert parsed == Cluster.of(gpus, gpus_per_node=gpus_per_node)
    assert dict(zip(parsed.gpu_types, parsed.gpu_counts.tolist(), strict=True)) == gpus
    assert max(node.gpu_count for node in parsed.nodes) <= gpus_per_node
    assert np.unique([node.node_id for node in parsed.nodes]).size == len(parsed.nodes)


def test_blanks_around_the_parts_of_text_do_not_matter() -> None:
    assert Cluster.parse(" v100:2 , k80:1 ") == Cluster.parse("v100:2,k80:1")


@pytest.mark.parametrize(
    ("gpus", "complaint"),
    [
        ({}, "cluster must name at least one GPU type, got none"),
        ({"v100": 0}, "cluster must hold 1 to 1,000,000 GPUs in all, got 0"),
        ({"v100": GPU_COUNT_MAX, "k80": 1}, "cluster must hold 1 to 1,000,000 GPUs in all, got 1,000,001"),
        ({"v100": -1}, "cluster['v100'] must be a whole number of GPUs >= 0, got -1"),
        ({"v100": 1.5}, "cluster['v100'] must be a whole number of GPUs >= 0, got 1.5"),
        ({"v100": True}, "cluster['v100'] must be a whole number of GPUs >= 0, got True"),
        ({"v 100": 1}, "cluster: a GPU type is letters, digits, '.', '_' and '-', got 'v 100'"),
        ({"": 1}, "cluster: a GPU type is letters, digits, '.', '_' and '-', got ''"),
    ],
)
def test_bad_counts_are_refused(gpus: Mapping[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        Cluster.of(gpus)


@pytest.mark.parametrize("gpus_per_node", [0, -4, GPU_COUNT_MAX + 1])
def test_bad_node_size_is_refused(gpus_per_node: int) -> None:
    with pytest.raises(InvalidInput, match=rf"gpus_per_node must be in \[1, 1000000\], got {gpus_per_node}"):
        Cluster.of({"v100": 1}, gpus_per_node=gpus_per_node)


@pytest.mark.parametrize("price", [-0.1, float("nan"), float("inf")])
def test_bad_price_is_refused(price: float) -> None:
    with pytest.raises(InvalidInput, match=r"prices_usd_per_gpu_h\['v100'\] must be a finite number >= 0"):
        Cluster.of({"v100": 1}, price_usd_per_gpu_h={"v100": price})


@pytest.mark.parametrize(
    "text", ["", "v100", "v100:", "v100:x", "v100:-1", "v100:1.5", "v100:1,", "v100:" + "9" * 5000]
)
def test_bad_text_is_refused_with_what_it_should_look_like(text: str) -> None:
    with pytest.raises(InvalidInput, match="cluster must look like v100:36,k80:12, got"):
        Cluster.parse(text)


def test_text_that_names_a_type_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cluster must name each GPU type once, got 'v100' twice"):
        Cluster.parse("v100:1,v100:2")


@pytest.mark.parametrize(
    ("nodes", "gpu_types", "complaint"),
    [
        ([("n0", "a100")], ("v100",), "gpu_type of 'n0' must be one of v100, got 'a100'"),
        ([("n0", "v100"), ("n0", "v100")], ("v100",), "node ids must be unique, got 'n0' twice"),
        ([("n0", "v100")], ("v100", "v100"), "gpu_types must be unique, got 'v100' twice"),
    ],
)
def test_nodes_that_contradict_their_cluster_are_refused(
    nodes: list[tuple[str, str]], gpu_types: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        Cluster(tuple(ClusterNode(NodeId(name), gpu_type, 1) for name, gpu_type in nodes), gpu_types)
