"""Twelve jobs as users bring them, good and bad; test_scripts.py submits all of them to one cluster."""
