"""An answer's objective and violation, recomputed from its shares without its certificate."""

from __future__ import annotations

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.solve.objective import MaxMin, MaxMinLexicographic, MaxSum, MaxSumLog, MinMaxFinishTime
from tests.solve.exact import admissible, bases, floors, has_part

Known = MaxMin | MaxSum | MaxMinLexicographic | MinMaxFinishTime | MaxSumLog


def value_of(answer: Allocation, objective: Known) -> float:
    """The objective at the answer's shares, over the jobs that can run, at least one."""
    p, rate, runs = answer.problem, answer.rate_steps_per_s, answer.problem.can_run
    match objective:
        case MaxMin(scale=scale):
            return float((scale * (rate - bases(p, objective)))[has_part(p, objective)].min())
        case MaxSum(gain=gain, gpu_type_worth=worth):
            earned = gain[p.member_job, None] * p.member_rate_steps_per_s * answer.share[p.member_configuration]
            return float((earned * (worth if len(worth) else 1.0)).sum())
        case MaxMinLexicographic(scale=scale):
            return float((scale * rate)[runs].min())
        case MinMaxFinishTime(steps=steps, age_s=age_s, isolated_s=isolated_s):
            return float((isolated_s[runs] / (age_s[runs] + steps[runs] / rate[runs])).min())
        case MaxSumLog(weight=weight):
            return float(weight[runs] @ np.log(rate[runs]))


def violation_of(answer: Allocation, objective: Known) -> float:
    """Largest violation of a sign, a time budget, a capacity or a floor (both relative), or of what can run; >= 0."""
    p, share = answer.problem, answer.share
    gpus = np.where(p.gpu_counts > 0, p.gpu_counts, 1.0)
    least: Floats = floors(p, objective) if isinstance(objective, MaxMin | MaxSum) else np.zeros(p.job_count)
    promised = np.maximum(least, 1e-6 * p.rate_alone_steps_per_s.max(axis=1, initial=0.0))
    broken = (
        (-share).max(initial=0.0),
        (answer.job_share.sum(axis=1) - 1.0).max(initial=0.0),
        ((p.gpus_occupied @ share - p.gpu_counts) / gpus).max(initial=0.0),
        ((least - answer.rate_steps_per_s) / np.where(promised > 0, promised, 1.0)).max(initial=0.0),
        share[~admissible(p)].max(initial=0.0),
    )
    return max(0.0, *map(float, broken))
