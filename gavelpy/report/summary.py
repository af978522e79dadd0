"""The summary of a comparison: sentences computed from its metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gavelpy.report.comparison import BLIND_SUFFIX, Result, duration, is_blind, policy_of

if TYPE_CHECKING:
    import pandas as pd

_FLAGSHIP = "max_min_fairness"  # the pair that comes first if present: a fixed choice, so no run is cherry-picked
_ALIKE = 0.005  # relative: smaller differences count as none


def sentences(results: Sequence[Result]) -> list[str]:
    """The main result first; at least one sentence."""
    partial = [result for result in results if result.partial]
    stopped = [f"{one.label} is partial: {one.partial}; its figures are of that time." for one in partial]
    results = [result for result in results if not result.partial]
    if not results:
        return stopped
    by_label = {result.label: result for result in results}
    pairs = [
        (by_label[label + BLIND_SUFFIX], result)
        for label, result in by_label.items()
        if not is_blind(label) and label + BLIND_SUFFIX in by_label
    ]
    pairs.sort(key=lambda pair: policy_of(pair[1].label) != _FLAGSHIP)
    found = [_gain_of_awareness(blind, aware) for blind, aware in pairs]
    if pairs:
        found[1:1] = _cost(*pairs[0])
    else:
        found = [_best(results) if len(results) > 1 else _single(results[0])]
    return found + _unfinished(results) + stopped


def unfinished(result: Result) -> pd.DataFrame:
    """The measured jobs that never finished: rows of `result.jobs`."""
    return result.jobs[result.jobs["measured"].astype(bool) & result.jobs["finish_s"].isna()]


def _gain_of_awareness(blind: Result, aware: Result) -> str:
    before, after = blind.metrics.avg_jct_s, aware.metrics.avg_jct_s
    policy = policy_of(aware.label)
    if not _comparable(before, after):
        return f"No comparison for {policy}: in the blind run, the aware run or both, no measured job finished."
    verb, makespan_verb = _direction(before, after), _direction(blind.metrics.makespan_s, aware.metrics.makespan_s)
    average = f"the average JCT of {policy}{_by(before, after)} ({duration(before)} to {duration(after)})"
    makespan = f"its makespan{_by(blind.metrics.makespan_s, aware.metrics.makespan_s)}"
    again = "" if verb == makespan_verb else f"{makespan_verb} "
    return f"Knowing the throughputs {verb} {average} and {again}{makespan}."


def _cost(blind: Result, aware: Result) -> list[str]:
    """What the headline leaves out: fairness to the worst job, and preemptions; none if it is unknown."""
    worst, before = aware.metrics.ftf_worst, blind.metrics.ftf_worst
    if not (math.isfinite(worst) and math.isfinite(before) and len(aware.jobs)):
        return []
    stops, stops_before = (result.metrics.preemptions / len(result.jobs) for result in (aware, blind))
    return [
        f"What {aware.label} costs: its worst finish-time fairness is {worst:.2f} ({before:.2f} when blind), and it "
        f"preempts a job {stops:,.1f} times on average ({stops_before:,.1f} when blind)."
    ]


def _best(results: Sequence[Result]) -> str:
    fewest = min(result.metrics.jobs_unfinished for result in results)
    able = [r for r in results if r.metrics.jobs_unfinished == fewest and math.isfinite(r.metrics.avg_jct_s)]
    if not able:
        return "No measured job finished under any policy."
    best = min(able, key=lambda result: result.metrics.avg_jct_s)
    worst = max(able, key=lambda result: result.metrics.avg_jct_s)
    against = (
        f", {100 * (1 - best.metrics.avg_jct_s / worst.metrics.avg_jct_s):.0f} % below {worst.label}"
        if worst is not best
        else ""
    )
    return (
        f"{best.label} has the lowest average JCT of {len(results)} runs: {duration(best.metrics.avg_jct_s)}{against}."
    )


def _single(result: Result) -> str:
    m = result.metrics
    if not math.isfinite(m.avg_jct_s):
        return f"No measured job finished under {result.label}."
    return (
        f"Under {result.label} a job takes {duration(m.avg_jct_s)} on average, "
        f"and the GPUs are leased {100 * m.utilization:.0f} % of the time."
    )


def _unfinished(results: Sequence[Result]) -> list[str]:
    """One sentence per reason why jobs did not finish, with the runs concerned."""
    runs: dict[str, list[str]] = {}
    for result in results:
        count = result.metrics.jobs_unfinished
        if count:
            reasons = [str(reason) for reason in unfinished(result)["reason"].unique() if reason]
            because = f": {'; '.join(reasons[:3])}" if reasons else ""
            jobs = "1 job" if count == 1 else f"{count:,} jobs"
            measured = result.metrics.jobs_measured + count
            runs.setdefault(f"{jobs} of {measured:,} never finished{because}.", []).append(result.label)
    return [f"Under {', '.join(labels)} {outcome}" for outcome, labels in runs.items()]


def _comparable(before: float, after: float) -> bool:
    return math.isfinite(before) and math.isfinite(after) and before > 0


def _direction(before: float, after: float) -> str:
    if not _comparable(before, after) or abs(after / before - 1) < _ALIKE:
        return "keeps"
    return "cuts" if after < before else "raises"


def _by(before: float, after: float) -> str:
    if _direction(before, after) == "keeps":
        return " within 0.5 % of what it was"
    return f" by {100 * abs(after / before - 1):.0f} %"
