"""Throughputs that nobody measured: a prior, what other jobs tell, what running jobs report, and how sure it all is."""
