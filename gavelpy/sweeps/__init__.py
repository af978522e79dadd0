"""Many simulations: grids of them, the cheapest mix of GPU types, and the highest load of a cluster.

Their inputs are the options of `gavel simulate`, so this package is above the command line: see `cells`.
"""
