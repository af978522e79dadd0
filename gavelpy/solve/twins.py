"""Loops over jobs come twice: in numpy, and in machine code (numba), each the other's check."""

INTERPRETED_MAX = 512  # rows; up to here numpy is quick enough, and machine code, half a second, is never loaded
