"""Worker processes of the scheduler: policy, estimation of rates, forecasts."""
