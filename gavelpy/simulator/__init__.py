"""The simulator: runs the core in virtual time, on a virtual cluster."""
