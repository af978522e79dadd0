"""The leases of a node.

registry         all leases of the state directory: load, act, extend, forget
directory        one lease: its files, its shim, how it ends
job_directory    what a job that runs as its owner sees of its lease
rendezvous_port  a port that stays free until the ranks start
reconcile        the actions that follow from the scheduler's orders, a pure function
orders           the scheduler's orders, and what it launches here: messages, checked
environment      the environment of a job, and its launch
starter          prepare storage, start the shim; count checkpoints of leases that have ended
resume           the checkpoint that a lease resumes from (runs in a storage worker)
images           which container images the node runs, and with what tool
containment      control groups or a subreaper, which keep a lease's processes together
retention        logs of forgotten leases; leaving one cluster for another
"""
