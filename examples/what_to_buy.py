"""What would one more GPU be worth, and why does each job get what it gets?

python examples/what_to_buy.py
"""

from gavelpy import AllocationProblem
from gavelpy.model.explanation import explanation
from gavelpy.model.marginal_value import marginal_value_sentences, relative_gain
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
    print("per dollar an hour the better buy is", problem.gpu_types[gain_per_usd.argmax()])

    holds = explanation(allocation)
    for row, job in enumerate(problem.job_ids):
        print(f"{job} {holds.text(row)}")
