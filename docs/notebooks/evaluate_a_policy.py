"""
Evaluate a policy
=================

Compute an allocation, check its certificate, and compare a policy that knows the GPU types with a blind one.
"""

# %%
# The problem: three jobs on one V100 and one K80. Rates are steps/s of each job on each type.

from gavelpy import AllocationProblem
from gavelpy.policies.max_min_fairness import MaxMinFairness

problem = AllocationProblem.of(
    ["vision", "speech", "ranker"],
    ["v100", "k80"],
    [1, 1],
    [[40.0, 4.0], [12.0, 6.0], [9.0, 8.0]],
)
aware = MaxMinFairness().allocate(problem)
aware.by_job().round(3)

# %%
# The certificate proves that no other shares have a higher minimum: ``bound`` limits the objective of all feasible
# shares, and ``gap`` is the relative distance to it.

aware.certificate

# %%
# ``shadow_prices`` is the marginal value of one more GPU of each type. As sentences:

from gavelpy.model.explanation import marginal_value_sentences

for sentence in marginal_value_sentences(aware, MaxMinFairness.optimises):
    print(sentence)

# %%
# A blind policy sees the same rate on all types. To evaluate it, compute shares on the blind problem and rates on the
# true one.

import numpy as np

blind = MaxMinFairness().allocate(problem.blind_to_type())
true_rates = (blind.share * problem.rate_alone_steps_per_s).sum(axis=1)
gain = aware.rate_steps_per_s / true_rates
dict(zip(problem.job_ids, np.round(gain, 2).tolist(), strict=True))

# %%
# All three jobs are faster when the policy knows the GPU types. The same comparison over the lifetime of many jobs
# needs a simulation:

from gavelpy.model.cluster import Cluster
from gavelpy.simulator.compare import PolicyRun, compare
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs

trace = generate(GeneratorOptions(20, rate_jobs_per_h=4.0), published_throughputs(), np.random.default_rng(0))
results = compare(
    trace,
    Cluster.parse("v100:3,p100:3,k80:3"),
    [PolicyRun("max_min_fairness", blind=True), PolicyRun("max_min_fairness")],
    throughputs=published_throughputs(),
)
for label, result in results.items():
    print(f"{label:24} average JCT {result.metrics.avg_jct_s / 3600:6.1f} h")
