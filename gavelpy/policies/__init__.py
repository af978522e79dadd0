"""Formulas: one file per policy, each a frozen dataclass with one method. Found by name through entry points."""
