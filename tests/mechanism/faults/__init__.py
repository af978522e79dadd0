"""A cluster in virtual time with injected faults, around the real decision code.

Real are the core, the scheduler's lease table, node registry and command executor, and the agents' reconciliation.
Modelled is their environment: machines with clocks of their own, processes that run, checkpoint, hang and die, agents'
disks, the journal, and links that lose, repeat, delay and reorder the messages of agent.proto.
"""
