"""What would have happened: a recorded journal replayed unchanged and with a change, and the paired difference.

The unchanged replay shows how well the simulation describes this scheduler. A change is compared with it, and not with
the record, so that errors of the simulation cancel out. Both replays of a seed draw the same noise: rates of jobs and
costs of leases, as far as they vary in the journal. The interval is a bootstrap over jobs and seeds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.journal.recording import Recording, read_recording
from gavelpy.model.arrays import Bools, Floats
from gavelpy.simulator.past.change import Change
from gavelpy.simulator.past.learned import learn
from gavelpy.simulator.past.ledger import NOTHING, Ledger
from gavelpy.simulator.past.observed import ObservedJournal, observe
from gavelpy.simulator.past.replay import Replay, Replayed
from gavelpy.simulator.past.work import Noise, Work, work_of
from gavelpy.simulator.simulate import Progress
from gavelpy.statistics import MeanInterval, paired_difference, paired_over_jobs

if TYPE_CHECKING:
    import pandas as pd

SEEDS = 5
MOST = 5  # affected jobs that are named
UNCHANGED = "unchanged"
_NAMED_MAX = 3


@dataclass(frozen=True)
class Summary:
    """Averages and sums over some jobs, in seconds and hours."""

    jobs: int
    avg_jct_s: float
    p90_jct_s: float
    makespan_s: float  # from the first arrival, or the begin of the replay, to the last end
    avg_waiting_s: float  # without GPUs, from submission, or the begin of the replay, to the end
    gpu_hours: float
    preemptions: int

    def to_json(self) -> dict[str, Any]:
        """The documented object; NaN becomes null."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


SUMMED = ("avg_jct_s", "p90_jct_s", "makespan_s", "avg_waiting_s", "gpu_hours", "preemptions")


@dataclass(frozen=True, eq=False)
class WhatIfAnswer:
    """The answer."""

    journal: str
    change: Change
    start_s: float
    end_s: float
    recorded: Summary  # of the jobs that ended in the journal
    reproduced: Summary  # of the same jobs, in the unchanged replay
    baseline: Summary  # unchanged, of all jobs that end in all replays
    changed: Summary  # of the same jobs
    differences: Mapping[str, MeanInterval]  # changed less baseline: avg_jct_s, avg_waiting_s, makespan_s
    relative_jct: MeanInterval  # change of the average JCT as a share of the baseline's
    seeds: int
    warnings: tuple[str, ...]
    table: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # columns of `jobs`  # Any: of several types
    journal_sha256: str = ""
    journal_events: int = 0

    @cached_property
    def jobs(self) -> pd.DataFrame:
        """Index job; name owner job_type gpus arrival_s end recorded_jct_s baseline_jct_s changed_jct_s difference_s.

        Times of replays are means over seeds.
        """
        import pandas as pd

        return pd.DataFrame(self.table).set_index("job")

    @property
    def most_affected(self) -> pd.DataFrame:
        """The rows of `jobs` with the largest differences."""
        known = self.jobs.dropna(subset=["difference_s"])
        return known.loc[known["difference_s"].abs().sort_values(ascending=False, kind="stable").index[:MOST]]

    @property
    def deviations(self) -> dict[str, float]:
        """The unchanged replay relative to the record, less 1, by name of a summary; NaN where the record has 0."""
        pairs = {name: (getattr(self.recorded, name), getattr(self.reproduced, name)) for name in SUMMED}
        return {name: after / before - 1.0 if before else math.nan for name, (before, after) in pairs.items()}

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        if not (self.recorded if self.change.is_nothing else self.baseline).jobs:
            return "No job ends both in the journal and in all replays, so there is nothing to compare."
        if self.change.is_nothing:
            off = self.deviations["avg_jct_s"]
            return (
                f"Replayed unchanged, {self.recorded.jobs:,} jobs complete in {_span(self.reproduced.avg_jct_s)} on "
                f"average, where the journal has {_span(self.recorded.avg_jct_s)} ({off:+.1%})."
            )
        one, relative = self.differences["avg_jct_s"], self.relative_jct
        size = abs(relative.mean)
        words = f"{size:.1%} {'less' if one.mean < 0 else 'more'}"
        ends = sorted(abs(end) for end in (relative.low, relative.high))
        is_sure = one.excludes_zero
        interval = (
            f"95 % interval {ends[0]:.1%} to {ends[1]:.1%}"
            if is_sure
            else f"95 % interval {relative.low:+.1%} to {relative.high:+.1%}, so the sign is not known"
        )
        before, after = self.baseline, self.changed
        return (
            f"With {self.change.label}, jobs would have completed in {_span(after.avg_jct_s)} on average instead of "
            f"{_span(before.avg_jct_s)}: {words} ({interval}); the makespan would have been {_span(after.makespan_s)} "
            f"instead of {_span(before.makespan_s)}."
        )

    def to_json(self) -> dict[str, Any]:
        """The documented object."""
        found: dict[str, Any] = {
            "journal": self.journal,
            "journal_sha256": self.journal_sha256,
            "journal_events": self.journal_events,
            "since_s": self.start_s,
            "until_s": self.end_s,
            "recorded": self.recorded.to_json(),
            "reproduced": self.reproduced.to_json(),
            "deviations": {name: _finite(value) for name, value in self.deviations.items()},
            "warnings": list(self.warnings),
            "answer": self.sentence,
        }
        if self.change.is_nothing:
            return found
        worst = self.most_affected.reset_index()
        return found | {
            "change": self.change.label,
            "seeds": self.seeds,
            "baseline": self.baseline.to_json(),
            "changed": self.changed.to_json(),
            "differences": {name: interval_json(one) for name, one in self.differences.items()},
            "relative_jct": interval_json(self.relative_jct),
            "most_affected": [{k: _finite(v) for k, v in row.items()} for row in worst.to_dict("records")],
        }


