"""Azure's LLM load: replicas by the stated rule, against a dumber count, and in a simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.simulator.compare import simulate
from gavelpy.traces.azure_llm import spells
from gavelpy.traces.formats import DurationRule, ReadOptions
from gavelpy.traces.reader import read_trace
from tests.traces.histories import write_sample


def test_replicas_are_there_while_the_requests_need_them(tmp_path: Path) -> None:
    """18:17: 60 s of reading and 40 s of generating, 2 replicas; 18:18: 61 s, 2; 18:19: none; 18:20: 1."""
    trace = read_trace(write_sample(tmp_path, "azure_llm"))

    found = [(at, job.steps_total, job.gpus) for at, job in zip(trace.arrival_s, trace.jobs, strict=True)]
    assert found == [(0.0, 120.0, 1), (0.0, 120.0, 1), (180.0, 60.0, 1)]
    assert {job.entity for job in trace.jobs} == {"llm-service"}
    assert set(trace.jobs[0].rates_steps_per_s.values()) == {1.0}
    assert trace.provenance["starts_at_s"] == 1_700_158_620.0  # 2023-11-16 18:17 UTC


def test_provenance_states_the_rule(tmp_path: Path) -> None:
    found = read_trace(write_sample(tmp_path, "azure_llm")).provenance

    assert found["durations"] == "seconds"
    assert (found["requests"], found["interval_s"]) == (5, 60.0)
    assert (found["read_tokens_per_s"], found["generated_tokens_per_s"]) == (10_000.0, 1_000.0)


@pytest.mark.parametrize("seed", range(20))
def test_spells_cover_each_replica_in_each_interval_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = {int(interval): int(rng.integers(5)) for interval in rng.choice(40, 25, replace=False)}

    covered = [(interval, replica) for replica, first, end in spells(counts) for interval in range(first, end)]

    assert sorted(covered) == sorted((interval, i) for interval, count in counts.items() for i in range(count))


def test_spells_end_only_where_a_replica_is_not_needed() -> None:
    counts = {0: 2, 1: 3, 2: 1, 3: 0, 4: 2}

    found = sorted(spells(counts))

    assert found == [(0, 0, 3), (0, 4, 5), (1, 0, 2), (1, 4, 5), (2, 1, 2)]


def test_rows_out_of_order_give_the_same_jobs(tmp_path: Path) -> None:
    path = write_sample(tmp_path, "azure_llm")
    header, *rows = path.read_text().splitlines()
    other = tmp_path / "shuffled.csv"
    other.write_text("\n".join([header, *reversed(rows)]) + "\n")

    one, two = read_trace(path), read_trace(other)

    assert one.jobs == two.jobs
    assert one.arrival_s.tolist() == two.arrival_s.tolist()


def test_load_of_no_tokens_needs_no_replica(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,0,0\n")

    with pytest.raises(InvalidInput, match="file must have a job that ran on a GPU, got none"):
        read_trace(path)


def test_replicas_run_in_a_simulation_next_to_each_other(tmp_path: Path) -> None:
    trace = read_trace(write_sample(tmp_path, "azure_llm"), options=ReadOptions(durations=DurationRule.SECONDS))

    result = simulate(trace, Cluster.parse("v100:1,k80:1"), "fifo")

    assert np.isfinite(result.history.finish_s[:3]).all()
    assert result.history.gpu_s[:3].sum() >= 300.0
