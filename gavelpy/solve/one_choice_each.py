"""Exactly one choice for each job, whole, of the highest total value under several limits: an integer program.

    maximise    Σ_k v_k z_k
    such that   Σ_{k of job j} z_k = 1     for each job
                Σ_k a_nk z_k <= b_n        for each limit n (a capacity, a bound of a total cost, a number of changes)
                z_k in {0, 1}

`whole_choices` lets jobs go without a choice; here no answer is possible, and that is an answer too. HiGHS's branch and
bound (by scipy) has a limit of nodes, not of time, so that equal programs give equal answers. What it has then is an
answer with the gap that is proved.
"""

from __future__ import annotations

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.whole_choices import WholeChoice

NODES_MAX = 1_000
GAP = 1e-9  # relative; branch and bound ends there, or at 1e-6 absolute, so values are enlarged:
ENLARGED = 2.0**14
_CHOSEN = 0.5
_OPTIMAL, _LIMIT, _INFEASIBLE = 0, 1, 2  # scipy's numbers


def best_of_each(
    job: Ints, value: Floats, amounts: Floats, limits: Floats, nodes_max: int = NODES_MAX
) -> WholeChoice | None:
    """The best choices; None if no answer is possible, or none was found within the nodes. Raises SolverFailed.

    `job` (K,) is the job of each choice, `amounts` (N, K) what it adds to each of the `limits` (N,).

    >>> amounts = np.array([[2.0, 1.0, 1.0, 2.0]])
    >>> best = best_of_each(np.array([0, 0, 1, 1]), np.array([3.0, 1.0, 1.0, 4.0]), amounts, np.array([3.0]))
    >>> best.chosen.tolist(), best.value
    ([1, 3], 5.0)
    >>> best_of_each(np.array([0, 0, 1, 1]), np.zeros(4), amounts, np.array([1.0])) is None
    True
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    K = len(job)
    if not K:
        return WholeChoice(np.zeros(0, dtype=np.int64), 0.0, 0.0)
    _, row = np.unique(job, return_inverse=True)
    one_each = csr_array((np.ones(K), (row, np.arange(K))), shape=(int(row.max()) + 1, K))
    constraints = [LinearConstraint(one_each, 1.0, 1.0)]
    if len(limits):
        constraints.append(LinearConstraint(csr_array(amounts), -np.inf, limits))
    found = milp(
        -ENLARGED * value,
        integrality=np.ones(K, dtype=np.int64),
        bounds=Bounds(0.0, 1.0),
        constraints=constraints,
        options={"mip_rel_gap": GAP, "node_limit": nodes_max},
    )
    if found.status == _INFEASIBLE or (found.status == _LIMIT and found.x is None):
        return None
    if found.status not in (_OPTIMAL, _LIMIT) or found.x is None or found.mip_dual_bound is None:
        raise SolverFailed(str(found.message), jobs=K, gpu_types=len(limits), detail="exactly one choice for each job")
    chosen = np.flatnonzero(found.x > _CHOSEN)
    total = float(value[chosen].sum())
    return WholeChoice(chosen, total, max(total, -float(found.mip_dual_bound) / ENLARGED))
