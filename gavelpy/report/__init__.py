"""Reports of simulation results: the comparison, its summary in sentences, plots, and the HTML page."""
