"""Nodes and their agents.

registry        identity, clock, stream and last message of each agent; who may use a node's name
watch           detects nodes that are unreachable or dead
peer_reports    what agents report of each other: to how many of them a node is alive or dead
host_neighbors  agents on one host that watch each other's processes
quorum_views    views of the cluster by which agents extend leases without a scheduler
"""
