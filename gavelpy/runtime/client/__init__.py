"""The Python client of the scheduler, which the command `gavel` uses."""
