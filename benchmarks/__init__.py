"""Speed and quality against peers, in one process: `python -m benchmarks`, or `make bench`."""
