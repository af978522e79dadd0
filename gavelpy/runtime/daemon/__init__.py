"""The scheduler daemon, `gavel-scheduler`.

main                the command
config              its configuration file
config_sections     the tables of this file: fields, defaults and allowed values
service             the process: start, stop, reload, signals, sd_notify
standby             several schedulers of one journal: stands by, leads, stands by again
follower            the state of a standby, which follows the journal, and how old it is
promotion           shows the schedulers of a journal, and makes one of them the leader
recovery            the state after a start, from the journal; the scheduler's clock
scheduler           the object behind the services: submit, cancel, drain, change the policy
submissions         checks of submitted jobs; one submission for each key
driver              writes events to the journal, applies them to the core, executes the commands
command_executor    executes the core's commands, and turns reports of nodes into events
job_history         starts, ends and notes of jobs
usage               GPU time by hour, owner, entity and GPU type
shadow_prices       marginal values of GPUs and other resources over time
metrics             Prometheus metrics and health checks, by HTTP
state_metrics       gauges of jobs, users, entities, nodes and lag, read at each scrape

nodes               nodes and their agents: registry, silence, views of the cluster for the quorum rule
leases              leases in parts by node: orders to nodes, reports from nodes
engine              worker processes: policy, estimation of rates, forecasts
queries             questions of people: jobs, cluster, explain, events, logs; plain values, no gRPC
rpc                 the gRPC server and its two services, for clients and for agents
"""
