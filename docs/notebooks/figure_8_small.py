"""
Reproduce Figure 8 of the paper in small
========================================

Figure 8 of the Gavel paper (OSDI '20) plots the average job completion time against the input job rate, for least
attained service (max-min fairness) with and without knowledge of the GPU types. The paper uses 108 GPUs and thousands
of jobs; this notebook uses 12 GPUs and 30 measured jobs, and takes about ten seconds.
"""

# %%
# A cluster with four GPUs of each type of the paper, and jobs from the paper's generator: run times between half an
# hour and a week, one GPU each, Poisson arrivals.

import numpy as np

from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.cluster import Cluster
from gavelpy.simulator.compare import PolicyRun, compare
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs

CLUSTER = Cluster.parse("v100:4,p100:4,k80:4")
TABLE = published_throughputs()
RUNS = [PolicyRun("max_min_fairness", blind=True), PolicyRun("max_min_fairness")]
SETTINGS = SimulationSettings(
    MechanismSettings(round_s=3600.0)
)  # 360 s in the paper; fewer rounds are faster to simulate
RATES_PER_H = [0.3, 1.0, 3.0]
JOBS, WARM_UP = 40, 10  # the first jobs arrive in an empty cluster, so they are not measured

# %%
# One simulation for each rate and policy. All runs use the same random seed, so the jobs differ only in their arrival
# times.


def average_jct_h(rate_per_h: float) -> dict[str, float]:
    """Average JCT of the measured jobs under each policy, in hours."""
    options = GeneratorOptions(JOBS, rate_jobs_per_h=rate_per_h)
    trace = generate(options, TABLE, np.random.default_rng(0))
    results = compare(trace, CLUSTER, RUNS, throughputs=TABLE, settings=SETTINGS, window=(WARM_UP, JOBS))
    return {run.label: results[run.label].metrics.avg_jct_s / 3600 for run in RUNS}


jct_h = {rate: average_jct_h(rate) for rate in RATES_PER_H}
print("jobs/h   blind    aware    ratio")
for rate, by_policy in jct_h.items():
    blind, aware = by_policy.values()
    print(f"{rate:6.1f} {blind:6.1f} h {aware:6.1f} h {blind / aware:8.2f}")

# %%
# The paper's finding: with knowledge of the GPU types, the average JCT is lower at every rate. With so few jobs the
# curves flatten at high rates, where all jobs arrive before the first ones finish.

import plotly.graph_objects as go

figure = go.Figure(
    [go.Scatter(x=RATES_PER_H, y=[jct_h[rate][run.label] for rate in RATES_PER_H], name=run.label) for run in RUNS]
)
figure.update_layout(xaxis_title="input job rate (jobs/h)", yaxis_title="average JCT (h)", height=400)
figure
