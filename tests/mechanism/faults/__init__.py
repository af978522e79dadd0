"""A cluster in virtual time in which everything breaks, around the code that decides in a real one.

Real are the core, the scheduler's lease table, registry of nodes and execution, and the agents' reconciliation.
Modelled are what they live in: machines with clocks of their own, processes that run, checkpoint, hang and die, agents'
disks, the journal, and links that lose, repeat, delay and reorder the messages of agent.proto.
"""
