"""Parts of the iterator: rate, time to stop, barriers, checkpoints."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gavelpy import LeaseIterator
from gavelpy.errors import InvalidInput, LeaseExpired, RemoteViolation
from gavelpy.runtime.iterator.barrier import Agreement, Barrier
from gavelpy.runtime.iterator.checkpoints import CheckpointWriter, DataPosition, read_position
from gavelpy.runtime.iterator.lease_watch import read_context
from gavelpy.runtime.iterator.timing import RateMeter, expected_checkpoint_s, must_stop, stop_at_s
from gavelpy.runtime.lease_files import LeaseTerms, clock_s, step_name, whole_checkpoints
from tests.conftest import PROJECT
from tests.runtime.iterator.conftest import Held
from tests.runtime.shim.driver import wait_for

FOREVER_S = float("inf")
WRITES_FOREVER = """
import sys
from pathlib import Path
from gavelpy.runtime.iterator.checkpoints import CheckpointWriter, DataPosition

def save(directory):
    for number in range(5):
        (directory / f"part-{number}").write_bytes(b"x" * 20000)

writer = CheckpointWriter(Path(sys.argv[1]))
for step in range(1, 10**9):
    writer.write(DataPosition(steps=step), save, float("inf"))
    writer.prune(step - 2)
    print(step, flush=True)
