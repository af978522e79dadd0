"""Training with PyTorch: a stopped and resumed run equals an uninterrupted one.

The tests import torch, which takes seconds: every process of pytest imports this module to collect its tests.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gavelpy import InvalidInput
from gavelpy.runtime.iterator.timing import LEAD_STEPS
from gavelpy.runtime.lease_files import newest_checkpoint
from gavelpy.runtime.local_cluster import reserved_port
from tests.conftest import PROJECT
from tests.runtime.iterator.conftest import Held

STEPS = 30  # of training.py


@pytest.mark.parametrize("stop_at", [1, 9, 10, 17, STEPS - 1])
def test_stopped_and_resumed_training_equals_an_uninterrupted_one(held: Held, stop_at: int) -> None:
    from tests.runtime.iterator.training import train

    held.monkeypatch.delenv("GAVEL_LEASE_DIR")
    held.monkeypatch.delenv("GAVEL_CHECKPOINT_DIR")
    whole, _ = train()
    held.environment(GAVEL_LEASE_DIR=str(held.directory), GAVEL_CHECKPOINT_DIR=str(held.checkpoints))

    held.order(steps_max=float(stop_at))
    before, stopped = train()
    held.environment(GAVEL_RESUME_DIR=str(newest_checkpoint(held.checkpoints)))
    held.order(steps_max=0.0)
    after, finished = train()

    assert (len(before), stopped.finished, finished.finished) == (stop_at, False, True)
    assert [*before, *after] == pytest.approx(whole, abs=1e-6)
    assert len(whole) == STEPS


def test_gang_that_is_stopped_and_resumed_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.runtime.iterator.gang_of_torch", str(tmp_path)]
    base = {**os.environ, "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    with reserved_port() as port:
        gang = {**base, "MASTER_PORT": str(port)}
        ranks = [
            subprocess.Popen(command, cwd=PROJECT, env=gang | _rank_variables(rank), stdout=subprocess.PIPE)
            for rank in range(2)
        ]
        told = [json.loads(rank.communicate(timeout=300)[0]) for rank in ranks]

    assert told[0][1] == pytest.approx(told[0][0], abs=1e-6)
    assert told[1][1] == pytest.approx(told[1][0], abs=1e-6)
    assert told[0][2] == told[1][2]
    assert (
        8 <= told[0][2] <= 8 + LEAD_STEPS < len(told[0][0])
    )  # a rank may propose a step ahead before it is at its limit
    assert told[0][0] != told[1][0]


def _rank_variables(rank: int) -> dict[str, str]:
    """Of one of two ranks on this node."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("gpus", "local_world", "backend"), [(0, 2, "gloo"), (1, 1, "nccl"), (1, 2, "gloo"), (2, 2, "nccl"), (8, 4, "nccl")]
)
def test_ranks_that_share_a_gpu_use_gloo_because_nccl_refuses_them(
    monkeypatch: pytest.MonkeyPatch, gpus: int, local_world: int, backend: str
) -> None:
    import torch
    from torch import distributed

    from gavelpy.torch import process_group

    chosen: list[str] = []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(2 * local_world))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local_world))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(distributed, "init_process_group", chosen.append)
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: None)

    with process_group():
        pass

    assert chosen == [backend]


def test_order_of_an_epoch_depends_on_seed_and_epoch_only() -> None:
    from gavelpy.torch import ResumableSampler, epoch_seed

    sampler = ResumableSampler(50, seed=3)

    sampler.resume_at(2, 0)
    whole = list(sampler)
    sampler.resume_at(2, 20)
    rest = list(sampler)
    sampler.resume_at(3, 0)
    other = list(sampler)

    assert rest == whole[20:]
    assert sorted(whole) == sorted(other) == list(range(50))
    assert whole != other
    assert epoch_seed(3, 2) != epoch_seed(2, 3)


def test_ranks_share_an_epoch_evenly() -> None:
    from gavelpy.torch import ResumableSampler

    parts = [list(ResumableSampler(10, rank=rank, world=3)) for rank in range(3)]

    assert [len(part) for part in parts] == [4, 4, 4]
    assert set().union(*parts) == set(range(10))


def test_order_without_shuffling_is_that_of_the_dataset() -> None:
    from gavelpy.torch import ResumableSampler

    assert list(ResumableSampler(5, shuffle=False)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("length", "rank", "name"), [(0, 0, "length"), (5, 2, "rank")])
def test_sampler_names_what_is_wrong(length: int, rank: int, name: str) -> None:
    from gavelpy.torch import ResumableSampler

    with pytest.raises(InvalidInput, match=f"{name} must be"):
        ResumableSampler(length, rank=rank, world=2)


def test_loader_knows_its_length_wherever_it_begins() -> None:
    import torch
    from torch.utils.data import TensorDataset

    from gavelpy.torch import ResumableLoader

    loader = ResumableLoader(TensorDataset(torch.arange(10)), 3, shuffle=False)

    loader.resume_at(0, 2)

    assert len(loader) == 4
    assert [batch.tolist() for (batch,) in loader] == [[6, 7, 8], [9]]


def test_loader_draws_no_global_random_numbers() -> None:
    import torch
    from torch.utils.data import TensorDataset

    from gavelpy.torch import ResumableLoader

    loader = ResumableLoader(TensorDataset(torch.arange(10)), 3)
    before = torch.get_rng_state()

    list(loader)

    assert torch.equal(torch.get_rng_state(), before)


def test_random_numbers_continue_after_a_restore() -> None:
    import torch

    from gavelpy.torch import random_state, set_random_state

    state = random_state()
    first = (torch.rand(3).tolist(), random.random(), np.random.rand(3).tolist())

    set_random_state(state)
    second = (torch.rand(3).tolist(), random.random(), np.random.rand(3).tolist())

    assert first == second


def test_parts_must_be_those_that_were_saved(tmp_path: Path) -> None:
    import torch

    from gavelpy.torch import TrainingState

    model = torch.nn.Linear(2, 2)
    TrainingState(model=model).save(tmp_path)

    with pytest.raises(InvalidInput, match=r"\['model'\], got \['net'\]"):
        TrainingState(net=model).load(tmp_path)
    with pytest.raises(InvalidInput, match="parts must name at least one part to save"):
        TrainingState()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_state_is_a_part_for_distributed_checkpoints(tmp_path: Path) -> None:
    import torch
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    from gavelpy.torch import TrainingState

    saved, loaded = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    save({"training": TrainingState(model=saved)}, checkpoint_id=tmp_path / "c", no_dist=True)
    load({"training": TrainingState(model=loaded)}, checkpoint_id=tmp_path / "c", no_dist=True)

    assert torch.equal(saved.weight, loaded.weight)
