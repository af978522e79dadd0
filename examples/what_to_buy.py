"""The marginal value of a GPU of each type, and what limits each job.

python examples/what_to_buy.py
"""

from gavelpy import AllocationProblem
from gavelpy.model.explanation import explanation, marginal_value_sentences, relative_gain
from gavelpy.policies.max_min_fairness import MaxMinFairness

if __name__ == "__main__":
    problem = AllocationProblem.of(
        ["resnet", "lstm", "bert", "gan", "ranker"],
        ["h100", "k80"],
        [1, 2],
        [[9.0, 1.0], [4.0, 3.0], [8.0, 0.5], [2.0, 1.0], [0.0, 2.0]],  # steps/s of each job on each type
        price_usd_per_gpu_h=[3.0, 0.45],
    )
    allocation = MaxMinFairness().allocate(problem)
    for sentence in marginal_value_sentences(allocation, MaxMinFairness.optimises):
        print(sentence)

    gain_per_usd = relative_gain(allocation, MaxMinFairness.optimises) / problem.price_usd_per_gpu_h
    print("highest gain per dollar and hour:", problem.gpu_types[gain_per_usd.argmax()])

    limits = explanation(allocation)
    for row, job in enumerate(problem.job_ids):
        print(f"{job} {limits.text(row)}")
