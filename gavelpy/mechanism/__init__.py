"""The deterministic core: events in, commands out. No clock, no I/O, no threads, no randomness, no solver."""
