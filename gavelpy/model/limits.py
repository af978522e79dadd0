"""The largest value of a field, for modules that must not load numpy; others take it from `model.arrays`."""

from __future__ import annotations

VALUE_MAX = 1e18  # of rates, weights and steps; their products stay far from overflow