def interval_json(one: MeanInterval) -> dict[str, Any]:
    """The documented object of an interval."""
    return {"mean": _finite(one.mean), "low": _finite(one.low), "high": _finite(one.high), "level": one.level}


def what_if(
    journal: str | os.PathLike[str] | Recording,
    change: Change | None = None,
    *,
    since: str = "",
    until: str = "",
    recorded_policy: str = "",
    seeds: int = SEEDS,
    progress: Progress | None = None,
) -> WhatIfAnswer:
    """Replays a journal with a change; without one, only compares the replay with the record.

    `since` and `until` are dates (`2026-11-01`, `2026-11-01T08:00`) or seconds since the journal began. `seeds`: pairs
    of replays with noise, in addition to the pair without. Reads the journal only, also while its scheduler runs.
    `progress` is called as by `simulate`, for each replay.
    """
    if not 0 <= seeds <= 1000:
        raise InvalidInput(f"seeds must be in [0, 1000], got {seeds!r}")
    recording = journal if isinstance(journal, Recording) else read_recording(journal)
    since_s = recording.time_s(since, "since") if since else None
    until_s = recording.time_s(until, "until") if until else None
    observed = observe(recording, since_s, until_s, recorded_policy)
    work = work_of(observed, learn(observed.ledger, observed.start_s))
    if not len(work.serials):
        raise InvalidInput(f"journal must have jobs between {observed.start_s:,.0f} s and {observed.end_s:,.0f} s")
    change = change or Change()
    changes = [Change()] if change.is_nothing else [Change(), change]
    runs = [
        [_run(work, one, Noise(seed), progress) for one in changes]
        for seed in range(seeds + 1)[: _count(change, seeds)]
    ]
    return _compared(work, change, runs)


def _count(change: Change, seeds: int) -> int:
    return 1 if change.is_nothing else seeds + 1


def _run(work: Work, change: Change, noise: Noise, progress: Progress | None) -> Replayed:
    label, total = change.label + (f", seed {noise.seed}" if noise.seed else ""), len(work.serials)

    def show(done: int, now_s: float) -> None:
        if progress is not None:
            progress(label, done, total, now_s - work.observed.start_s)

    return Replay(work, change, noise, None if progress is None else show).run()


