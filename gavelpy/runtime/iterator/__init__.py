"""LeaseIterator, for training scripts that run under leases; standard library only.

lease_iterator   the loop: step, save, stop
timing           measured rate, and when to begin to stop
epochs           iterate over a loader from a data position
checkpoints      complete checkpoints: write, read, prune
barrier          the ranks of a gang agree on a step
lease_watch      background thread: read the lease, report progress
context          what the environment variables of the job contain
"""

from gavelpy.runtime.iterator.lease_iterator import LeaseIterator

__all__ = ["LeaseIterator"]
