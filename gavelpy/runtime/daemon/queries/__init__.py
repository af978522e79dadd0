"""Answers queries of clients about jobs, nodes and events with plain values: no gRPC and no protobuf.

jobs        which jobs a caller may see, lookup, pages, warnings
job_table   pages of jobs, filtered and sorted
job_status  the status of jobs for people
cluster     policy, round, GPUs by type, nodes
explain     one job in detail, and forecasts of jobs that are not submitted yet
usage       GPU time by owner, entity and GPU type
events      the journal's events as sentences and JSON
logs        log lines of jobs, merged over all nodes
log_lines   pages of one node's lines
fields      checks of values in requests
"""
