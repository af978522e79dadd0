"""Leases in parts by node: orders to nodes, and reports from nodes."""
