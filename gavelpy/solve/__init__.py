"""Numerics: computes certified allocations for objectives. Policies call `ladder.solve`.

Modules:

    ladder              selects the algorithms for an objective, from fast to robust, and accepts certified answers only
    objective           the objectives that a policy may state
    program             a problem in scaled numbers, with classes of equal jobs
    certificate         repairs a solver's shares, proves how good they are; the even split as last resort
    solver              warm state of a caller; linear programs by HiGHS
    compiled            numba's compiler, for the kernels of prices/ and interior/
    compiling           announces the first compilation of a process
    small_programs      small linear programs and branch and bound by HiGHS
    linear              max-min and max-sum objectives as linear programs
    feasible_floors     the largest set of rate floors that is feasible together
    concave             sums of logarithms and other concave objectives; `concave_cvxpy` loads cvxpy
    finish_time         the least finish-time ratio; `finish_time_search` is the search by linear programs
    live                max-min for a problem that changes by one job at a time
    assignment          the least sum of completion times (AlloX)
    prices/             many distinct jobs that run alone, by the prices of a few GPU types
    sizes/              the same for jobs with several sizes, and for several resources
    resources           leaves out the resources that limit no job
    filling/            water filling: lexicographic max-min and progressive filling
    interior/           a block interior point method for jobs that run alone
    packing/            jobs that may share GPUs: classes of pairs, column generation
"""
