"""Nodes and their agents."""
