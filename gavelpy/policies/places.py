"""The places of jobs alone, for policies that choose one of them for each job."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem


class PlacesAlone(NamedTuple):
    """K places: a configuration of one job, and a GPU type that has enough for it and on which it has a rate.

    >>> p = AllocationProblem.of("ab", ["v100", "k80"], [1, 0], [[4.0, 1.0], [0.0, 2.0]])
    >>> [values.tolist() for values in PlacesAlone.of(p)]
    [[0], [0], [0], [4.0]]
    """

    row: Ints  # (K,) of the configuration
    job: Ints  # (K,)
    gpu_type: Ints  # (K,)
    rate: Floats  # (K,) steps/s

    @classmethod
    def of(cls, problem: AllocationProblem) -> PlacesAlone:
        """All places, by configuration, then by type."""
        alone = problem.member_count[problem.member_configuration] == 1
        runs = (problem.fits & problem.is_whole)[problem.member_configuration] & alone[:, None]
        member, gpu_type = np.nonzero(runs & (problem.member_rate_steps_per_s > 0))
        rate = problem.member_rate_steps_per_s[member, gpu_type]
        return cls(problem.member_configuration[member], problem.member_job[member], gpu_type, rate)
