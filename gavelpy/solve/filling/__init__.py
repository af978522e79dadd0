"""Water filling: all rates rise together; a job that cannot rise keeps its rate, and the others continue.

Modules:

    rungs               the algorithms from fast to robust, the certificate of an answer, and its last digits
    targets             the rate that each class of jobs should have at a level
    saturation          level after level, until no class can rise
    water_level         the highest level whose targets are feasible, by HiGHS or by prices
    gaps                how far each class could still rise: the proof
    resolved            more digits of a proof and of the shares that it is about
"""
