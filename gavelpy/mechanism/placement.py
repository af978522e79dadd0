"""Which GPUs a selected job gets: large gangs first, on as few servers as possible, the tightest fit.

A job that stays on its type keeps the GPUs it has (see leases); only the others come here. Large gangs go first because
whole servers are scarce; one-GPU jobs then fill the servers that are broken into already, which leaves whole ones.
"""

from __future__ import annotations

import numpy as np

from gavelpy.mechanism.gpus import GpuPool
from gavelpy.model.arrays import Bools, Ints


def place(pool: GpuPool, free: Bools, gpu_type: Ints, gpus: Ints) -> tuple[Ints, Ints]:
    """GPU rows for each job, as offsets (K + 1,) into a flat array; job k gets flat[offsets[k]:offsets[k + 1]].

    `gpus` (K,) is how many each job wants, all of its `gpu_type` (K,); `free` (G,) says which GPUs may be used. The
    caller has made sure that they suffice.
    """
    offsets = np.concatenate([[0], np.cumsum(gpus)])
    flat = np.full(int(offsets[-1]), -1, dtype=np.int64)
    for kind in np.unique(gpu_type).tolist():
        here = np.flatnonzero(gpu_type == kind)
        candidates = np.flatnonzero(free & (pool.type_of == kind))
        assert gpus[here].sum() <= len(candidates), "selection gave out more GPUs than are free"
        for position in here[np.lexsort((here, -gpus[here]))].tolist():
            if gpus[position] == 1:
                break
            taken = _gang(pool.node_of[candidates], int(gpus[position]))
            flat[offsets[position] : offsets[position + 1]] = candidates[taken]
            candidates = np.delete(candidates, taken)
        singles = here[gpus[here] == 1]
        order = _tightest_first(pool.node_of[candidates])
        flat[offsets[singles]] = candidates[order[: len(singles)]]
    return offsets, flat


def _tightest_first(node_of: Ints) -> Ints:
    """Order of free GPUs that empties the servers with the fewest free ones first."""
    nodes, inverse, counts = np.unique(node_of, return_inverse=True, return_counts=True)
    return np.lexsort((np.arange(len(node_of)), nodes[inverse], counts[inverse]))


def _gang(node_of: Ints, size: int) -> Ints:
    """Positions of `size` free GPUs on the fewest servers; the last server is the tightest that suffices."""
    nodes, counts = np.unique(node_of, return_counts=True)
    chosen: list[int] = []
    missing = size
    while missing > 0:
        enough = np.flatnonzero(counts >= missing)
        best = int(enough[np.argmin(counts[enough])]) if len(enough) else int(np.argmax(counts))
        here = np.flatnonzero(node_of == nodes[best])[:missing]
        chosen.extend(here.tolist())
        missing -= len(here)
        counts[best] = 0
    return np.array(chosen, dtype=np.int64)
