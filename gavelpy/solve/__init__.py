"""Numerics: what a policy may ask for, and certified answers to it. Nothing here knows a policy by name."""
