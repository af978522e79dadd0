"""LeaseIterator: a training loop that stops, saves and goes on as its leases come and go.

Theory of operation. The loop counts steps; between two steps, at most every LOOK_S, it looks at the lease, which a
thread beside it keeps up to date, and decides: go on, write a checkpoint, stop, or give up because the lease is over.
It begins to stop so early that one more step and a checkpoint fit before the end. Only in gangs is this more than a
matter of one process: their ranks agree on the step (`gang`), and may write one checkpoint together (`checkpoints`).
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, Literal, TypeVar

from gavelpy.errors import InvalidInput, LeaseExpired
from gavelpy.runtime.iterator.checkpoints import CheckpointWriter, Place, read_place
from gavelpy.runtime.iterator.gang import NEVER, Meeting
from gavelpy.runtime.iterator.meter import RateMeter
from gavelpy.runtime.iterator.place import EpochWalk
from gavelpy.runtime.iterator.plan import checkpoint_guess_s, stop_at_s, wants_stop
from gavelpy.runtime.iterator.surroundings import Surroundings, surroundings
from gavelpy.runtime.iterator.watch import Watch
from gavelpy.runtime.lease_files import Progress, clock_s, newest_checkpoint

_logger = logging.getLogger(__name__)
Item = TypeVar("Item")
Save = Callable[[Path], object]
LOOK_S: Final = 0.05
FADING: Final = 0.98  # of the slowest step, at each look
_boot = time.CLOCK_BOOTTIME
_now = time.clock_gettime


class LeaseIterator(Generic[Item]):
    """Iterates over a loader for as long as the job holds its lease; a step is one item.

        batches = LeaseIterator(loader, save, load=load, epochs=10)
        for batch in batches:
            train(batch)
        if batches.finished:
            publish(model)

    `save(directory)` writes a checkpoint into an empty directory; `load(directory)` is called at once where there is
    one to go on from, after the loader has been brought to its place. The loop ends when `epochs` are through (one, if
    neither is given), or at `steps_total` (by default what the job was submitted with), or when the lease
    asks for it: `finished` tells which. Loops of another form call `step_done()` after each step until `should_stop()`.

    In a gang every rank makes one. By default its first rank saves, as models are the same on all ranks;
    with `save_on="all"` each rank calls `save` with the same directory at the same step.

    Outside a lease it is a plain loop, which saves into `checkpoint_directory`, if given, and goes on from what is
    there.
    """

    def __init__(
        self,
        loader: Iterable[Item] = (),
        save: Save | None = None,
        *,
        load: Callable[[Path], object] | None = None,
        epochs: int | None = None,
        steps_total: int | None = None,
        save_on: Literal["first", "all"] = "first",
        checkpoint_directory: Path | str | None = None,
        checkpoint_every_s: float | None = None,
    ) -> None:
        place = surroundings(os.environ)
        _check(epochs, steps_total, save_on, checkpoint_every_s, place)
        self._around = place
        self._process = os.getpid()
        self._save = save
        self._every_s = place.checkpoint_every_s if checkpoint_every_s is None else checkpoint_every_s
        self._total = place.steps_total if steps_total is None else steps_total
        self._all_save = save_on == "all" and place.world > 1
        directory = place.checkpoint_directory or (Path(checkpoint_directory) if checkpoint_directory else None)
        ranks = (place.rank, place.world if self._all_save else 1, place.world)
        self._writer = CheckpointWriter(directory, *ranks) if directory else None
        self._resume = place.resume_directory or (
            newest_checkpoint(directory) if directory and place.lease_directory is None else None
        )
        start = read_place(self._resume) if self._resume else Place()
        self._walk = EpochWalk(loader, _epochs(epochs, self._total), start)
        self._steps = self._saved_steps = self._first_steps = start.steps
        self._over = self._finished = self._stopped = self._terminated = False
        now_s = self._at_s = self._checkpoint_at_s = clock_s()
        self._slowest_s = 0.0
        self._look_at_s = now_s
        self._look_at_steps = self._end_steps = 0  # looks after the first step
        self._meter = RateMeter(now_s, start.steps)
        self._known_checkpoint_s = start.took_s
        self._meetings_at = directory or place.lease_directory
        self._watch = self._watching()
        self._lease_s = self._watch.lease.until_clock_s - now_s if self._watch else 0.0
        self._stop_meeting = self._meeting("stop")
        self._saves = 0
        self._save_meeting = self._meeting("save-0") if self._all_save else None
        self._handle_sigterm()
        if self._watch:
            self._watch.start()
        if self._resume and load:
            load(self._resume)
        if self._writer:
            self._writer.tell_loaded()
        self._at_s = clock_s()
        if self._total and self._steps >= self._total:
            self.finish()

    @property
    def steps_done(self) -> int:
        """Steps of the job since it was submitted, those of earlier leases included."""
        return self._steps

    @property
    def steps_saved(self) -> int:
        """Of these, in a whole checkpoint that this rank knows of."""
        return self._saved_steps

    @property
    def epoch(self) -> int:
        """The pass over the loader that is under way, from 0."""
        return self._walk.epoch

    @property
    def resume_directory(self) -> Path | None:
        """The checkpoint that this run went on from; None = it began from scratch."""
        return self._resume

    @property
    def finished(self) -> bool:
        """Whether the job has done all its work, rather than stopped because its lease ends."""
        return self._finished

    @property
    def rate_steps_per_s(self) -> float:
        """Measured without the first steps and without checkpoints; 0 = not yet."""
        return self._meter.rate_steps_per_s()

    def __iter__(self) -> Iterator[Item]:
        if self.should_stop():
            return
        for item in self._walk:
            yield item
            self._walk.position += 1
            if not self.should_stop():  # finish() may have been called
                self.step_done()
            if self.should_stop():
                return
        self.finish()

    def step_done(self) -> None:
        """Counts a step; between two steps is where checkpoints are written and the loop stops.

        Raises LeaseExpired where the lease was over before the loop could stop in good order.
        """
        self._steps = steps = self._steps + 1
        now_s = _now(_boot)
        took_s = now_s - self._at_s
        self._at_s = now_s
        if took_s > self._slowest_s:
            self._slowest_s = took_s
        if steps >= self._look_at_steps or now_s >= self._look_at_s:
            self._look(now_s, steps)

    def should_stop(self) -> bool:
        """Whether the loop is over, on all ranks at the same step: do no further step."""
        return self._over

    def finish(self) -> None:
        """Says that the job has done all its work, also before `steps_total`; saves what is not saved."""
        if not self._over:
            self._finished = True
            self._end()

    def close(self) -> None:
        """Ends the thread beside the loop, and what SIGTERM meant during it; a loop that ends does this itself."""
        if self._watch:
            self._watch.close()
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def __enter__(self) -> LeaseIterator[Item]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _look(self, now_s: float, steps: int) -> None:
        """Between two steps: decides what comes next. In gangs at every step, so the meetings come first."""
        is_time = now_s >= self._look_at_s or steps >= self._end_steps
        stop, save = self._stop_meeting, self._save_meeting
        meets = (stop is not None and steps >= stop.barrier) or (save is not None and steps >= save.barrier)
        if self._over or not (is_time or meets or self._around.world == 1):
            return
        watch = self._watch
        if watch and now_s >= watch.over_s():
            self._give_up()
        self._meter.sample(now_s, steps)
        if 0 < self._total <= steps:
            self.finish()
        elif self._meets_to_stop(now_s):
            self._stopped = True
            self._end()
        elif self._meets_to_save(now_s):
            self._checkpoint_between()
        self._forget_slow_steps(steps)
        now_s = self._at_s = clock_s()
        self._look_at_s = min(now_s + LOOK_S, max(self._begin_stop_s(), now_s))
        self._end_steps = self._least_end()
        self._look_at_steps = 0 if self._around.world > 1 else self._end_steps

    def _forget_slow_steps(self, steps: int) -> None:
        """The first step is slower than all that follow; later ones fade, down to what a step takes on average."""
        is_first = steps == self._first_steps + 1
        rate = self._meter.rate_steps_per_s()
        self._slowest_s = 0.0 if is_first else max(FADING * self._slowest_s, 1.0 / rate if rate > 0 else 0.0)

    def _least_end(self) -> int:
        """The step at which the job or the lease ends."""
        steps_max = math.ceil(self._watch.lease.steps_max) if self._watch else 0
        return min(self._total or NEVER, steps_max if steps_max > 0 else NEVER)

    def _meets_to_stop(self, now_s: float) -> bool:
        """Whether to stop at this very step."""
        if not self._wants_stop(now_s) and self._stop_meeting is None:
            return False
        if self._stop_meeting is None:
            return True
        if self._wants_stop(now_s):
            self._stop_meeting.call()
        agreed = self._settled(self._stop_meeting)
        return agreed is not None and self._steps >= agreed

    def _meets_to_save(self, now_s: float) -> bool:
        """Whether to write a checkpoint at this very step."""
        is_due = self._save is not None and 0 < self._every_s <= now_s - self._checkpoint_at_s
        if self._save_meeting is None:
            return is_due
        if is_due:
            self._save_meeting.call()
        agreed = self._settled(self._save_meeting)
        if agreed is None or self._steps < agreed:
            return False
        self._saves += 1
        self._save_meeting = self._meeting(f"save-{self._saves}")
        return True

    def _settled(self, meeting: Meeting) -> int | None:
        try:
            return meeting.settle(self._watch.lease.until_clock_s if self._watch else float("inf"))
        except LeaseExpired:
            self._give_up_quietly()
            raise

    def _checkpoint_between(self) -> None:
        """One that fails, as on a full disk, is tried again when the next is due; unless other ranks wait for it."""
        try:
            self._checkpoint()
        except OSError as error:
            if self._all_save:
                raise
            self._checkpoint_at_s = clock_s()
            _logger.warning("checkpoint at step %d failed: %s", self._steps, error)

    def _checkpoint(self) -> None:
        """Writes a checkpoint, where this rank does and there is something new to save."""
        writes = self._all_save or self._around.rank == 0
        if not writes or self._save is None or self._writer is None or self._saved_steps >= self._steps:
            self._checkpoint_at_s = clock_s()
            return
        began_s = clock_s()
        place = Place(self._steps, self._walk.epoch, self._walk.position)
        try:
            took_s = self._writer.write(place, self._save, self._watch.over_s() if self._watch else float("inf"))
        except LeaseExpired:
            self._give_up_quietly()
            raise
        self._saved_steps = self._steps
        self._known_checkpoint_s = max(took_s, 0.5 * self._known_checkpoint_s)
        self._checkpoint_at_s = clock_s()
        self._meter.add_idle(self._checkpoint_at_s - began_s)
        if self._watch and self._around.rank == 0:
            on_record = self._watch.lease.steps_saved
            self._writer.prune(on_record)
            if on_record > self._first_steps:  # it is one of ours
                self._writer.prune_earlier()

    def _end(self) -> None:
        """The last checkpoint and the last report of a loop that is finished or stops."""
        for meeting in (self._stop_meeting, self._save_meeting):
            if meeting:
                meeting.call()  # nobody shall wait for a rank that has ended
        self._checkpoint()
        self._over = True
        if self._watch:
            self._watch.report()
        self.close()

    def _give_up(self) -> None:
        self._give_up_quietly()
        lost = self._steps - self._saved_steps
        raise LeaseExpired(f"the lease was over at step {self._steps}; the last {lost} steps were not saved")

    def _give_up_quietly(self) -> None:
        """Ends without a checkpoint; the shim shall know that the lease was at fault, not the script."""
        self._over = self._stopped = True
        self._finished = False
        if self._watch:
            self._watch.report()
        self.close()

    def _wants_stop(self, now_s: float) -> bool:
        if self._watch is None:
            return self._terminated
        return self._terminated or wants_stop(now_s, self._steps, self._watch.lease, self._begin_stop_s())

    def _begin_stop_s(self) -> float:
        if self._watch is None:
            return float("inf")
        can_save = self._save is not None and self._writer is not None
        checkpoint_s = checkpoint_guess_s(self._known_checkpoint_s, self._lease_s) if can_save else 0.0
        return stop_at_s(self._watch.lease, checkpoint_s, self._slowest_s, self._around.world)

    def _watching(self) -> Watch | None:
        around = self._around
        if around.lease_directory is None:
            return None
        return Watch(around.lease_directory, around.local_rank, around.grace_s, self._progress, self._beside)

    def _meeting(self, name: str) -> Meeting | None:
        if self._around.world == 1 or self._watch is None or self._meetings_at is None:
            return None
        return Meeting(self._meetings_at / f".{name}", self._around.rank, self._around.world, lambda: self._steps)

    def _beside(self) -> None:
        """In the thread: answers other ranks, and calls them where the loop is busy and time is running out."""
        if self._over or self._stop_meeting is None:
            return
        if self._stop_meeting.own() is None and self._wants_stop(clock_s()):
            self._stop_meeting.call_ahead()
        self._stop_meeting.answer()
        if self._save_meeting:
            self._save_meeting.answer()

    def _progress(self) -> Progress:
        own = self._stop_meeting.own() if self._stop_meeting else None
        return Progress(
            steps_done=self._steps,
            steps_saved=self._saved_steps,
            rate_steps_per_s=self._meter.rate_steps_per_s(),
            finished=self._finished and self._over,
            stopped=self._stopped and self._over,
            saves_at_end=self._save is not None and self._writer is not None,
            stop_proposal=-1 if own is None else own,
        )

    def _handle_sigterm(self) -> None:
        """In a lease SIGTERM means to stop in good order, unless the script has a handler of its own."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._watch and is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, *_: object) -> None:
        if os.getpid() == self._process:
            self._terminated = True
            return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a worker that was forked from the loop ends as it always would
        os.kill(os.getpid(), signal.SIGTERM)


def _epochs(epochs: int | None, total: int) -> int:
    if epochs is not None:
        return epochs
    return NEVER if total else 1


def _check(
    epochs: int | None, steps_total: int | None, save_on: str, checkpoint_every_s: float | None, around: Surroundings
) -> None:
    if epochs is not None and epochs < 1:
        raise InvalidInput(f"epochs must be 1 or more, got {epochs!r}")
    if steps_total is not None and steps_total < 1:
        raise InvalidInput(f"steps_total must be 1 or more, got {steps_total!r}")
    if checkpoint_every_s is not None and not checkpoint_every_s >= 0:
        raise InvalidInput(f"checkpoint_every_s must be 0 or more, got {checkpoint_every_s!r}")
    if save_on not in ("first", "all"):
        raise InvalidInput(f"save_on must be 'first' or 'all', got {save_on!r}")
    if save_on == "all" and around.world > 1 and around.lease_directory is None:
        raise InvalidInput(
            f"save_on must be 'first' outside a lease, where ranks have no way to agree, got {save_on!r}"
        )
