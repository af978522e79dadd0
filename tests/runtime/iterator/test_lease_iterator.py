"""LeaseIterator in one process: count, save, stop, resume."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gavelpy import InvalidInput, LeaseExpired, LeaseIterator
from gavelpy.runtime import lease_files
from gavelpy.runtime.lease_files import clock_s, step_name, whole_checkpoints
from tests.runtime.iterator.conftest import Held
from tests.runtime.iterator.counting import Count, OneShot, Seekable
from tests.runtime.shim.driver import wait_for

pytestmark = pytest.mark.usefixtures("outside")


def test_outside_a_lease_it_is_an_ordinary_loop() -> None:
    count = Count()

    batches = count.run(LeaseIterator(range(5), count.save, load=count.load))

    assert count.seen == [0, 1, 2, 3, 4]
    assert (batches.steps_done, batches.steps_saved, batches.finished, batches.should_stop()) == (5, 0, True, True)


def test_loop_runs_its_epochs() -> None:
    count, items = Count(), OneShot(range(3))

    count.run(LeaseIterator(items, epochs=2))

    assert count.seen == [0, 1, 2, 0, 1, 2]
    assert items.epochs == [0, 1]


def test_loop_ends_at_its_total_of_steps() -> None:
    count = Count()

    batches = count.run(LeaseIterator(range(3), steps_total=7))

    assert count.seen == [0, 1, 2, 0, 1, 2, 0]
    assert batches.finished


def test_outside_a_lease_it_resumes_from_the_given_directory(tmp_path: Path) -> None:
    first, second = Count(), Count()
    first.run(LeaseIterator(range(5), first.save, steps_total=3, checkpoint_directory=tmp_path))

    batches = second.run(
        LeaseIterator(range(5), second.save, load=second.load, epochs=2, checkpoint_directory=tmp_path)
    )

    assert second.seen == [3, 4, 0, 1, 2, 3, 4]
    assert (second.value, batches.steps_done) == (10, 10)
    assert whole_checkpoints(tmp_path) == (3, 10)


def test_finished_run_has_no_more_steps(tmp_path: Path) -> None:
    Count().run(LeaseIterator(range(5), Count().save, checkpoint_directory=tmp_path))
    again = Count()

    batches = again.run(LeaseIterator(range(5), again.save, load=again.load, checkpoint_directory=tmp_path))

    assert (again.seen, batches.finished) == ([], True)


def test_resumable_loader_does_not_produce_used_items(tmp_path: Path) -> None:
    count, loader = Count(), Seekable(100)
    count.run(LeaseIterator(range(100), count.save, steps_total=60, checkpoint_directory=tmp_path))

    count.run(LeaseIterator(loader, count.save, load=count.load, checkpoint_directory=tmp_path))

    assert count.seen == list(range(100))
    assert loader.produced == 40


def test_checkpoint_without_data_position_resumes_by_its_name(tmp_path: Path) -> None:
    (tmp_path / step_name(12)).mkdir()
    (tmp_path / step_name(12) / "count").write_text("12")
    count = Count()

    count.run(LeaseIterator(range(5), count.save, load=count.load, epochs=3, checkpoint_directory=tmp_path))

    assert count.seen == [2, 3, 4]


def test_loop_of_another_form_counts_its_steps(held: Held) -> None:
    count = Count()
    batches: LeaseIterator[int] = LeaseIterator(save=count.save, load=count.load, steps_total=4)

    while not batches.should_stop():
        count.step(0)
        batches.step_done()

    assert (count.value, batches.finished, held.progress().finished) == (4, True, True)
    assert whole_checkpoints(held.checkpoints) == (4,)


def test_early_finish_saves_and_is_reported(held: Held) -> None:
    count = Count()
    batches = LeaseIterator(range(100), count.save)

    for item in batches:
        count.step(item)
        if item == 9:
            batches.step_done()
            batches.finish()

    assert (batches.steps_done, batches.finished, held.progress().finished) == (10, True, True)
    assert whole_checkpoints(held.checkpoints) == (10,)


def test_order_to_stop_is_obeyed_with_a_checkpoint(held: Held) -> None:
    count = Count()
    held.order(stop=True)

    batches = count.run(LeaseIterator(range(10_000), count.save), step_s=0.001)

    progress = held.progress()
    assert (batches.finished, progress.stopped, progress.finished) == (False, True, False)
    assert progress.steps_done == progress.steps_saved == count.value < 10_000
    assert whole_checkpoints(held.checkpoints) == (count.value,)


def test_loop_stops_early_enough_for_its_checkpoint(held: Held) -> None:
    count = Count(save_s=1.0)
    (resume := held.checkpoints.with_name("lease-00000003") / step_name(1)).mkdir(parents=True)
    (resume / "gavel.json").write_text(json.dumps({"steps": 1, "epoch": 0, "position": 1, "took_s": 1.6}))
    held.environment(GAVEL_RESUME_DIR=str(resume))
    held.order(until_clock_s=clock_s() + 3.0)

    count.run(LeaseIterator(range(10_000), count.save), step_s=0.01)

    assert clock_s() <= held.lease.until_clock_s
    assert held.progress().steps_saved == count.value + 1


def test_extension_before_the_stop_lets_the_loop_continue(held: Held) -> None:
    count = Count()
    first_until_s = clock_s() + 0.8
    held.order(until_clock_s=first_until_s)
    batches = LeaseIterator(range(100_000), count.save)

    held.order(until_clock_s=first_until_s + 0.8)
    wait_for(lambda: batches._watch is not None and batches._watch.lease == held.lease)
    count.run(batches, step_s=0.005)

    assert clock_s() > first_until_s
    assert held.progress().stopped


def test_lease_ends_by_steps(held: Held) -> None:
    count = Count()
    held.order(steps_max=17.0)

    batches = count.run(LeaseIterator(range(10_000), count.save))

    assert (count.value, batches.finished, held.progress().stopped) == (17, False, True)


def test_total_of_the_job_ends_the_loop(held: Held) -> None:
    count = Count()
    held.environment(GAVEL_STEPS_TOTAL="23.0")

    batches = count.run(LeaseIterator(range(10), count.save))

    assert (count.value, batches.finished) == (23, True)


def test_checkpoints_are_written_on_their_cadence_and_pruned_once_acknowledged(held: Held) -> None:
    count = Count()
    held.environment(GAVEL_CHECKPOINT_EVERY_S="0.1")
    batches = LeaseIterator(range(10_000), count.save)
    steps = iter(batches)

    while len(whole_checkpoints(held.checkpoints)) < 3:
        count.step(next(steps))
        time.sleep(0.005)
    first, second, third = whole_checkpoints(held.checkpoints)
    held.order(steps_saved=float(second))
    while len(whole_checkpoints(held.checkpoints)) != 3 or third == whole_checkpoints(held.checkpoints)[-1]:
        count.step(next(steps))
        time.sleep(0.005)

    assert whole_checkpoints(held.checkpoints)[:2] == (second, third)
    assert first < second
    batches.close()


def test_checkpoint_of_an_earlier_lease_is_pruned_once_one_of_this_lease_is_on_record(held: Held) -> None:
    earlier = held.checkpoints.with_name("lease-00000003")
    resume = earlier / "step-000000000020"
    resume.mkdir(parents=True)
    (earlier / "notes.txt").write_text("of the script")
    held.environment(GAVEL_CHECKPOINT_EVERY_S="0.05", GAVEL_RESUME_DIR=str(resume))
    held.order(steps_saved=20.0)
    count = Count()
    batches = LeaseIterator(range(10_000), count.save)
    steps = iter(batches)

    while len(whole_checkpoints(held.checkpoints)) < 2:
        count.step(next(steps))
        time.sleep(0.005)
    assert resume.is_dir()
    held.order(steps_saved=float(whole_checkpoints(held.checkpoints)[0]))
    while resume.is_dir():
        count.step(next(steps))
        time.sleep(0.005)

    assert [path.name for path in earlier.iterdir()] == ["notes.txt"]
    batches.close()


def test_progress_is_reported_while_the_loop_runs(held: Held) -> None:
    count = Count()
    batches = LeaseIterator(range(1_000_000), count.save)

    for item in batches:
        count.step(item)
        time.sleep(0.01)
        if held.progress().rate_steps_per_s > 0:
            break

    batches.close()
    assert held.progress().steps_done > 0
    assert held.progress().rate_steps_per_s <= 100.0
    assert not held.progress().stopped


def test_first_report_comes_before_the_first_step(held: Held) -> None:
    batches = LeaseIterator(range(10))

    assert held.progress().steps_done == 0
    batches.close()


def test_loop_that_wakes_after_its_lease_gives_up_and_saves_nothing(held: Held) -> None:
    count = Count()
    held.order(until_clock_s=clock_s() + 1.0)
    batches = LeaseIterator(range(10), count.save)
    steps = iter(batches)
    next(steps)

    wait_for(lambda: clock_s() > held.lease.until_clock_s + 1.1)
    before = held.progress()
    with pytest.raises(LeaseExpired, match="over at step 1; the last 1 steps were not saved"):
        next(steps)

    assert whole_checkpoints(held.checkpoints) == ()
    assert held.progress() == before


def test_late_checkpoint_is_not_completed(held: Held) -> None:
    count = Count(save_s=1.5)
    held.order(until_clock_s=clock_s() + 0.2)

    with pytest.raises(LeaseExpired, match="it does not count"):
        count.run(LeaseIterator(range(10_000), count.save), step_s=0.01)

    assert list(held.checkpoints.iterdir()) == []


def test_damaged_lease_file_leaves_the_last_one_in_force(held: Held, caplog: pytest.LogCaptureFixture) -> None:
    count = Count()
    batches = LeaseIterator(range(1_000_000), count.save)
    (held.directory / "lease.json").write_text('{"vers')

    with caplog.at_level(logging.WARNING):
        wait_for(lambda: "must be JSON" in caplog.text)
    held.lease = replace(held.lease, version=5)
    held.order(stop=True)
    count.run(batches, step_s=0.001)

    assert held.progress().stopped


def test_sigterm_stops_gracefully(held: Held) -> None:
    count = Count()
    batches = LeaseIterator(range(1_000_000), count.save)
    os.kill(os.getpid(), signal.SIGTERM)

    count.run(batches, step_s=0.001)

    assert (batches.finished, held.progress().stopped) == (False, True)
    assert whole_checkpoints(held.checkpoints) == (count.value,)


def test_sigterm_is_restored_once_the_loop_is_over(held: Held) -> None:
    Count().run(LeaseIterator(range(3)))

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_handler_of_the_script_is_kept(held: Held) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    LeaseIterator(range(3)).close()

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_error_in_save_reaches_the_script_and_leaves_no_complete_checkpoint(held: Held) -> None:
    def save(directory: Path) -> None:
        (directory / "half").write_text("x")
        raise OSError("disk full")

    held.order(stop=True)

    with pytest.raises(OSError, match="disk full"):
        Count().run(LeaseIterator(range(1000), save), step_s=0.001)

    assert whole_checkpoints(held.checkpoints) == ()


def test_context_ends_the_thread(held: Held) -> None:
    with LeaseIterator(range(3)) as batches:
        assert batches.steps_done == 0

    lease_files.write_progress(held.directory, 0, lease_files.Progress(steps_done=77.0))
    assert held.progress().steps_done == 77.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be 1 or more, got 0"),
        ({"steps_total": -1}, "steps_total must be 1 or more, got -1"),
        ({"checkpoint_every_s": float("nan")}, "checkpoint_every_s must be 0 or more, got nan"),
        ({"save_on": "some"}, "save_on must be 'first' or 'all', got 'some'"),
    ],
)
def test_bad_option_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        LeaseIterator(range(3), **options)  # type: ignore[arg-type]  # wrong on purpose

    assert str(caught.value) == message


@pytest.mark.parametrize(("name", "value"), [("RANK", "one"), ("WORLD_SIZE", "0"), ("GAVEL_STEPS_TOTAL", "-5")])
def test_bad_variable_is_named(outside: pytest.MonkeyPatch, name: str, value: str) -> None:
    outside.setenv(name, value)

    with pytest.raises(InvalidInput, match=f"{name} must be a .*, got '{value}'"):
        LeaseIterator(range(3))


def test_empty_loader_is_refused() -> None:
    with pytest.raises(InvalidInput, match="loader must yield items"):
        list(LeaseIterator([], steps_total=5))


def test_loader_shorter_than_its_checkpoint_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / step_name(12)
    directory.mkdir()
    (directory / "gavel.json").write_text(json.dumps({"steps": 12, "epoch": 0, "position": 12, "took_s": 0.0}))

    with pytest.raises(InvalidInput, match="loader must yield at least 12 items"):
        LeaseIterator(iter(range(3)), checkpoint_directory=tmp_path)


def test_a_checkpoint_between_that_fails_does_not_end_the_loop(
    outside: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saves = Failing(times=1)

    list(LeaseIterator(range(6), saves, checkpoint_directory=tmp_path, checkpoint_every_s=1e-9))

    assert saves.count >= 2
    assert [record.getMessage() for record in caplog.records] == [
        "checkpoint at step 1 failed: [Errno 28] No space left on device"
    ]
    assert (tmp_path / "step-000000000006" / "state").read_text() == "whole"


def test_a_last_checkpoint_that_fails_is_an_error(outside: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        list(LeaseIterator(range(3), Failing(times=1), checkpoint_directory=tmp_path))


class Failing:
    """Saves to a disk that is full the first times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.count = 0

    def __call__(self, directory: Path) -> None:
        self.count += 1
        if self.count <= self.times:
            raise OSError(28, "No space left on device")
        (directory / "state").write_text("whole")
