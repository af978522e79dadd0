"""The web page of the scheduler and its JSON, off unless `[scheduler] web_listen` is set (docs/web.md).

server   the port: TLS, headers, static files, errors as JSON
access   who calls: tokens, roles, budgets, and requests that other sites' pages sent
reads    GET: cluster, nodes, jobs, teams, usage, events
actions  POST: cancel, hold, release, drain, resume, policy
what_if  forecasts under another policy, or with more GPUs
streams  server-sent events: the log of a job, and changes
page     all of it for one scheduler: queries, routes, samples
samples  time owed and received of jobs, and prices, over time
"""
