"""Jobs that may share GPUs: fewer columns for very many pairs.

Modules:

    partition           classes of equal jobs and of equal configurations
    column_generation   a linear program that grows by the columns that improve it
    column_pool         the columns that are not used yet, and approximate duals to begin with
"""
