"""Nodes and their agents.

registry        identity, clock, stream and last message of each agent; who may use a node's name
watch           detects nodes that are unreachable or dead
quorum_views    views of the cluster by which agents extend leases without a scheduler
"""