"""


def fed(*samples: tuple[float, int]) -> RateMeter:
    meter = RateMeter(0.0, 0)
    for now_s, steps in samples:
        meter.sample(now_s, steps)
    return meter


def test_rate_excludes_the_slow_first_steps() -> None:
    assert fed((30.0, 1), (31.0, 2), (31.1, 3), (33.1, 23)).rate_steps_per_s() == pytest.approx(10.0)


def test_script_with_steps_done_does_not_start_from_scratch(tmp_path: Path) -> None:
    environment = {"GAVEL_LEASE_DIR": str(tmp_path), "GAVEL_STEPS_DONE": "70"}

    with pytest.raises(InvalidInput, match="GAVEL_STEPS_DONE must be 0 without GAVEL_RESUME_DIR, got 70"):
        read_context(environment)

    assert read_context(environment | {"GAVEL_RESUME_DIR": "/step-000000000070"}).resume_directory is not None


def test_rate_is_unknown_before_a_step_was_measured() -> None:
    assert fed((30.0, 1), (31.0, 2)).rate_steps_per_s() == 0.0


def test_rate_excludes_checkpoints() -> None:
    meter = fed((1.0, 3), (2.0, 13))

    meter.add_idle(7.0)
    meter.sample(10.0, 23)

    assert meter.rate_steps_per_s() == pytest.approx(10.0)


def test_rate_covers_the_last_minute() -> None:
    slow = [(float(second), second) for second in range(1, 101)]
    fast = [(100.0 + second, 100 + 50 * second) for second in range(1, 130)]

    assert fed(*slow, *fast).rate_steps_per_s() == pytest.approx(50.0)


def test_stop_leaves_time_for_a_step_and_a_checkpoint() -> None:
    assert stop_at_s(LeaseTerms(1, 100.0), checkpoint_s=5.0, step_s=2.0, world=1) == pytest.approx(92.9)
    assert stop_at_s(LeaseTerms(1, 100.0), checkpoint_s=5.0, step_s=2.0, world=4) == pytest.approx(88.4)


def test_first_guess_of_a_checkpoint_is_a_share_of_the_lease() -> None:
    assert expected_checkpoint_s(0.0, 20.0) == 2.0
    assert expected_checkpoint_s(0.0, 2000.0) == 5.0
    assert expected_checkpoint_s(8.0, 20.0) == 10.0


def test_loop_stops_by_order_by_time_or_by_steps() -> None:
    assert not must_stop(1.0, 9, LeaseTerms(1, 100.0, steps_max=10.0), 90.0)
    assert must_stop(1.0, 10, LeaseTerms(1, 100.0, steps_max=10.0), 90.0)
    assert must_stop(90.0, 0, LeaseTerms(1, 100.0), 90.0)
    assert must_stop(1.0, 0, LeaseTerms(1, 100.0, stop=True), 90.0)


def test_agreement_is_the_largest_of_all_proposals(tmp_path: Path) -> None:
    first, second = Agreement(tmp_path / ".stop", 0, 2), Agreement(tmp_path / ".stop", 1, 2)

    first.propose(7)
    first.propose(99)
    before = (first.agreed(), second.is_called(), second.own(), first.missing())
    second.propose(9)

    assert before == (None, True, None, (1,))
    assert (first.own(), first.agreed(), second.agreed()) == (7, 9, 9)


def test_damaged_proposal_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "rank-1").write_text("soon")
    (tmp_path / "rank-9").write_text("5")

    assert Agreement(tmp_path, 0, 2).proposals() == {}


def test_rank_waits_at_its_own_proposal_and_gives_up_at_the_deadline(tmp_path: Path) -> None:
    barrier = Barrier(tmp_path / ".stop", 0, 3, lambda: 5)
    Agreement(tmp_path / ".stop", 2, 3).propose(6)
    barrier.propose()

    with pytest.raises(LeaseExpired, match=r"no stop was agreed on .* without a proposal: 1"):
        barrier.wait(clock_s() + 0.05)


def test_rank_before_its_proposal_continues(tmp_path: Path) -> None:
    barrier = Barrier(tmp_path / ".stop", 0, 2, lambda: 5)

    barrier.propose_ahead()

    assert barrier.own() == barrier.at == 7
    assert barrier.wait(clock_s()) is None


def test_checkpoint_contains_its_data_position(tmp_path: Path) -> None:
    took_s = CheckpointWriter(tmp_path).write(
        DataPosition(12, 1, 2), lambda directory: (directory / "x").write_text("x"), FOREVER_S
    )

    place = read_position(tmp_path / step_name(12))
    assert (place.steps, place.epoch, place.position) == (12, 1, 2)
    assert 0 < place.took_s <= took_s
    assert (tmp_path / step_name(12) / "x").read_text() == "x"


def test_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    CheckpointWriter(tmp_path).write(DataPosition(1), lambda directory: (directory / "x").write_text("old"), FOREVER_S)
    CheckpointWriter(tmp_path).write(DataPosition(1), lambda directory: (directory / "x").write_text("new"), FOREVER_S)

    assert (tmp_path / step_name(1) / "x").read_text() == "old"


def test_failed_save_leaves_no_files(tmp_path: Path) -> None:
    def fails(directory: Path) -> None:
        (directory / "x").write_bytes(b"half of it")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        CheckpointWriter(tmp_path).write(DataPosition(5), fails, FOREVER_S)

    assert list(tmp_path.iterdir()) == []


def test_incomplete_checkpoints_of_earlier_leases_are_pruned_too(tmp_path: Path) -> None:
    earlier, own, later = (tmp_path / f"lease-{number:08d}" for number in (3, 4, 5))
    kept = [earlier / "notes", own / ".writing-step-000000000009-1", later / ".writing-step-000000000011-1"]
    gone = [earlier / ".writing-step-000000000007-1", earlier / step_name(6)]
    _ = [directory.mkdir(parents=True) for directory in (*kept, *gone)]

    CheckpointWriter(own).prune_earlier()

    assert [directory.exists() for directory in (*kept, *gone)] == [True, True, True, False, False]


def test_checkpoint_that_a_slow_rank_must_still_load_is_kept(tmp_path: Path) -> None:
    own, resume = tmp_path / "lease-00000004", tmp_path / "lease-00000003" / step_name(6)
    resume.mkdir(parents=True)
    quick, slow = CheckpointWriter(own, 0, ranks=2), CheckpointWriter(own, 1, ranks=2)

    quick.mark_loaded()
    quick.prune_earlier()
    was_there = resume.is_dir()
    slow.mark_loaded()
    quick.prune_earlier()

    assert was_there
    assert not resume.exists()


def test_rank_marks_that_it_has_loaded(held: Held) -> None:
    resume = held.checkpoints.with_name("lease-00000003") / "step-000000000020"
    resume.mkdir(parents=True)
    held.environment(GAVEL_RESUME_DIR=str(resume), WORLD_SIZE="2", RANK="1")
    loaded = held.checkpoints / ".rank-1-loaded"
    seen: list[bool] = []

    with LeaseIterator(range(10), load=lambda _: seen.append(loaded.exists())):
        seen.append(loaded.exists())

    assert seen == [False, True]


def test_checkpoint_of_all_ranks_is_complete_once_all_have_written(tmp_path: Path) -> None:
    may_write = threading.Event()

    def late(directory: Path) -> None:
        may_write.wait()
        (directory / "rank-1").touch()

    first = threading.Thread(
        target=CheckpointWriter(tmp_path, 0, 2).write,
        args=(DataPosition(5), lambda directory: (directory / "rank-0").touch(), FOREVER_S),
    )
    second = threading.Thread(target=CheckpointWriter(tmp_path, 1, 2).write, args=(DataPosition(5), late, FOREVER_S))
    first.start()
    second.start()

    wait_for((tmp_path / f".writing-{step_name(5)}" / ".rank-0-done").exists)
    before = whole_checkpoints(tmp_path)
    may_write.set()
    first.join()
    second.join()

    assert before == ()
    assert sorted(path.name for path in (tmp_path / step_name(5)).iterdir()) == ["gavel.json", "rank-0", "rank-1"]


def test_checkpoint_of_all_ranks_waits_no_longer_than_the_lease(tmp_path: Path) -> None:
    with pytest.raises(
        LeaseExpired, match="not all ranks wrote checkpoint step-000000000005 before the lease was over"
    ):
        CheckpointWriter(tmp_path, 0, 2).write(DataPosition(5), lambda directory: None, clock_s() + 0.1)

    assert whole_checkpoints(tmp_path) == ()


@pytest.mark.parametrize("text", ["", "[]", '{"steps": -1}', '{"steps": 1, "epoch": "x"}', '{"unknown": 1}'])
def test_damaged_data_position_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "gavel.json").write_text(text)

    with pytest.raises(RemoteViolation, match="must contain a data position"):
        read_position(tmp_path)


@pytest.mark.parametrize("delay", range(6))
def test_kill_at_any_time_leaves_no_incomplete_checkpoint_under_a_final_name(tmp_path: Path, delay: int) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITES_FOREVER, str(tmp_path)], cwd=PROJECT, stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    writer.stdout.readline()

    threading.Event().wait(0.0137 * delay)  # at an arbitrary moment
    writer.kill()
    writer.communicate()

    whole = whole_checkpoints(tmp_path)
    assert whole
    assert {_bytes(tmp_path / step_name(step)) for step in whole} == {100_000}
    assert [read_position(tmp_path / step_name(step)).steps for step in whole] == list(whole)


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("part-*"))
