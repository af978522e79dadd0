"""Value types: clusters, jobs, throughputs, allocation problems and allocations. No clock, no I/O."""
