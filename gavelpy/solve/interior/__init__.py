"""An interior point for problems in which every job runs alone: only the T prices couple the classes."""

from __future__ import annotations

from gavelpy.solve.interior.form import Form, InteriorPoint, Level, Sum, SumLog
from gavelpy.solve.interior.method import optimum

__all__ = ["Form", "InteriorPoint", "Level", "Sum", "SumLog", "optimum"]
