"""gavel-node: the agent of a node. It holds a stream to the scheduler and makes the node run what it orders."""
