"""A job that resumes on another number of ranks: which samples each step has, and what each rank restores.

The tests import torch, which takes seconds: every process of pytest imports this module to collect its tests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavelpy import InvalidInput, LeaseIterator
from gavelpy.runtime.iterator.checkpoints import CheckpointWriter, DataPosition, EpochCursor, read_position
from gavelpy.runtime.iterator.lease_loop import LeaseLoop
from gavelpy.runtime.lease_files import newest_checkpoint
from tests.runtime.iterator.conftest import Held

EPOCHS = 2
SIZES = (1, 2, 3, 4, 6, 12)


@dataclass(frozen=True)
class Part:
    """A lease in the tests: so many steps on so many ranks."""

    ranks: int
    steps: int


parts = st.lists(st.builds(Part, st.sampled_from(SIZES), st.integers(0, 12)), max_size=5)


def steps_of(
    length: int, parts: list[Part], batch: int, directory: Path | None = None, **options: bool
) -> list[tuple[int, list[int]]]:
    """The epoch and the samples, over all ranks, of each step: in these leases, then on one rank to the end.

    `batch` is that of all ranks, or with `scales_batch` that of each.
    """
    import torch
    from torch.utils.data import TensorDataset

    from gavelpy.torch import ResumableLoader, batch_per_rank

    dataset = TensorDataset(torch.arange(length))
    start, taken = DataPosition(), []
    for part in [*parts, Part(1, 1 << 30)]:
        own = batch if options.get("scales_batch") else batch_per_rank(batch, part.ranks)
        loaders = [
            ResumableLoader(dataset, own, seed=7, rank=rank, world=part.ranks, **options) for rank in range(part.ranks)
        ]
        cursors = [EpochCursor(loader, EPOCHS, start, part.ranks) for loader in loaders]
        left = cursors[0].items_left()
        runs = [iter(cursor) for cursor in cursors]
        steps = 0
        while steps < part.steps and (items := [item for run in runs for item in [next(run, None)] if item]):
            assert len(items) == part.ranks, "all ranks end at the same step"
            taken.append((cursors[0].epoch, [sample for (item,) in items for sample in item.tolist()]))
            steps += 1
            for cursor in cursors:
                cursor.position += 1
        assert steps == min(left, part.steps)
        first = cursors[0]
        position = {"batch": first.batch, "samples": first.samples}
        assert all((cursor.epoch, cursor.position) == (first.epoch, first.position) for cursor in cursors)
        start = DataPosition(start.steps + steps, first.epoch, first.position, ranks=part.ranks, **position)
    return taken


def whole_batches(length: int, batch: int) -> list[tuple[int, list[int]]]:
    """The steps of a plain loop over the order of each epoch."""
    import torch

    from gavelpy.torch import epoch_seed

    steps = []
    for epoch in range(EPOCHS):
        order = torch.randperm(length, generator=torch.Generator().manual_seed(epoch_seed(7, epoch))).tolist()
        steps += [(epoch, order[begin : begin + batch]) for begin in range(0, length, batch)]
    return steps


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 40), times=st.integers(1, 2), parts=parts)
def test_each_step_has_the_samples_of_a_plain_loop_on_any_numbers_of_ranks(
    length: int, times: int, parts: list[Part]
) -> None:
    batch = 12 * times

    taken = steps_of(length, parts, batch)

    plain = whole_batches(length, batch)
    assert [epoch for epoch, _ in taken] == [epoch for epoch, _ in plain]
    for (_, samples), (_, expected) in zip(taken, plain, strict=True):
        repeated = Counter(samples) - Counter(expected)
        assert not Counter(expected) - Counter(samples)
        assert repeated.total() < (max(SIZES) if len(expected) < batch else 1)


@settings(max_examples=25, deadline=None)
@given(length=st.integers(12, 40), parts=parts)
def test_steps_without_the_last_batch_are_equal_on_any_numbers_of_ranks(length: int, parts: list[Part]) -> None:
    taken = steps_of(length, parts, 12, drop_last=True)

    full = [(epoch, samples) for epoch, samples in whole_batches(length, 12) if len(samples) == 12]
    assert [(epoch, sorted(samples)) for epoch, samples in taken] == [
        (epoch, sorted(samples)) for epoch, samples in full
    ]


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 40), batch=st.integers(1, 5), parts=parts)
def test_epoch_has_each_sample_once_if_steps_have_more_samples_on_more_ranks(
    length: int, batch: int, parts: list[Part]
) -> None:
    taken = steps_of(length, parts, batch, scales_batch=True)

    for epoch in range(EPOCHS):
        *before, last = [samples for of, samples in taken if of == epoch]
        whole = Counter(chain.from_iterable(before))
        assert whole.total() == len(whole)
        assert set(whole) | set(last) == set(range(length))
        assert whole.total() + len(last) < length + max(SIZES)


def position_of(checkpoints: Path) -> DataPosition:
    newest = newest_checkpoint(checkpoints)
    assert newest is not None
    return read_position(newest)


def test_checkpoint_records_ranks_and_samples(held: Held) -> None:
    import torch
    from torch.utils.data import TensorDataset

    from gavelpy.torch import ResumableLoader, batch_per_rank

    held.environment(WORLD_SIZE="3", RANK="0")
    loader = ResumableLoader(TensorDataset(torch.arange(40)), batch_per_rank(12), rank=0, world=3)

    batches = LeaseIterator(loader, lambda _: None, steps_total=6)
    list(batches)

    saved = position_of(held.checkpoints)
    assert (batches.world, saved.ranks, saved.batch) == (3, 3, 12)
    assert (saved.steps, saved.epoch, saved.position, saved.samples) == (6, 1, 2, 24)


def test_total_is_announced_again_if_steps_have_more_samples(held: Held) -> None:
    import torch
    from torch.utils.data import TensorDataset

    from gavelpy.torch import ResumableLoader

    dataset = TensorDataset(torch.arange(10))
    CheckpointWriter(held.checkpoints).write(
        DataPosition(3, 0, 3, batch=1, samples=3), lambda _: None, deadline_s=float("inf")
    )
    held.environment(WORLD_SIZE="4", RANK="0", TORCHELASTIC_RESTART_COUNT="1")

    with LeaseIterator(
        ResumableLoader(dataset, 1, world=4, scales_batch=True), lambda _: None, load=lambda _: None, epochs=2
    ):
        announced = held.progress().steps_total

    assert announced == 3 + 2 + 3


def test_batch_of_all_ranks_does_not_change_by_accident(held: Held) -> None:
    import torch
    from torch.utils.data import TensorDataset

    from gavelpy.torch import ResumableLoader

    dataset = TensorDataset(torch.arange(64))
    start = DataPosition(3, 0, 3, ranks=2, batch=8, samples=24)

    with pytest.raises(
        InvalidInput, match=r"must have 8 samples over all ranks.* of 2 ranks, got 16 on 4: take batch_p"
    ):
        EpochCursor(ResumableLoader(dataset, 4, world=4), 1, start, 4)
    with pytest.raises(InvalidInput, match="must have 8 samples over all ranks"):
        ResumableLoader(dataset, 4, world=4).load_state_dict(ResumableLoader(dataset, 4, world=2).state_dict())
    scaled = ResumableLoader(dataset, 4, world=4, scales_batch=True)
    assert EpochCursor(scaled, 1, start, 4).items_left() == (64 - 24) // 16 + 1


def test_another_batch_on_as_many_ranks_continues_at_the_sample() -> None:
    import torch
    from torch.utils.data import TensorDataset

    from gavelpy.torch import ResumableLoader

    loader = ResumableLoader(TensorDataset(torch.arange(10)), 4, shuffle=False)

    cursor = EpochCursor(loader, 1, DataPosition(3, 0, 3, ranks=1, batch=1, samples=3))

    assert [batch.tolist() for (batch,) in cursor] == [[3, 4, 5, 6], [7, 8, 9]]


def test_loader_of_a_checkpoint_of_an_earlier_version_continues_at_the_batch() -> None:
    import torch
    from torch.utils.data import TensorDataset

    from gavelpy.torch import ResumableLoader

    iterated, loaded = (ResumableLoader(TensorDataset(torch.arange(10)), 2, shuffle=False, world=2) for _ in range(2))

    cursor = EpochCursor(iterated, 1, DataPosition(2, 0, 2), 2)
    loaded.load_state_dict({"epoch": 0, "position": 2})

    assert [batch.tolist() for (batch,) in cursor] == [[8]]
    assert loaded.state_dict() == {"epoch": 0, "position": 2, "samples": 8, "batch": 4, "ranks": 2}


def test_loader_that_does_not_count_samples_is_refused_on_another_number_of_ranks() -> None:
    start = DataPosition(2, 0, 2, ranks=2)

    with pytest.raises(
        InvalidInput, match="range must count samples to resume a checkpoint of 2 ranks on 4: use ResumableLoader"
    ):
        EpochCursor(range(9), 1, start, 4)
    assert list(EpochCursor(range(9), 1, start, 2)) == list(range(2, 9))
    assert list(EpochCursor((), 1, DataPosition(2, ranks=2), 4)._items or ()) == []


def test_loop_of_a_framework_resumes_on_another_number_of_ranks_with_the_same_batch(held: Held) -> None:
    position = DataPosition(3, 0, 3, batch=8, samples=24)
    CheckpointWriter(held.checkpoints, ranks=2).write(position, lambda _: None, deadline_s=float("inf"))
    held.environment(WORLD_SIZE="4", RANK="0", TORCHELASTIC_RESTART_COUNT="1")

    with LeaseLoop(batch=8) as loop:
        assert loop.steps_done == 3
    with pytest.raises(InvalidInput, match=r"must have 8 samples over all ranks, .* of 2 ranks, got 16 on 4"):
        LeaseLoop(batch=16)
    with pytest.raises(InvalidInput, match="the loop must count samples to resume"):
        LeaseLoop()


class Counted(list[int]):
    """Items with as many samples on any number of ranks."""

    samples_per_item = 12


def test_any_loader_continues_on_another_number_of_ranks_if_it_says_what_its_items_are() -> None:
    start = DataPosition(2, 0, 2, ranks=2, batch=12, samples=24)

    assert list(EpochCursor(Counted(range(9)), 1, start, 4)) == list(range(2, 9))


def test_batch_must_be_a_multiple_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    from gavelpy.torch import batch_per_rank

    monkeypatch.setenv("WORLD_SIZE", "4")

    assert [batch_per_rank(64), batch_per_rank(64, 2)] == [16, 32]
    with pytest.raises(InvalidInput, match=r"total must be a multiple of all numbers .* here of 4, got 6"):
        batch_per_rank(6)
    monkeypatch.setenv("GAVEL_GPU_SIZES", "1,3,4")
    with pytest.raises(InvalidInput, match=r"here of 1, 3, 4, got 64"):
        batch_per_rank(64)


def test_rank_that_has_saved_no_random_state_gets_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from gavelpy.torch import load_random_state, save_random_state

    def drawn(rank: int, seed: int) -> list[float]:
        """Numbers of this rank after it loads."""
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(seed)
        load_random_state(tmp_path)
        return torch.rand(3).tolist()

    untouched = drawn(1, 5)
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(100 + rank)
        save_random_state(tmp_path)
    by_rank = [drawn(rank, seed=1) for rank in range(4)]

    assert by_rank == [drawn(rank, seed=2) for rank in range(4)]
    assert len({numbers[0] for numbers in [untouched, *by_rank]}) == 5
    for seed, numbers in ((5, untouched), (101, by_rank[1])):
        torch.manual_seed(seed)
        assert torch.rand(3).tolist() == numbers
