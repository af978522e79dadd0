"""Fairness properties that a policy may guarantee."""

from __future__ import annotations

from enum import StrEnum


class Guarantee(StrEnum):
    """A property of allocations for new jobs that run alone, with equal weight, gang size and entity.

    For other jobs a property may or may not hold: weights exist to make jobs unequal. r_j(x) is the rate of job j under
    shares x, x_j the shares of job j; only jobs that can run count. `gavelpy.policies.guarantee_checks` tests them.
    """

    SHARING_INCENTIVE = "sharing_incentive"
    """r_j(x) >= r_j(x_isolated): no job prefers an n-th of every GPU type for itself.

    x_isolated is that of the policy `isolated`: W_t / (n g_j), limited by the job's time. DRF (NSDI '11), section 3.
    """

    PARETO_EFFICIENT = "pareto_efficient"
    """No other shares raise the rate of one job without lowering that of another."""

    ENVY_FREE = "envy_free"
    """r_j(x_j) >= r_j(x_k) for all j, k: no job prefers the shares of another. Varian (1974)."""

    STRATEGY_PROOF = "strategy_proof"
    """No job gets a higher rate by declaring false rates. DRF (NSDI '11), section 3."""

    @property
    def in_words(self) -> str:
        """The name in a sentence."""
        match self:
            case Guarantee.SHARING_INCENTIVE:
                return "sharing incentive"
            case Guarantee.PARETO_EFFICIENT:
                return "Pareto efficient"
            case Guarantee.ENVY_FREE:
                return "envy-free"
            case Guarantee.STRATEGY_PROOF:
                return "strategy-proof"
