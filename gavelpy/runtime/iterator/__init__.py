"""LeaseIterator, for training scripts that run under leases; standard library only.

lease_iterator   the loop over a loader
lease_loop       the loop of any form: step, save, stop; for LeaseIterator and for callbacks of frameworks
timing           measured rate, and when to begin to stop
checkpoints      complete checkpoints: write, read, prune; iterate over a loader from a data position
barrier          the ranks of a gang agree on a step
metrics          values of metrics, such as the loss, for the scheduler
lease_watch      the lease of this process: its environment variables; a thread that reads the lease, reports progress
"""

from gavelpy.runtime.iterator.lease_iterator import LeaseIterator

__all__ = ["LeaseIterator"]
