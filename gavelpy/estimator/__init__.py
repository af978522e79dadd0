"""Estimates unmeasured throughputs from a prior, similar jobs and readings of running jobs, with uncertainty."""
