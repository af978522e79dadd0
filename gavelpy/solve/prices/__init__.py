"""The price engine: linear objectives of many jobs that run alone, by the prices of a few GPU types.

Modules:

    engine              the algorithm from prices to certified shares
    distinct            problems of distinct jobs, by kernels from their arrays to the certificate
    problem_kernels     their table, in numba
    certified           certificates of such answers
    table               jobs and needs as arrays, and the choice between the two kernels
    numpy_kernels       the loops over jobs in numpy, for few jobs
    numba_kernels       the same in numba, for many
    event_kernels       live problems, in numba: sums over jobs, and the answer after an event
    table_kernels       the best prices of many jobs from near ones, in numba
    descent_kernels     from the last vertex of prices to the next
    kink_kernels        the equations of a vertex
    corner_kernels      modes and mixes of a job
    numba_search        compiled searches for prices, used where numba is loaded already
    pivots_search       all pivots in one compiled call
    numpy_search        the same pivots in numpy, where numba is not loaded
    column_kernels      the highest level of up to some thousand jobs by columns
    newton_kernels      Newton's steps, in numba
    curve_kernels       roots of needs that bend, in numba, and certificates of finish times
    bent_kernels        Newton's steps on the tangents of such needs, in one call
    newton              approximate prices by Newton's method on the dual function
    starting_prices     prices to begin with, by HiGHS, Newton's method or the interior point
    crossover           from approximate prices to the exact optimum, by small linear programs
    kept                problems that differ by a few jobs from the last one
    kept_kernels        the same in numba: what is known of jobs that stay
    structure_kernels   the equations of a structure, in numba
    vertex              the optimum as a function of its structure, so that the way there changes no byte
    welfare             sums of logarithms: the exact step from near prices
    welfare_search      Newton's steps and ties for these prices, in numba
    welfare_kernels     jobs, equations and the answer for these prices, in numba
    pivots              few classes: exact simplex steps
    level_curve         needs as functions of a level, and the bounds that prices prove
    highest_level       the highest level of needs that rise with it, each with its own limit
    height              the same for a program
"""
