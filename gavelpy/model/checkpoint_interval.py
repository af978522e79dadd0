"""How often a job saves: the interval between checkpoints that loses the least time to checkpoints and failures.

A checkpoint of d seconds after each interval of t seconds loses d per interval, and a failure, every M seconds on
average, loses half of an interval. J. W. Young (A first order approximation to the optimum checkpoint interval,
Communications of the ACM 17(9), 1974) finds t = sqrt(2 d M). J. T. Daly (A higher order estimate of the optimum
checkpoint interval for restart dumps, Future Generation Computer Systems 22(3), 2006, equation 37) finds

    t = sqrt(2 d M) (1 + 1/3 sqrt(d / 2M) + 1/9 (d / 2M)) - d    for d < 2 M,    else t = M

for failures at exponential times. Both are work between two checkpoints, without the checkpoints themselves.
"""

from __future__ import annotations

import math
from typing import Final

from gavelpy.errors import InvalidInput

INTERVAL_S_MIN: Final = 1.0


def checkpoint_interval_s(save_s: float, mtbf_s: float) -> float:
    """Seconds of work between two checkpoints, by Daly's formula; at least 1, infinite if there are no failures.

    `save_s`: seconds that a checkpoint stops the job; `mtbf_s`: mean time between failures of the job.

    >>> round(checkpoint_interval_s(save_s=60, mtbf_s=86_400))
    3180
    """
    if not save_s >= 0 or math.isinf(save_s):
        raise InvalidInput(f"save_s must be finite and >= 0, got {save_s!r}")
    if not mtbf_s > 0:
        raise InvalidInput(f"mtbf_s must be > 0, got {mtbf_s!r}")
    if math.isinf(mtbf_s):
        return math.inf
    if save_s >= 2 * mtbf_s:
        return max(mtbf_s, INTERVAL_S_MIN)
    ratio = save_s / (2 * mtbf_s)
    young_s = math.sqrt(2 * save_s * mtbf_s)
    return max(young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s, INTERVAL_S_MIN)
