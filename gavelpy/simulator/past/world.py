"""The nodes of a replay: leases cost what a journal shows, and those that repeat recorded ones progress as they did."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gavelpy.mechanism.events import Event, LastStepReported, LeaseEnded, LeaseStarted, Outcome, ProgressReported
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.simulator.cluster import VirtualCluster
from gavelpy.simulator.co_location import NONE
from gavelpy.simulator.conditions.leases import LeaseConditions, Startup
from gavelpy.simulator.past.lease_turns import REPORTED_MAX, LeaseTurn, turn_of
from gavelpy.simulator.past.timers import SAME_S
from gavelpy.simulator.past.work import Noise, TrueRates, Work
from gavelpy.simulator.settings import Costs
from gavelpy.simulator.timeline import Ends, Finish, Saved, Starts

REPEATED_MAX = 0.999  # as REPORTED_MAX, of leases that repeat recorded ones
APART_MAX_S = 1.0  # between two reports of progress


class LearnedConditions(LeaseConditions):
    """Costs of the leases of each job, by row: its own in the journal, one after the other, then those of its type.

    With noise, each is one of those of its type.
    """

    def __init__(self, work: Work, rates: TrueRates, noise: Noise) -> None:
        super().__init__(work.learned.all_costs.mean())
        self.constant = None
        self._work, self._noise, self._types = work, noise, rates.gpu_types
        learned = work.learned
        self._own = [[] if noise.seed else _turns(work, row, rates) for row in range(len(work.serials))]
        by_type = {spec.job_type: learned.costs_of(spec.job_type) for spec in work.specs}
        usual = {name: costs.mean() for name, costs in by_type.items()}
        exits_s = {name: float(np.mean(costs.exit_s)) if costs.exit_s else 0.0 for name, costs in by_type.items()}
        self._of_type = [(by_type[spec.job_type], usual[spec.job_type], exits_s[spec.job_type]) for spec in work.specs]
        self._starts, self._stops = [_started(work, job) for job in work.serials], [0] * len(work.serials)
        self.exit = np.array([self._exit_s(row) for row in range(len(work.serials))], dtype=np.float64)

    def startup(self, rows: Ints, moved: Bools, resumes: Bools) -> Startup:  # noqa: ARG002 journals do not show it
        """As LeaseConditions."""
        starts_s = [self._start_s(row, has) for row, has in zip(rows.tolist(), moved.tolist(), strict=True)]
        return Startup(np.array(starts_s, dtype=np.float64), 0.0, 0.0)

    def stop_s(self, rows: Ints) -> Floats:
        """As LeaseConditions."""
        return np.array([self._stop_s(row) for row in rows.tolist()], dtype=np.float64)

    def withdrawal_s(self, rows: Ints) -> Floats:
        """As LeaseConditions: those of recorded leases."""
        turns = [self.turn(row) for row in rows.tolist()]
        return np.array([0.0 if one is None or math.isnan(one.stop_s) else one.stop_s for one in turns])

    def rate_factor(self, rows: Ints, gpu_types: Ints, offsets: Ints, gpus: Ints, start_s: Floats) -> Floats:  # noqa: ARG002 as LeaseConditions
        """As LeaseConditions."""
        found = np.ones(len(rows))
        for k, (row, count) in enumerate(zip(rows.tolist(), np.diff(offsets).tolist(), strict=True)):
            turn = self.turn(row)
            if turn is not None and turn.gpus == count and turn.gpu_type == self._types[int(gpu_types[k])]:
                found[k] = turn.factor
        return found

    def known_at_s(self, rows: Ints, now_s: float) -> float | Floats:  # noqa: ARG002 as LeaseConditions
        """As LeaseConditions."""
        return now_s - self._work.learned.age_s

    def report_s(self, row: int) -> float:
        """From the start of the last lease that began to its report."""
        turn = self.turn(row)
        usual_s = self._work.learned.report_s
        if turn is None or math.isnan(turn.report_s):
            return usual_s
        return max(turn.report_s, usual_s if math.isnan(turn.start_s) else 0.0)

    def turn(self, row: int) -> LeaseTurn | None:
        """The recorded lease that the last one of a job repeats; None = it had fewer."""
        count, own = self._starts[row] - 1, self._own[row]
        return own[count] if 0 <= count < len(own) else None

    def _start_s(self, row: int, moved: bool) -> float:
        count, own, (costs, usual, _) = self._starts[row], self._own[row], self._of_type[row]
        self._starts[row] += 1
        if count < len(own) and not math.isnan(own[count].start_s):
            return own[count].start_s
        values = (costs.moved_s if moved else costs.start_s) or costs.start_s or costs.moved_s
        usual_s = usual.restart_s + usual.migration_s * moved
        sample_s = self._noise.sample(self._work.serials[row], "start", count, values, usual_s)
        is_short = count < len(own) and own[count].report_s > REPORTED_MAX * sample_s
        return own[count].report_s / REPORTED_MAX if is_short else sample_s

    def _stop_s(self, row: int) -> float:
        count, turn, (costs, usual, _) = self._stops[row], self.turn(row), self._of_type[row]
        self._stops[row] += 1
        if turn is not None and not math.isnan(turn.stop_s):
            return turn.stop_s
        return self._noise.sample(self._work.serials[row], "stop", count, costs.stop_s, usual.checkpoint_s)

    def _exit_s(self, row: int) -> float:
        own, (costs, _, usual_s) = self._own[row], self._of_type[row]
        known = [one.exit_s for one in own if not math.isnan(one.exit_s)]
        return known[0] if known else self._noise.sample(self._work.serials[row], "exit", 0, costs.exit_s, usual_s)


def _started(work: Work, job: int) -> int:
    """How many of the recorded leases of a job had started when the replay begins; they continue in it."""
    leases, is_new = work.learned.by_job.get(job, ()), job >= work.observed.serial_after
    return 0 if is_new else sum(one.started_s <= work.observed.start_s for one in leases)


def _turns(work: Work, row: int, rates: TrueRates) -> list[LeaseTurn]:
    """Costs of the recorded leases of a job in the time of the replay, in order, at its true rates."""
    found, spec = list[LeaseTurn](), work.specs[row]
    for lease in work.learned.by_job.get(work.serials[row], ()):
        of_size = rates.requested[row] if lease.gpus == spec.gpus else rates.by_size.get(row, {}).get(lease.gpus)
        known = of_size is not None and lease.gpu_type in rates.gpu_types
        rate = float(of_size[rates.gpu_types.index(lease.gpu_type)]) if known and of_size is not None else 0.0
        found.append(turn_of(lease, rate, work.learned.lag_s))
    return found


class PastCluster(VirtualCluster):
    """Nodes and jobs with the rates, costs and work that a journal shows."""

    def __init__(self, gpu_type_of: Ints, work: Work, rates: TrueRates, noise: Noise) -> None:
        self._learned = LearnedConditions(work, rates, noise)
        super().__init__(
            gpu_type_of, rates.requested, work.steps_total.copy(), Costs(0.0, 0.0, 0.0),
            rate_by_size=rates.by_size, conditions=self._learned,
        )  # fmt: skip
        self._types = rates.gpu_types
        self._delayed = set[int]()  # leases whose start is not reported yet
        self._lag_s, self._last = work.learned.lag_s, set[int]()  # leases that were revoked before their last step
        self._last_steps = set[int]()  # of them, those that will report it
        self._apart_s = min(work.observed.ledger.reports_apart_s, APART_MAX_S)
        self._reported_s = -math.inf
        self._exits = np.full(len(work.serials), -1)  # (J,) lease whose last step is done

    def made(self, rows: Ints, steps: Floats) -> None:
        """These running jobs have made so many steps by now."""
        self.steps_at_start[rows] = np.minimum(steps, self.steps_total[rows])
        self.is_watched[rows] = False
        self._expect_finish(rows)
        self._watch_finishes(rows)

    def held_on(self, gpus: Bools, running: Ints, now_s: float) -> tuple[Ints, Ints]:
        """Jobs on these GPUs (G,), and their leases, that run, or write their last checkpoints."""
        rows = np.intersect1d(self.gpu_job[gpus], running)
        saving = np.setdiff1d(self._gpu_saver[gpus & (self.gpu_free_s > now_s)], [NONE, *rows.tolist()])
        saving = saving[self.accounts.stopping[saving] != NONE]
        return np.concatenate([rows, saving]), np.concatenate([self.lease[rows], self.accounts.stopping[saving]])

    def _watch_finishes(self, leased: Ints) -> None:
        """As VirtualCluster, also of jobs that finish after the end of the plan: the next plan may be late."""
        until_s, self._until_s = self._until_s, np.finfo(np.float64).max
        super()._watch_finishes(leased)
        self._until_s = until_s

    def progress(self, now_s: float) -> ProgressReported | None:
        """As VirtualCluster, but not sooner after the last report than the recorded scheduler."""
        if now_s - self._reported_s < self._apart_s:
            return None
        self._reported_s = now_s
        leased = self._leased()
        known_s = self.costs.known_at_s(leased, now_s)
        has_begun = (self.began_s[leased] < known_s).tolist()
        rows = np.array(
            [
                row
                for row, begun in zip(leased.tolist(), has_begun, strict=True)
                if self._is_heard(row, now_s, begun=begun)
            ],
            dtype=np.int64,
        )
        if not len(rows):
            return None
        made = self.steps_of(rows, self.costs.known_at_s(rows, now_s)).tolist()
        steps = [self._steps(row, steps, now_s) for row, steps in zip(rows.tolist(), made, strict=True)]
        return ProgressReported(rows, self.lease[rows], np.array(steps, dtype=np.float64))

    def _is_heard(self, row: int, now_s: float, *, begun: bool) -> bool:
        """Whether a job reports its steps by now: once it has begun to make some, or as in the journal."""
        turn = self._repeated(row)
        if turn is None or math.isnan(turn.heard_s):
            return begun
        in_s = now_s - float(self.start_s[row])
        return in_s >= turn.heard_s - SAME_S and not (np.abs(turn.missed_s - in_s) <= SAME_S).any()

    def _steps(self, row: int, made: float, now_s: float) -> float:
        """Steps that a job reports: those of a recorded lease like this one after the same time, else those made."""
        if self._exits[row] == self.lease[row]:
            return float(self.steps_total[row])
        recorded = self._recorded(row, now_s - float(self.start_s[row]))
        return made if recorded is None else min(self.steps_at_start[row] + recorded, self.steps_total[row])

    def _repeated(self, row: int) -> LeaseTurn | None:
        """The recorded lease that the one of a job repeats, on as many GPUs of the same type; None = there is none."""
        turn = self._learned.turn(row)
        if turn is None or turn.gpus != self.accounts.gpus[row]:
            return None
        return turn if turn.gpu_type == self._types[int(self.lease_type[row])] else None

    def _is_last(self, row: int, now_s: float) -> bool:
        """Whether a program makes its last step before it learns of a revocation: as in the journal, or in the lag."""
        turn = self._repeated(row)
        if turn is None or not self._is_as_recorded(row, now_s) or math.isnan(turn.stop_s):
            return bool(self.finish_s[row] <= now_s + self._lag_s)
        if not math.isnan(turn.last_step_s):
            lease = int(self.lease[row])
            self._last_steps.add(lease)
            self._timeline.push(now_s + turn.last_step_s, Finish(row, lease))
        return not math.isnan(turn.last_step_s)

    def _recorded(self, row: int, in_s: float, *, late_s: float = 0.0) -> float | None:
        """Steps that a recorded lease like this one had reported after this time; None = there is none."""
        turn = self._repeated(row)
        if turn is None or len(turn.track) < 2 or in_s > turn.track[-1, 0] + late_s:
            return None
        return float(np.interp(in_s, turn.track[:, 0], turn.track[:, 1]))

    def _stop(self, rows: Ints, leases: Ints, now_s: float) -> None:
        """As VirtualCluster; programs make steps until they learn of it, and may make their last ones."""
        saves, running = self.saves[rows], rows[self.began_s[rows] < now_s]
        last = running[[self._is_last(row, now_s) for row in running.tolist()]] if len(running) else running
        self._last.update(self.lease[last].tolist())
        self.counted_s[running] -= self._lag_s
        for row in rows.tolist():
            made = self._made(row, now_s)
            if made is not None and self.rate[row] > 0:
                self.counted_s[row] = now_s - made / self.rate[row]
                self.began_s[row] = min(self.began_s[row], self.counted_s[row])
        saving, losing = self._saving(rows, now_s), rows[[self._loses(row, now_s) for row in rows.tolist()]]
        self.saves[losing], self.saves[last] = False, True
        super()._stop(rows, leases, now_s)
        self.saves[rows] = saves
        for k, saved_s in saving:
            one = slice(k, k + 1)
            self._timeline.push(now_s + saved_s, Saved(rows[one], leases[one], self.steps_saved[rows[one]]))

    def _made(self, row: int, now_s: float) -> float | None:
        """Steps that a lease which is revoked now has made at its end, if the one that it repeats shows them.

        A program that was starting may make its first ones after that.
        """
        turn = self._repeated(row)
        if turn is not None and self._is_as_recorded(row, now_s) and not math.isnan(turn.made):
            return turn.made
        if not self.began_s[row] < now_s:
            return None
        return self._recorded(row, now_s + self._lag_s - float(self.start_s[row]), late_s=self._lag_s)

    def _loses(self, row: int, now_s: float) -> bool:
        """Whether a job is stopped without a checkpoint, as in the journal."""
        turn = self._repeated(row)
        return turn is not None and turn.loses and self._is_as_recorded(row, now_s)

    def _saving(self, rows: Ints, now_s: float) -> list[tuple[int, float]]:
        """By position, those of these leases whose last checkpoint is reported before they end, and how long after."""
        turns = [(k, self._repeated(row)) for k, row in enumerate(rows.tolist()) if self._is_as_recorded(row, now_s)]
        return [(k, turn.saved_s) for k, turn in turns if turn is not None and turn.saved_s < turn.stop_s]

    def _is_as_recorded(self, row: int, now_s: float) -> bool:
        """Whether the lease of a job is revoked after the same time as the one that it repeats."""
        turn = self._repeated(row)
        return turn is not None and abs(now_s - float(self.start_s[row]) - turn.revoked_s) <= SAME_S

    def _ended(self, due: Ends, now_s: float) -> LeaseEnded:
        is_over = np.isin(due.leases, list(self._last))
        if not is_over.any():
            return super()._ended(due, now_s)
        if len(due.jobs) > 1:
            for k in range(1, len(due.jobs)):
                one = slice(k, k + 1)
                self._timeline.push(now_s, Ends(due.jobs[one], due.leases[one], due.steps_done[one]))
            return self._ended(Ends(due.jobs[:1], due.leases[:1], due.steps_done[:1]), now_s)
        return replace(super()._ended(due, now_s), steps_done=self.steps_total[due.jobs], outcome=Outcome.FINISHED)

    def _started(self, due: Starts) -> LeaseStarted | None:
        """A start is reported when its node has started the program, which delays the end of its protection."""
        if len(due.jobs) > 1:
            self._one_by_one(due)
            return None
        row, lease = due.jobs.item(), due.leases.item()
        begins_s = float(self.start_s[row])
        if self.lease[row] != lease or lease in self._delayed:
            return super()._started(due)
        most = REPORTED_MAX if self._repeated(row) is None else REPEATED_MAX
        delay_s = min(self._learned.report_s(row), most * float(self.began_s[row] - begins_s))
        if delay_s <= 0:
            return super()._started(due)
        self._delayed.add(lease)
        self._timeline.push(begins_s + delay_s, due)
        return None

    def _one_by_one(self, due: Starts) -> None:
        """Schedules the starts of several jobs one by one."""
        ends = np.cumsum(due.gpu_counts)
        for k, end in enumerate(ends.tolist()):
            one, gpus = slice(k, k + 1), due.gpus[end - due.gpu_counts[k] : end]
            moment_s = float(self.start_s[due.jobs[k]])
            if self.lease[due.jobs[k]] == due.leases[k]:
                self._timeline.push(
                    moment_s, Starts(due.jobs[one], due.leases[one], due.gpu_counts[one], gpus, due.gpu_sets[one])
                )

    def _reached(self, due: Finish, now_s: float) -> list[Event]:
        """A lease ends after the last step, which its program reports, when the program has exited."""
        if due.lease in self._last_steps:
            self._last_steps.remove(due.lease)
            return [LastStepReported(np.array([due.job]), np.array([due.lease]))]
        row, exit_s = due.job, float(self._learned.exit[due.job])
        is_last_step = self.lease[row] == due.lease and self.finish_s[row] == now_s and self._exits[row] != due.lease
        if not is_last_step or exit_s <= 0:
            return super()._reached(due, now_s)
        self._exits[row], self.finish_s[row] = due.lease, now_s + exit_s
        self._timeline.push(now_s + exit_s, due)
        return [LastStepReported(np.array([row]), np.array([due.lease]))]
