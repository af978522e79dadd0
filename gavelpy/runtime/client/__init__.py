"""The Python client of the scheduler, as the command `gavel` uses it."""
