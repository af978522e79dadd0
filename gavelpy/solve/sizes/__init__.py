"""The prices rung for jobs with several sizes, and for several resources: many jobs, each in one of many modes.

Modules:

    engine              which problems it applies to, and certified shares
    table               jobs and their modes as arrays
    search              from approximate prices to the exact optimum
    hull_kernels        the lower hull of a job's modes, and the cheapest mix, in numba
    problem_kernels     from a problem to modes, and from times to certified shares, in numba
    column_kernels      the best mix of answers at several prices, in numba
"""
