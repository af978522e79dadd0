"""LeaseLoop: counts the steps of a training loop, and saves and stops with the leases of its job.

Theory of operation. The loop counts steps. Between two steps, at most every CHECK_S, it checks the lease, which a
background thread keeps up to date, and decides: continue, write a checkpoint, stop, or give up because the lease is
over. It begins to stop so early that one more step and a checkpoint fit before the end of the lease. The ranks of a
gang agree on the step first (`barrier`), and may write one checkpoint together (`checkpoints`).
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from gavelpy.errors import InvalidInput, LeaseExpired, one_line
from gavelpy.runtime.iterator.barrier import NEVER, NO_GATE, Barrier
from gavelpy.runtime.iterator.checkpoints import CheckpointWriter, DataPosition, check_ranks, read_position
from gavelpy.runtime.iterator.lease_watch import LeaseWatch, peak_gpu_gib, read_context
from gavelpy.runtime.iterator.timing import RateMeter, expected_checkpoint_s, must_stop, save_every_s, stop_at_s
from gavelpy.runtime.lease_files import Progress, clock_s

_logger = logging.getLogger(__name__)
Save = Callable[[Path], object]
CHECK_S: Final = 0.05
DECAY: Final = 0.98  # of the slowest step, at each check
_boot = time.CLOCK_BOOTTIME
_now = time.clock_gettime


class LeaseLoop:
    """Counts the steps of a training loop, and saves and stops with the leases of its job.

    LeaseIterator and the callbacks of frameworks are such loops. `save(directory)` writes a checkpoint into an empty
    directory. `load(directory)` is called by the constructor if there is a checkpoint to resume from. The loop ends at
    `steps_total` (default: that of the job). With `is_deferred`, `step_done` and `finish` only set `is_due`; the caller
    then writes the checkpoint into `writing_directory()` and calls `carry_out`, which completes it or stops.
    `batch`: samples of a step over all ranks, 0 = not known.
    """

    def __init__(
        self,
        save: Save | None = None,
        *,
        load: Callable[[Path], object] | None = None,
        steps_total: int | None = None,
        save_on: Literal["first", "all"] = "first",
        checkpoint_directory: Path | str | None = None,
        checkpoint_every_s: float | None = None,
        is_deferred: bool = False,
        batch: int = 0,
    ) -> None:
        context = read_context(os.environ)
        context.check_options(steps_total, save_on, checkpoint_every_s)
        self._context = context
        self._process = os.getpid()
        self._save, self._batch = save, batch
        self._is_deferred = is_deferred
        self._every_s = partial(save_every_s, *context.cadence(checkpoint_every_s))
        self._total = self._in_all = context.steps_total if steps_total is None else steps_total  # 0 = unknown
        self._all_save = save_on == "all" and context.world > 1
        directory = context.checkpoint_directory or (Path(checkpoint_directory) if checkpoint_directory else None)
        ranks = (context.rank, context.world if self._all_save else 1, context.world)
        self._writer = CheckpointWriter(directory, *ranks) if directory else None
        self._saves_at_end = save is not None and directory is not None
        self._resume = context.checkpoint_to_resume(directory)
        start = read_position(self._resume) if self._resume else DataPosition()
        self._steps = self._saved_steps = self._first_steps = start.steps
        self._over = self._finished = self._stopped = self._terminated = False
        self._due: Callable[[], None] | None = None
        self._due_at_s = self._slowest_s = 0.0
        self._save_error = ""
        self._start_at(start)
        now_s = self._at_s = self._checkpoint_at_s = clock_s()
        self._check_at_s = now_s
        self._saves = self._check_at_steps = 0  # checks after the first step
        self._meter = RateMeter(now_s, start.steps)
        self._known_checkpoint_s = start.took_s
        self._barriers_at = directory or context.lease_directory
        self._watch = self._make_watch()
        self._lease_s = self._watch.lease.until_clock_s - now_s if self._watch else 0.0
        self._stop_barrier = self._make_barrier("stop")
        self._save_barrier = self._make_barrier("save-0") if self._all_save else None
        self._stop_gate = self._stop_barrier or NO_GATE  # where the loop must wait, read at every step
        self._save_gate = self._save_barrier or NO_GATE
        self._handle_sigterm()
        if self._watch:
            self._watch.start()
        if self._resume and load:
            load(self._resume)
        if self._writer:
            self._writer.mark_loaded()
        self._at_s = clock_s()
        if self._total and self._steps >= self._total:
            self.finish()

    @property
    def steps_done(self) -> int:
        """Steps of the job since it was submitted, those of earlier leases included."""
        return self._steps

    @property
    def step(self) -> int:
        """Number of the step in progress, from 1, for logs; it continues after a resume, and ends at `steps_done`."""
        return self._steps if self._over else self._steps + 1

    @property
    def steps_saved(self) -> int:
        """Steps in the newest complete checkpoint that this rank has written or resumed from."""
        return self._saved_steps

    @property
    def resume_directory(self) -> Path | None:
        """The checkpoint that this run resumed from; None = it started from scratch."""
        return self._resume

    @property
    def finished(self) -> bool:
        """Whether the job has done all its work, as opposed to stopping because its lease ends."""
        return self._finished

    @property
    def rate_steps_per_s(self) -> float:
        """Rate without the first steps and without checkpoints; 0 = not measured yet."""
        return self._meter.rate_steps_per_s()

    def step_done(self, count: int = 1) -> None:
        """Counts steps. May write a checkpoint or stop the loop.

        Raises LeaseExpired if the lease was over before the loop could stop gracefully.
        """
        self._steps = steps = self._steps + count
        now_s = _now(_boot)
        took_s = now_s - self._at_s
        self._at_s = now_s
        if took_s > self._slowest_s:
            self._slowest_s = took_s
        if (
            steps >= self._check_at_steps
            or now_s >= self._check_at_s
            or steps >= self._stop_gate.at
            or steps >= self._save_gate.at
        ):
            self._check(now_s, steps)

    def should_stop(self) -> bool:
        """Whether to do no further step. All ranks stop at the same step."""
        return self._over

    def finish(self, *, saves: bool = True) -> None:
        """Declares that the job has done all its work, also before `steps_total`; saves unsaved steps if it `saves`."""
        if not saves:
            self._saves_at_end = False
        if not self._over:
            self._decide(partial(self._end, finished=True))

    def terminate(self) -> None:
        """Makes the loop stop at the next step, as SIGTERM does."""
        self._terminated = True

    @property
    def is_due(self) -> bool:
        """Whether a deferred loop waits for `carry_out`."""
        return self._due is not None

    @property
    def has_unsaved_steps(self) -> bool:
        """Whether a checkpoint now would save something: this rank saves, has a directory, and has new steps."""
        return self._saves_at_end and (self._all_save or self._context.rank == 0) and self._saved_steps < self._steps

    def writing_directory(self) -> Path:
        """The directory of the checkpoint that is due, before `carry_out` completes it."""
        if self._writer is None:
            raise InvalidInput("checkpoint_directory must be given to save outside a lease")
        self._due_at_s = clock_s()
        return self._writer.writing_directory(self._steps)

    def postpone(self) -> None:
        """Leaves what is due to the next step."""
        self._due, self._due_at_s, self._check_at_steps = None, 0.0, 0

    def carry_out(self) -> None:
        """Completes the checkpoint that is due, or stops; the framework has written its files."""
        due, self._due = self._due, None
        if due is not None:
            due()
            self._at_s = clock_s()

    def close(self) -> None:
        """Ends the background thread and restores SIGTERM. Called automatically when the loop ends."""
        if self._watch:
            self._watch.close()
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start_at(self, start: DataPosition) -> None:
        """Positions the loader, before `load`."""
        check_ranks(start, self._context.world, self._batch, scales=False, name="the loop")

    def _position(self) -> DataPosition:
        """The data position to save."""
        return DataPosition(self._steps, 0, self._steps, batch=self._batch, samples=self._steps * self._batch)

    def _check(self, now_s: float, steps: int) -> None:
        """Decides between two steps what to do next."""
        if self._over:
            return
        watch = self._watch
        if watch and now_s >= watch.over_s():
            self._give_up()
        self._meter.sample(now_s, steps)
        if 0 < self._total <= steps:
            self._decide(partial(self._end, finished=True))
        elif self._is_stop_step(now_s):
            self._decide(partial(self._end, finished=False))
        elif self._is_save_step(now_s):
            self._decide(self._checkpoint_between)
        self._decay_slowest(steps)
        now_s = self._at_s = clock_s()
        self._check_at_s = min(now_s + CHECK_S, max(self._stop_s(), now_s))
        self._check_at_steps = self._last_step()

    def _decide(self, act: Callable[[], None]) -> None:
        """Does this now, or leaves it to `carry_out`."""
        if self._is_deferred:
            self._due = act
        else:
            act()

    def _decay_slowest(self, steps: int) -> None:
        """Ignores the first step, which is slower than the others; later ones decay to the average."""
        is_first = steps == self._first_steps + 1
        rate = self._meter.rate_steps_per_s()
        self._slowest_s = 0.0 if is_first else max(DECAY * self._slowest_s, 1.0 / rate if rate > 0 else 0.0)

    def _last_step(self) -> int:
        """The step at which the job or the lease ends."""
        steps_max = math.ceil(self._watch.lease.steps_max) if self._watch else 0
        return min(self._total or NEVER, steps_max if steps_max > 0 else NEVER)

    def _is_stop_step(self, now_s: float) -> bool:
        """Whether to stop at this step."""
        if not self._must_stop(now_s) and self._stop_barrier is None:
            return False
        if self._stop_barrier is None:
            return True
        if self._must_stop(now_s):
            self._stop_barrier.propose()
        agreed = self._wait(self._stop_barrier)
        return agreed is not None and self._steps >= agreed

    def _is_save_step(self, now_s: float) -> bool:
        """Whether to write a checkpoint at this step."""
        is_due = self._save is not None and 0 < self._every_s(self._known_checkpoint_s) <= now_s - self._checkpoint_at_s
        if self._save_barrier is None:
            return is_due
        if is_due:
            self._save_barrier.propose()
        agreed = self._wait(self._save_barrier)
        if agreed is None or self._steps < agreed:
            return False
        self._saves += 1
        self._save_barrier = self._make_barrier(f"save-{self._saves}")
        self._save_gate = self._save_barrier or NO_GATE
        return True

    def _wait(self, barrier: Barrier) -> int | None:
        try:
            return barrier.wait(self._watch.lease.until_clock_s if self._watch else float("inf"))
        except LeaseExpired:
            self._abandon()
            raise

    def _checkpoint_between(self) -> None:
        """A checkpoint that fails is retried when the next is due, unless other ranks wait for it."""
        try:
            self._checkpoint()
        except OSError as error:
            if self._all_save:
                raise
            self._due_at_s, self._checkpoint_at_s = 0.0, clock_s()
            self._save_error = one_line(f"{type(error).__name__}: {error.strerror or error}")
            _logger.warning("checkpoint at step %d failed: %s", self._steps, error)

    def _checkpoint(self) -> None:
        """Writes a checkpoint, if this rank saves and has new steps."""
        if not self.has_unsaved_steps or self._save is None or self._writer is None:
            self._checkpoint_at_s = clock_s()
            return
        began_s = self._due_at_s or clock_s()
        position = self._position()
        try:
            self._writer.write(position, self._save, self._watch.over_s() if self._watch else float("inf"))
        except LeaseExpired:
            self._abandon()
            raise
        self._saved_steps, self._save_error = self._steps, ""
        self._checkpoint_at_s, self._due_at_s = clock_s(), 0.0
        self._known_checkpoint_s = max(self._checkpoint_at_s - began_s, 0.5 * self._known_checkpoint_s)
        self._meter.add_idle(self._checkpoint_at_s - began_s)
        if self._watch and self._context.rank == 0:
            self._writer.prune(on_record := self._watch.lease.steps_saved)
            if on_record > self._first_steps:  # a checkpoint of this lease
                self._writer.prune_earlier()

    def _end(self, *, finished: bool) -> None:
        """The last checkpoint and the last report of a loop that is finished or stops."""
        self._finished, self._stopped = finished, not finished
        for barrier in (self._stop_barrier, self._save_barrier):
            if barrier:
                barrier.propose()  # no rank shall wait for one that has ended
        self._checkpoint()
        self._over = True
        if self._watch:
            self._watch.report()
        self.close()

    def _give_up(self) -> None:
        self._abandon()
        lost = self._steps - self._saved_steps
        raise LeaseExpired(f"the lease was over at step {self._steps}; the last {lost} steps were not saved")

    def _abandon(self) -> None:
        """Ends without a checkpoint, and reports that the lease was the reason, not the script."""
        self._over = self._stopped = True
        self._finished = False
        if self._watch:
            self._watch.report()
        self.close()

    def _must_stop(self, now_s: float) -> bool:
        watch = self._watch
        return self._terminated or (watch is not None and must_stop(now_s, self._steps, watch.lease, self._stop_s()))

    def _stop_s(self) -> float:
        if self._watch is None:
            return float("inf")
        checkpoint_s = expected_checkpoint_s(self._known_checkpoint_s, self._lease_s) if self._saves_at_end else 0.0
        return stop_at_s(self._watch.lease, checkpoint_s, self._slowest_s, self._context.world)

    def _make_watch(self) -> LeaseWatch | None:
        return LeaseWatch(self._context, self._progress, self._on_poll) if self._context.lease_directory else None

    def _make_barrier(self, name: str) -> Barrier | None:
        if self._context.world == 1 or self._watch is None or self._barriers_at is None:
            return None
        name = f".{name}" if self._context.restarts == 0 else f".{name}-again-{self._context.restarts}"
        return Barrier(self._barriers_at / name, self._context.rank, self._context.world, lambda: self._steps)

    def _on_poll(self) -> None:
        """In the background thread: proposes barriers if another rank has, or if time runs out while a step runs."""
        if self._over or self._stop_barrier is None:
            return
        if self._stop_barrier.own() is None and self._must_stop(clock_s()):
            self._stop_barrier.propose_ahead()
        self._stop_barrier.follow()
        if self._save_barrier:
            self._save_barrier.follow()

    def _progress(self) -> Progress:
        return Progress(
            steps_done=self._steps,
            steps_saved=self._saved_steps,
            rate_steps_per_s=self._meter.rate_steps_per_s(),
            finished=self._finished and self._over,
            stopped=self._stopped and self._over,
            saves_at_end=self._saves_at_end,
            steps_total=self._in_all,
            gpu_memory_gib=peak_gpu_gib(),
            save_error=self._save_error,
        )

    def _handle_sigterm(self) -> None:
        """Under a lease, SIGTERM stops the loop gracefully, unless the script has its own handler."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._watch and is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, *_: object) -> None:
        if os.getpid() == self._process:
            self._terminated = True
            return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a worker that was forked from the loop ends as usual
        os.kill(os.getpid(), signal.SIGTERM)
