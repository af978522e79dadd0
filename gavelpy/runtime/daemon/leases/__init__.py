"""Leases in parts by node.

lease       a lease with its parts, orders to nodes, reports from nodes
table       all leases: grants, extends and ends them, makes orders, processes reports
events      events for the core, also of lost leases whose end is reported late
"""
