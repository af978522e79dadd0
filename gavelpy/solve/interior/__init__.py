"""A block interior point method for jobs that run alone: only the prices of the T GPU types couple the classes.

Modules:

    predictor_corrector     Mehrotra's method; `optimum` is its entry
    numpy_kernels           the problem and its arrays; the loops over classes in numpy, with the equations
    numba_kernels           the same in numba, for many
"""

from __future__ import annotations

from gavelpy.solve.interior.numpy_kernels import Form, InteriorPoint, Level, Sum, SumLog
from gavelpy.solve.interior.predictor_corrector import optimum

__all__ = ["Form", "InteriorPoint", "Level", "Sum", "SumLog", "optimum"]
