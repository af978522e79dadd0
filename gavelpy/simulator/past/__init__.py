"""A scheduler's own journal, simulated again: rates and costs that it shows, and what a change would have done."""
