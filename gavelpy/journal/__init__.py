"""Events to bytes and back, journals in files, and the fold that turns events into metrics."""
