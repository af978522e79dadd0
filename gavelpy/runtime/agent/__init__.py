"""The agent of a node (`gavel-node`): it starts, extends, stops and reports leases.

main, config       command line and configuration
agent              the event loop that joins the parts
leases/            the leases of this node, from assignment to retention of logs
connection         the stream to the scheduler; reports
peers              agents confirm to each other that the scheduler is silent; quorum_member is the state behind it
log_stream         serves `gavel logs`; log_reader reads the files
tunnels            terminals and ports of jobs, for `gavel run` and `gavel forward`
job_service        gRPC for jobs that cannot use the lease files
gpus, checkpoint_watch    the node's GPUs and its checkpoint directory
agent_state        what survives a restart
housekeeping       old logs, disk space, orphans
"""
