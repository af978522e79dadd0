"""What a training script imports to live well under leases; standard library only."""

from gavelpy.runtime.iterator.lease_iterator import LeaseIterator

__all__ = ["LeaseIterator"]
