"""Readers and writers of traces, throughput tables and problem files; the generator; the shipped workload data."""
