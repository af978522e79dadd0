"""LeaseLoop: what callbacks of frameworks use, and processes that start again under one lease."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavelpy import InvalidInput, LeaseIterator
from gavelpy.runtime.iterator.lease_loop import LeaseLoop
from gavelpy.runtime.lease_files import whole_checkpoints
from tests.runtime.iterator.conftest import Held
from tests.runtime.iterator.counting import Count

pytestmark = pytest.mark.usefixtures("outside")


def take(loop: LeaseLoop, steps: int) -> None:
    for _ in range(steps):
        loop.step_done()


def test_step_is_the_number_of_the_step_in_progress(tmp_path: Path) -> None:
    first = LeaseIterator(range(5), Count().save, steps_total=3, checkpoint_directory=tmp_path)

    before = [first.step for _ in first]
    second = LeaseIterator(range(5), Count().save, load=lambda _: None, checkpoint_directory=tmp_path)
    after = [second.step for _ in second]

    assert (before, after) == ([1, 2, 3], [4, 5])
    assert (first.step, second.step, second.steps_done) == (3, 5, 5)


def test_deferred_loop_saves_when_the_framework_has_written_the_files(held: Held) -> None:
    loop = LeaseLoop(lambda _: None, is_deferred=True)
    held.order(steps_max=2.0)
    loop._watch._poll()  # type: ignore[union-attr]  # instead of waiting for the thread
    take(loop, 2)

    was_due, was_over = loop.is_due, loop.should_stop()
    (loop.writing_directory() / "weights").write_text("2")
    loop.carry_out()

    assert (was_due, was_over, loop.is_due, loop.should_stop(), loop.finished) == (True, False, False, True, False)
    assert (held.checkpoints / "step-000000000002" / "weights").read_text() == "2"
    assert (held.progress().stopped, held.progress().steps_saved) == (True, 2)


def test_deferred_loop_finishes_at_its_total(held: Held) -> None:
    loop = LeaseLoop(lambda _: None, steps_total=3, is_deferred=True)
    take(loop, 3)

    loop.carry_out()

    assert (loop.finished, held.progress().finished) == (True, True)


def test_writing_directory_needs_a_place_for_checkpoints() -> None:
    with pytest.raises(InvalidInput, match="checkpoint_directory must be given"):
        LeaseLoop(is_deferred=True).writing_directory()


def test_terminated_loop_stops_at_the_next_step(held: Held) -> None:
    loop = LeaseLoop(lambda _: None)
    take(loop, 1)

    loop.terminate()
    loop._check_at_s = 0.0  # the next look at the lease is due

    take(loop, 1)
    assert (loop.should_stop(), loop.finished, loop.steps_saved) == (True, False, 2)


def test_process_that_starts_again_under_its_lease_resumes_from_what_it_saved(held: Held) -> None:
    first, second = Count(), Count()
    held.environment(GAVEL_STEPS_TOTAL="9")
    LeaseIterator(range(9), first.save, steps_total=4).close()
    first.run(LeaseIterator(range(9), first.save, steps_total=4))

    second.run(LeaseIterator(range(9), second.save, load=second.load))

    assert second.seen == [4, 5, 6, 7, 8]
    assert whole_checkpoints(held.checkpoints)[-1] == 9


@pytest.mark.parametrize(("restarts", "first_item"), [("0", 0), ("1", 4)])
def test_ranks_look_for_checkpoints_of_their_lease_only_if_torchrun_restarted_them(
    held: Held, restarts: str, first_item: int
) -> None:
    first = Count()
    held.environment(WORLD_SIZE="2", RANK="0")
    first.run(LeaseIterator(range(9), first.save, steps_total=4))
    held.environment(TORCHELASTIC_RESTART_COUNT=restarts)

    with LeaseIterator(range(9), Count().save, load=lambda _: None) as batches:
        item = next(iter(batches))

    assert item == first_item


def test_restarted_ranks_do_not_read_proposals_of_the_earlier_attempt(held: Held) -> None:
    held.environment(WORLD_SIZE="2", RANK="0", TORCHELASTIC_RESTART_COUNT="2")
    stale = held.checkpoints / ".stop"
    stale.mkdir(parents=True)
    (stale / "rank-1").write_text("3")

    with LeaseLoop() as loop:
        take(loop, 5)

    assert not loop.should_stop()


def test_ranks_outside_a_lease_cannot_agree_on_checkpoints_between(outside: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outside.setenv("WORLD_SIZE", "2")

    with pytest.raises(InvalidInput, match="checkpoint_every_s must be 0 outside a lease"):
        LeaseLoop(lambda _: None, save_on="all", checkpoint_directory=tmp_path, checkpoint_every_s=5.0)


def nested(batches: LeaseIterator[int], seen: list[object]) -> None:
    for epoch in batches.each_epoch():
        for item in batches:
            seen.append(item)
        seen.append(f"epoch {epoch}")


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, 5])
def test_part_after_the_inner_loop_runs_once_for_each_epoch(held: Held, stop_at: int) -> None:
    seen: list[object] = []
    held.order(steps_max=float(stop_at))
    with pytest.raises(SystemExit, match="0"):
        nested(LeaseIterator(range(2), Count().save, epochs=3), seen)
    stopped_at = len([item for item in seen if isinstance(item, int)])

    held.order(steps_max=0.0)
    held.environment(GAVEL_RESUME_DIR=str(held.checkpoints / f"step-{stop_at:012d}"))
    nested(LeaseIterator(range(2), Count().save, epochs=3), seen)

    assert stopped_at == stop_at
    assert seen == [0, 1, "epoch 0", 0, 1, "epoch 1", 0, 1, "epoch 2"]
    assert held.progress().finished
