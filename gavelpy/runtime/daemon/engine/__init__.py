"""Policy, estimation of rates and forecasts, in two worker processes.

worker_process      one child process that answers calls, and is replaced when it dies or hangs
engine_process      the scheduler's side of solving and estimating: requests, one at a time
engine_worker       the process's side
forecast            the scheduler's side of forecasts, with a cache
forecast_worker     the process's side: simulates a copy of the core
measuring           collects rates of running jobs for the estimator
policy_choice       a policy by name and parameters
throughput_files    reads the throughputs file and the estimator's model
"""
