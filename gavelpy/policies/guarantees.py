"""What a policy may promise the people whose jobs it schedules."""

from __future__ import annotations

from enum import StrEnum


class Guarantee(StrEnum):
    """A promise for jobs that run alone, of equal weight, gang size and entity, that have no past.

    Outside of that a policy may keep it, and need not: weights are there to make jobs unequal. r_j(x) is the rate of
    job j under shares x, x_j the shares of job j, and only jobs that can run count.
    `gavelpy.policies.guarantee_checks` has each as a property to test.
    """

    SHARING_INCENTIVE = "sharing_incentive"
    """r_j(x) >= r_j(x_isolated): nobody would rather have an n-th of every GPU type to itself.

    x_isolated is that of the policy `isolated`: W_t / (n g_j), cut to the job's time. DRF (NSDI '11), section 3.
    """

    PARETO_EFFICIENT = "pareto_efficient"
    """No other shares give some job a higher rate and none a lower one."""

    ENVY_FREE = "envy_free"
    """r_j(x_j) >= r_j(x_k) for all j, k: nobody would rather have another's shares. Varian (1974)."""

    STRATEGY_PROOF = "strategy_proof"
    """No job gets a higher rate by saying that its rates are others than they are. DRF (NSDI '11), section 3."""

    @property
    def in_words(self) -> str:
        """As it is written in a sentence."""
        match self:
            case Guarantee.SHARING_INCENTIVE:
                return "sharing incentive"
            case Guarantee.PARETO_EFFICIENT:
                return "Pareto efficient"
            case Guarantee.ENVY_FREE:
                return "envy-free"
            case Guarantee.STRATEGY_PROOF:
                return "strategy-proof"