def _compared(work: Work, change: Change, runs: Sequence[Sequence[Replayed]]) -> WhatIfAnswer:
    observed = work.observed
    recorded = _columns(observed.ledger, work.serials, observed, is_record=True)
    first = _columns(runs[0][0].ledger, range(len(work.serials)), observed)
    all_runs = [[_columns(run.ledger, range(len(work.serials)), observed) for run in pair] for pair in runs]
    ended = recorded.ended & first.ended
    both = np.logical_and.reduce([one.ended for pair in all_runs for one in pair])
    before = np.column_stack([pair[0].jct_s for pair in all_runs])
    after = np.column_stack([pair[-1].jct_s for pair in all_runs])
    waited = [np.column_stack([pair[k].waiting_s for pair in all_runs]) for k in (0, -1)]
    makespans = [[one.summary(both, observed.start_s).makespan_s for one in pair] for pair in all_runs]
    differences = {
        "avg_jct_s": paired_over_jobs(before[both], after[both]),
        "avg_waiting_s": paired_over_jobs(waited[0][both], waited[1][both]),
        "makespan_s": paired_difference([one[0] for one in makespans], [one[-1] for one in makespans]),
    }
    return WhatIfAnswer(
        observed.recording.name, change, observed.start_s, observed.end_s,
        recorded.summary(ended, observed.start_s), first.summary(ended, observed.start_s),
        _mean([pair[0].summary(both, observed.start_s) for pair in all_runs]),
        _mean([pair[-1].summary(both, observed.start_s) for pair in all_runs]),
        differences, paired_over_jobs(before[both], after[both], relative=True), len(runs) - 1,
        (*_warnings(work, runs, recorded.ended, first.ended), *_team_warnings(work, change)),
        _job_table(work, recorded, before, after, both),
        observed.recording.sha256, len(observed.recording.events),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Columns:
    """Of each job, (J,): NaN where it did not end by itself."""

    arrival_s: Floats
    end_s: Floats
    waiting_s: Floats
    gpu_s: Floats
    preemptions: Floats

    @property
    def ended(self) -> Bools:
        return np.isfinite(self.end_s)

    @property
    def jct_s(self) -> Floats:
        return self.end_s - self.arrival_s

    def summary(self, which: Bools, start_s: float) -> Summary:
        if not which.any():
            return Summary(0, math.nan, math.nan, math.nan, math.nan, 0.0, 0)
        jct_s = self.jct_s[which]
        begin_s = max(float(self.arrival_s[which].min()), start_s)
        return Summary(
            int(which.sum()), float(jct_s.mean()), float(np.percentile(jct_s, 90)),
            float(self.end_s[which].max()) - begin_s, float(self.waiting_s[which].mean()),
            float(self.gpu_s[which].sum()) / 3600.0, int(self.preemptions[which].sum()),
        )  # fmt: skip


def _columns(ledger: Ledger, names: Sequence[int], observed: ObservedJournal, *, is_record: bool = False) -> _Columns:
    """Of the jobs with these names in a ledger, since the begin of the replay."""
    columns = np.full((5, len(names)), math.nan)
    for k, name in enumerate(names):
        job = ledger.jobs[name]
        used = observed.used_before.get(name, NOTHING) if is_record else NOTHING
        by_itself = job.end == "finished" or (job.end and not is_record) or job.end == "failed"
        end_s = job.end_s if by_itself and job.end_s > observed.start_s else math.nan
        run_s = job.run_s - used.run_s
        waiting_s = end_s - max(job.arrival_s, observed.start_s) - run_s
        columns[:, k] = job.arrival_s, end_s, waiting_s, job.gpu_s - used.gpu_s, job.preemptions - used.preemptions
    return _Columns(*columns)


def _mean(summaries: Sequence[Summary]) -> Summary:
    values = {name: float(np.mean([getattr(one, name) for one in summaries])) for name in SUMMED}
    return Summary(jobs=summaries[0].jobs, **values | {"preemptions": round(values["preemptions"])})  # type: ignore[arg-type]  # rounded


def _job_table(work: Work, recorded: _Columns, before: Floats, after: Floats, both: Bools) -> dict[str, Sequence[Any]]:
    jobs = [one.spec for one in work.seen]
    means = [np.where(both, values.mean(axis=1), math.nan) for values in (before, after)]
    return {
        "job": work.serials,
        "name": [str(spec.id).rpartition("#")[0] or str(spec.id) for spec in jobs],
        "owner": [spec.owner for spec in jobs],
        "job_type": [spec.job_type for spec in jobs],
        "gpus": [spec.gpus for spec in jobs],
        "arrival_s": recorded.arrival_s.tolist(),
        "end": [one.end for one in work.seen],
        "recorded_jct_s": recorded.jct_s.tolist(),
        "baseline_jct_s": means[0].tolist(),
        "changed_jct_s": means[1].tolist(),
        "difference_s": (means[1] - means[0]).tolist(),
    }


def _warnings(work: Work, runs: Sequence[Sequence[Replayed]], recorded: Bools, simulated: Bools) -> list[str]:
    observed, learned = work.observed, work.learned
    found = list(observed.recording.notes)
    unended = [one for one in work.seen if not one.end]
    if unended:
        found.append(f"{len(unended):,} jobs had not ended: their work is what they declared")
    if work.estimated:
        more = len(work.estimated) - _NAMED_MAX
        named = ", ".join(work.estimated[:_NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")
        found.append(f"{len(work.estimated):,} rates are estimates, as the journal shows none: {named}")
    if learned.shared:
        found.append(f"{learned.shared:,} leases shared GPUs: replays run each job alone")
    if observed.restarts > 1:
        found.append(f"the scheduler was restarted {observed.restarts - 1:,} times: replays have no such pauses")
    failed = sum(one.end == "failed" for one in work.seen)
    if failed:
        found.append(f"{failed:,} jobs failed: in replays they fail after as much work, at the first attempt")
    lost = int((recorded & ~simulated).sum())
    if lost:
        found.append(f"{lost:,} jobs that ended in the journal do not end in the unchanged replay: they are left out")
    for run in runs[0]:
        if run.stalled:
            found.append(f"{run.label}: ended at {run.end_s:,.0f} s: {run.stalled}")
        found += [f"{run.label}: an allocation failed: {one}" for one in run.failures[:1]]
    return found


def _team_warnings(work: Work, change: Change) -> list[str]:
    names = [team.name for team in change.teams or ()]
    outside = sum(one.spec.entity not in names for one in work.seen) if change.teams is not None else 0
    return [f"{outside:,} of {len(work.seen):,} jobs belong to none of the other teams"] if outside else []


def _span(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "unknown"
    for unit, length in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _finite(value: Any) -> Any:  # Any: values of a table
    return None if isinstance(value, float) and not math.isfinite(value) else value
