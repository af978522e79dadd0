"""The scheduler on real machines: daemon, node agent, shim, client, and what a training script imports."""
