"""gavel-scheduler: the core behind a journal, a network and a clock."""
