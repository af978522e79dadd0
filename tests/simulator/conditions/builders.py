"""Random conditions, severe enough that much goes wrong within the hours of a small trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gavelpy.simulator.conditions import causes
from gavelpy.simulator.conditions.draws import Duration
from gavelpy.simulator.conditions.job_costs import CostsOfType, JobCosts
from gavelpy.simulator.conditions.spec import Conditions
from gavelpy.simulator.settings import SimulationSettings

REPAIR = Duration(median_s=600.0, sigma=0.5)
EVERYTHING = Conditions(
    costs=JobCosts(
        Duration(median_s=20.0, sigma=0.5), 10.0, Duration(gib=8, gib_per_s=1), 5.0, {"": CostsOfType(30.0)}
    ),
    checkpoints=causes.Checkpoints(by_failure_rate=True),
    nodes=causes.NodeFailures(5.0, REPAIR, 40.0, REPAIR, 20.0, REPAIR, nodes_per_rack=2),
    spot=causes.SpotNodes(0.4, (), 4.0, REPAIR, 120.0),
    prices=causes.PriceChanges(3600.0, 0.2),
    maintenance=(causes.Maintenance(5000.0, 1000.0, 9000.0),),
    job_failures=causes.JobFailures(0.1, Duration(median_s=200.0, sigma=1.0), 0.2, 0.5, 20.0),
    cancellations=causes.Cancellations(0.1, Duration(median_s=4000.0, sigma=1.0)),
    locality=causes.Locality(0.8, 0.9),
    interference=causes.Interference(0.9),
    rates=causes.RateVariation(0.1, 0.5),
    stragglers=causes.Stragglers(0.3, 0.7, 0.1, 0.5),
    latency=causes.Latency(Duration(median_s=3.0, sigma=1.0), 0.01, 30.0),
)


def random_conditions(seed: int) -> Conditions:
    """Each cause of these with probability 0.6."""
    rng, found = np.random.default_rng(seed), EVERYTHING
    for cause in EVERYTHING.causes:
        if rng.random() > 0.6:
            found = found.without(cause)
    if rng.random() < 0.5:
        found = replace(found, checkpoints=causes.Checkpoints(every_s=float(rng.uniform(100, 2000))))
    return found


def under(conditions: Conditions) -> SimulationSettings:
    """Default settings with these conditions."""
    return SimulationSettings(conditions=conditions)
