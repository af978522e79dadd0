"""Values: clusters, jobs, throughputs, allocation problems and their answers. No behaviour that needs a clock."""
