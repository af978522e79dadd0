"""Rate floors that cannot be kept, seen from prices: a Farkas ray.

The sum of gains has no finite prices there: they rise without end, and gains fall behind. At such prices what each job
pays for the last of its floor, gains left out, is its weight in the ray. Nothing is believed: farkas.py checks it.
"""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.solve.certificate import Duals
from gavelpy.solve.prices.dual import Dual, kernels
from gavelpy.solve.prices.jobs import Jobs
from gavelpy.solve.prices.needs import Fixed


def ray_at(jobs: Jobs, price: Floats) -> Duals:
    """What the floors cost at these prices, (T',), as duals of the problem; their size has no meaning."""
    table, floor = jobs.table, jobs.floor  # the table as it is: without gains
    price = price / (price.max(initial=0.0) or 1.0)
    s = Dual(table, Fixed(floor)).swept(price, 0.0)
    steepness = kernels(len(floor)).settle(table, s.low, s.high, floor, price)[1]
    best, none = jobs.best_steps_per_s, np.zeros(jobs.problem.job_count)
    weight = np.divide(jobs.per_job(steepness), best, out=none.copy(), where=best > 0)
    return Duals(level=none, floor=weight, budget=none, price=jobs.all_types(price))
