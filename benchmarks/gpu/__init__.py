"""gavelpy on a machine with an NVIDIA GPU: detection, rates, turns, shared GPUs, faults.

    python -m benchmarks gpu --out DIRECTORY                     # all phases: some ten minutes
    python -m benchmarks gpu --out DIRECTORY --phases detect,faults
    python -m benchmarks gpu --out DIRECTORY --device cpu        # the same on CPUs, with small jobs: tests the phases

Each phase adds its results to DIRECTORY/results.json when it ends, also if it fails; logs of clusters are next to it.
"""
